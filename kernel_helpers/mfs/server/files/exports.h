/* mfs-server: what peers see, and where it begins. */
#ifndef MFS_EXPORTS_H
#define MFS_EXPORTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#define MFS_EXPORTS 64
#define MFS_DIRECT (MFS_EXPORTS + 1) /* none that is shown: direct files */

/* Whose files they are. */
enum mfs_kind {
	MFS_OWN,       /* this node's: it notices all changes */
	MFS_CLOSED,    /* the kernel's own file systems, which are not for peers */
	MFS_ELSEWHERE, /* some server's: others may change them unnoticed, and a request for them may wait as long as that server likes */
};

struct mfs_export {
	char path[4096];
	int fd;                  /* O_PATH */
	dev_t from_device;       /* a lookup of this directory leads to the export */
	ino_t from_inode;
	bool read_only, whole;   /* whole: it is the root; nothing can be moved out of it */
	bool hides;              /* there may be something in it that is hidden */
};

struct mfs_exports {
	struct mfs_export all[MFS_EXPORTS + 2]; /* 0: the directory that leads to the others, read-only; or the root itself */
	unsigned count;
	dev_t device;            /* whose inode numbers are shown as they are, */
	enum mfs_kind kind;      /* and whose files those are */
};

extern struct mfs_exports mfs_exports;

/* skeleton: a directory of ours, in which the way to exports is made. 0 or -errno, `what` is then the path it is about; -EXDEV: that is hidden. */
int mfs_exports_begin(const char *skeleton, char **paths, const bool *read_only, unsigned count, const char **what);
/* The inode number that peers see. */
uint64_t mfs_inode(dev_t device, ino_t inode);

/* ---- what is hidden, whatever is exported (hidden.c) ---- */

/* A directory or file, and all that is in it. 0 or -errno. Before exports begin. */
int mfs_hide(const char *path);
/* What is in that directory has no other name either. */
void mfs_hide_keys(const char *directory);
/* Whether that name in the directory is one of what is hidden; whether what was found under any other is; whether something is that lies */
bool mfs_is_hidden(int parent, const char *name);
bool mfs_is_hidden_file(int fd, const struct stat *stat);
/* there: by its path alone; by all that is known of it. */
bool mfs_is_hidden_path(const char *path);
bool mfs_is_within_hidden(int fd, const char *path);

/* Of what is found below something of that device and kind. */
enum mfs_kind mfs_kind_of(int fd, const struct stat *stat, dev_t parent_device, enum mfs_kind parent_kind);

#endif
