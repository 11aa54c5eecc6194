/* Files of home that guests of one sandbox may map without a word, by the key that home gives them (home/files/aside.h): each is open on
 * the node, with content that was found to be home's. */
#ifndef FARHOME_KEPT_H
#define FARHOME_KEPT_H
#include <stdint.h>

struct kept_files;

struct kept_files *kept_files_new(void);
/* Of a user of it, which kept_files_new() makes the caller one of. The last one closes the files. NULL is none. */
void kept_files_release(struct kept_files *k);
/* The open file is ours from now on. */
void kept_files_put(struct kept_files *k, uint64_t key, int file, uint64_t size);

#pragma GCC visibility push(hidden)
struct kept_files *kept_files_share(struct kept_files *k);
/* Puts the file into the guest whose call is that notification of `listener`, as `number`, if `length` bytes from `offset` are a part of it.
 * Whether it is there. */
int kept_files_give(struct kept_files *k, uint64_t key, uint64_t offset, uint64_t length, int listener, uint64_t id, int number);
#pragma GCC visibility pop
#endif
