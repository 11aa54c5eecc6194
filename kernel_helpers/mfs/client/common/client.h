/* mfs-client: what it is to do, what it has done, and what a server that takes the place of another has to know. */
#ifndef MFS_CLIENT_H
#define MFS_CLIENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mfs/log.h"
#include "mfs/wire.h"

struct mfs_client_figures { /* read by mosd: 64-bit words in this order */
	atomic_ullong requests, bytes_in, bytes_out, connections, connected, notifications, failed, waiting;
};

extern struct mfs_client_figures *mfs_figures;

/* What a server that takes the place of another has to know. */
struct mfs_client_kept {
	uint8_t session[MFS_SESSION];
	uint32_t minor; /* of the kernel's protocol, as agreed */
	bool has_session, mounted;
};

extern struct mfs_client_kept *mfs_kept;

struct mfs_client_options {
	const char *mount, *peer, *address, *port, *pki, *figures;
	long long timeout; /* ms within which a lost peer has to be back, or requests fail; 0: they do not */
	bool setuid, plain, keep;
};

extern struct mfs_client_options mfs_options;

#endif
