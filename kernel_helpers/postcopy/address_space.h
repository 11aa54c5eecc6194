/* An address space whose pages follow it: where what is lacking lies now, whatever the process does to its mappings meanwhile. */
#ifndef FARHOME_ADDRESS_SPACE_H
#define FARHOME_ADDRESS_SPACE_H
#include "postcopy/postcopy.h"
#include <linux/userfaultfd.h>

struct address_space;

/* Of the process pid's (0: it is not known), in which nothing is lacking yet. userfaultfd: ours from here on. NULL: no memory. */
struct address_space *address_space_new(int pid, int userfaultfd);
/* Of a child, which has what its parent has and lacks what it lacks. NULL: no memory; then the userfaultfd is not ours. */
struct address_space *address_space_child(const struct address_space *parent, int userfaultfd);
void address_space_free(struct address_space *space);
int address_space_userfaultfd(const struct address_space *space);
/* runs (sorted, apart) are lacking, each where it was. Returns 0 or -ENOMEM. */
int address_space_owe(struct address_space *space, const struct run *runs, size_t count);
bool address_space_owes(const struct address_space *space);
bool address_space_is_gone(const struct address_space *space);

/* Whether a page that is touched is lacking, and then where it was when it was left. */
bool address_space_lacks(const struct address_space *space, uint64_t page, uint64_t *source);
/* The page has nothing: it becomes what the kernel would have made of it. */
void address_space_zero(const struct address_space *space, uint64_t page);
/* The process has taken mappings away, given memory back or moved it; who waited there goes on. Returns 0 or -ENOMEM. */
int address_space_change(struct address_space *space, const struct uffd_msg *message);
/* Puts a run (by where it was) where it is lacking now, from run->address + *done on, which grows. content: of the run; NULL: zeros.
 * Returns 0; 1: the process is changing its mappings, hear it and call again; or -errno. */
int address_space_put(struct address_space *space, const struct run *run, const char *content, uint64_t *done);

#endif
