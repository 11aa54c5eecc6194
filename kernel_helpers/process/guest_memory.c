#define _GNU_SOURCE
#include "process/guest_memory.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
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

/* Whether all of it can be read, or written: on x86 a program reads that, too. */
static int is_open(pid_t tid, uint64_t start, uint64_t end)
{
	char path[32], line[512], reads, writes;
	unsigned long from, to;
	snprintf(path, sizeof path, "/proc/%d/maps", tid);
	FILE *maps = fopen(path, "re");
	while (maps && start < end && fgets(line, sizeof line, maps)) {
		if (sscanf(line, "%lx-%lx %c%c", &from, &to, &reads, &writes) != 4 || to <= start)
			continue;
		if (from > start || (reads != 'r' && writes != 'w'))
			break;
		start = to;
	}
	if (maps)
		fclose(maps);
	return start >= end;
}

int guest_memory_read(pid_t tid, uint64_t address, void *to, size_t length)
{
	struct iovec here = {to, length}, there = {(void *)address, length};
	if (process_vm_readv(tid, &here, 1, &there, 1, 0) == (ssize_t)length)
		return 0;
	if (address + length < address || !is_open(tid, address, address + length))
		return -EFAULT;
	char path[32];
	snprintf(path, sizeof path, "/proc/%d/mem", tid);
	int memory = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t size = memory < 0 ? -1 : pread(memory, to, length, (off_t)address);
	if (memory >= 0)
		close(memory);
	return size == (ssize_t)length ? 0 : -EFAULT;
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
