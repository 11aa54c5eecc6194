/* mfs-server: as whom its threads touch files. */
#ifndef MFS_IDENTITY_H
#define MFS_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

/* Once for each thread, as root; whether it serves a peer whose root is root here. */
int mfs_identity_begin(bool root_counts);
/* The peer whose root is root here, too; NULL: each. Without any of them: none. */
void mfs_root_count(const char *peer);
bool mfs_root_counts(const char *peer);
/* Makes ids that count for nothing here those of nobody; whether it was root's. */
bool mfs_squash(bool root_counts, uint32_t *uid, uint32_t *gid);
int mfs_assume(uint32_t uid, uint32_t gid); /* 0 or -errno: from now on this thread acts as that user */
void mfs_be_self(void);
/* The lease on that descriptor, no matter which user this thread acts as. */
void mfs_give_up_lease(int fd);
/* Until mfs_be_self: setuid bits go when files are changed, even if root does it. */
void mfs_without_fsetid(void);

#endif
