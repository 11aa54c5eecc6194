/* What mfs-client and mfs-server say, and by which clock they go. */
#ifndef MFS_LOG_H
#define MFS_LOG_H

#include <pthread.h>
#include <stdbool.h>

extern const char *mfs_program; /* the name by which it speaks; set when it begins */
extern const char *mfs_about; /* whom the program is there for; NULL: all */

long long mfs_now(void); /* ms, monotonic */
/* Both wait until mfs_now() is `end` at most: whether it has got the lock; whether somebody has called. The wall's clock may be set meanwhile. */
bool mfs_lock_until(pthread_mutex_t *lock, long long end);
bool mfs_wait_until(pthread_cond_t *call, pthread_mutex_t *lock, long long end);
void mfs_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Says what has failed; returns 1, the exit code. */
int mfs_fail(const char *what, int error);

#endif
