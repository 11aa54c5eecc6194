#define _GNU_SOURCE
#include "process/guest_memory.h"
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

static pthread_rwlock_t writing = PTHREAD_RWLOCK_INITIALIZER;

ssize_t guest_memory_writev(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote, unsigned long remotes)
{
	pthread_rwlock_rdlock(&writing);
	ssize_t size = process_vm_writev(pid, local, locals, remote, remotes, 0);
	int error = errno;
	pthread_rwlock_unlock(&writing);
	errno = error;
	return size;
}

void guest_memory_take(void)
{
	pthread_rwlock_wrlock(&writing);
}
void guest_memory_taken(void)
{
	pthread_rwlock_unlock(&writing);
}

/* pwrite(2) to `memory`, the /proc/PID/mem of a guest. Returns bytes or -errno. */
int64_t farhome_guest_memory_write(int memory, const void *data, uint64_t size, uint64_t address)
{
	pthread_rwlock_rdlock(&writing);
	ssize_t written = pwrite(memory, data, size, (off_t)address);
	int64_t result = written < 0 ? -errno : written;
	pthread_rwlock_unlock(&writing);
	return result;
}
