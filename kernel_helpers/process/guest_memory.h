/* Reading and writing the memory of a guest from outside.
 *
 * The kernel writes in two steps: it makes the page writable, which counts as a write, and then copies. Anyone who takes note of what
 * was written since the last time, protects it again and reads it, must not come between the two: what is copied afterwards would
 * be a write that nobody has noticed. So writers hold a lock that they share, and who takes note holds it alone. */
#ifndef FARHOME_GUEST_MEMORY_H
#define FARHOME_GUEST_MEMORY_H
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/* process_vm_writev(2), of a guest. */
ssize_t guest_memory_writev(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote, unsigned long remotes);

/* What the guest itself could read there: what it may write as well, which process_vm_readv(2) does not read. 0 or -EFAULT. */
int guest_memory_read(pid_t tid, uint64_t address, void *to, size_t length);

/* Between the two nobody writes. */
void guest_memory_take(void);
void guest_memory_taken(void);

#endif
