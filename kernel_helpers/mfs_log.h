/* What mfs-client and mfs-server say, and by which clock they go. */
#ifndef MFS_LOG_H
#define MFS_LOG_H

extern const char mfs_program[];
extern const char *mfs_about; /* whom the program is there for; NULL: all */

long long mfs_now(void); /* ms, monotonic */
void mfs_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Says what has failed; returns 1, the exit code. */
int mfs_fail(const char *what, int error);

#endif
