/* Pages put where they are missing, by a userfaultfd. */
#ifndef FARHOME_UFFD_H
#define FARHOME_UFFD_H
#include <stdint.h>

/* Makes pages of that content, or of zeros (NULL), in half the time of a write, which has the kernel make pages of zeros first. Returns
 * how many bytes (all, or up to something in the way); 0: the process is changing its mappings; -errno: -EEXIST there is a page already,
 * -ENOENT or -EINVAL not one mapping that is registered, -ESRCH the process has ended. */
int64_t uffd_fill(int userfaultfd, uint64_t start, const char *content, uint64_t length);
/* Who waits for a page there looks again. */
void uffd_wake(int userfaultfd, uint64_t start, uint64_t length);

#endif
