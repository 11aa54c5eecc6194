/* What nodes.c, reopen.c, coherence/remembered.c and coherence/pages.c know of nodes and nobody else. */
#ifndef MFS_NODES_H
#define MFS_NODES_H

#include "mfs/server/files/tables.h"

#define MFS_BUCKETS (1u << 16)
#define HANDLE_MOST 80

struct mfs_record { /* 128 bytes; of record 0, inode is MAGIC and lookups the number of records that were ever used */
	uint64_t device, inode, lookups;
	uint32_t mount;
	uint16_t sequence, handle_size; /* 0: the file system has no handles */
	int32_t handle_type;
	uint8_t export, kind, padding[10];
	unsigned char handle[HANDLE_MOST];
};

_Static_assert(sizeof(struct mfs_record) == 128, "records are 128 bytes");

/* The kernel's handle of what is behind an O_PATH descriptor; without one its size is 0. */
void mfs_take_handle(struct mfs_record *record, int fd);
/* An O_PATH descriptor of what has that handle, if it is still there; -1: errno says why. */
int mfs_open_again(const struct mfs_record *record);
uint32_t mfs_inode_bucket(uint64_t device, uint64_t inode);
uint32_t mfs_handle_bucket(int32_t type, const unsigned char *handle, size_t size);
bool mfs_has_handle(const struct mfs_record *record, const struct file_handle *handle);

#endif
