/* An address space whose pages follow it: where what is lacking lies now, whatever the process does to its mappings meanwhile. */
#ifndef FARHOME_MOUTH_H
#define FARHOME_MOUTH_H
#include "postcopy/postcopy.h"
#include <linux/userfaultfd.h>

struct mouth;

/* Of the process pid's (0: it is not known), in which nothing is lacking yet. userfaultfd: ours from here on. NULL: no memory. */
struct mouth *mouth_new(int pid, int userfaultfd);
/* Of a child, which has what its parent has and lacks what it lacks. NULL: no memory; then the userfaultfd is not ours. */
struct mouth *mouth_child(const struct mouth *parent, int userfaultfd);
void mouth_free(struct mouth *mouth);
int mouth_userfaultfd(const struct mouth *mouth);
/* runs (sorted, apart) are lacking, each where it was. Returns 0 or -ENOMEM. */
int mouth_owe(struct mouth *mouth, const struct run *runs, size_t count);
bool mouth_owes(const struct mouth *mouth);
bool mouth_is_gone(const struct mouth *mouth);

/* Whether a page that is touched is lacking, and then where it was when it was left. */
bool mouth_lacks(const struct mouth *mouth, uint64_t page, uint64_t *source);
/* The page has nothing: it becomes what the kernel would have made of it. */
void mouth_zero(const struct mouth *mouth, uint64_t page);
/* The process has taken mappings away, given memory back or moved it; who waited there goes on. Returns 0 or -ENOMEM. */
int mouth_change(struct mouth *mouth, const struct uffd_msg *message);
/* Puts a run (by where it was) where it is lacking now, from run->address + *done on, which grows. content: of the run; NULL: zeros.
 * Returns 0; 1: the process is changing its mappings, hear it and call again; or -errno. */
int mouth_put(struct mouth *mouth, const struct run *run, const char *content, uint64_t *done);

#endif
