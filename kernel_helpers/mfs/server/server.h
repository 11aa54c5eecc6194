/* mfs-server: where it keeps what outlives it, and what it reports to mosd. */
#ifndef MFS_SERVER_H
#define MFS_SERVER_H

#include <stdatomic.h>
#include "mfs/members.h"

struct mfs_counters { /* read by mosd: 64-bit words in this order */
	atomic_ullong requests, bytes_read, bytes_written, nodes, files, leases, recalls, invalidations, connected;
	char peer[MFS_NAME_MOST];
};

extern const char *mfs_run_directory;
int mfs_counters_begin(void); /* 0 or -errno */
struct mfs_counters *mfs_counters_take(const char *peer); /* NULL: there are too many */

#endif
