/* Files that the guest maps by itself: those that home has agreed to. */
#define _GNU_SOURCE
#include "link/away/threads/parts.h"
#include <sys/mman.h>
#include <sys/syscall.h>

/* Flags of mmap(2) that change nothing at home. */
#define MAPS (MAP_TYPE | MAP_FIXED | MAP_DENYWRITE | MAP_EXECUTABLE | MAP_NORESERVE | MAP_FIXED_NOREPLACE)

/* Until the next call that home makes, or Python deals with, the guest may map any part of the file that it has as `descriptor`, of `size`
 * bytes, privately: home has agreed. */
void away_let_map(struct away *a, int descriptor, uint64_t size)
{
	pthread_mutex_lock(&a->lock);
	a->map_descriptor = descriptor;
	a->map_size = size;
	pthread_mutex_unlock(&a->lock);
}

int away_may_map(struct away *a, const struct seccomp_notif *n)
{
	const __u64 *x = n->data.args;
	if (n->data.nr != SYS_mmap || (x[3] & ~(uint64_t)MAPS) || (x[3] & MAP_TYPE) != MAP_PRIVATE || !x[1] ||
	    (x[2] & ~(uint64_t)(PROT_READ | PROT_WRITE | PROT_EXEC)) || !away_is_single(a))
		return 0;
	pthread_mutex_lock(&a->lock);
	uint64_t size = (int)x[4] == a->map_descriptor ? a->map_size : 0, end;
	pthread_mutex_unlock(&a->lock);
	if (size)
		return !__builtin_add_overflow(x[5], x[1], &end) && end <= ((size + 4095) & ~4095ull);
	if (!a->kept || __atomic_load_n(&a->direct, __ATOMIC_ACQUIRE))
		return 0;
	uint64_t key = carried_file(a->carried, (int)x[4]);
	int is = key && kept_files_give(a->kept, key, x[5], x[1], a->listener, n->id, (int)x[4]);
	away_add(&a->maps, is);
	return is;
}
