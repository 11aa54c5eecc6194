/* Giving open files to a guest that waits for the answer to a seccomp notification. */
#ifndef FARHOME_GIVING_H
#define FARHOME_GIVING_H
#include <stdint.h>

#pragma GCC visibility push(hidden)
/* The thread that waits in notification `id` of `listener` puts our open file into its process as `number`, in place of what may be there,
 * before it goes on waiting. 0, or a negative errno: -EBADF: the number is beyond its limit; -ENOENT: it does not wait any more. */
int give_file(int listener, uint64_t id, int file, int number);
#pragma GCC visibility pop
#endif
