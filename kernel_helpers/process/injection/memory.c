/* Memory of another process. */
#define _GNU_SOURCE
#include "process/guest_memory.h"
#include "process/injection/inject.h"
#include <errno.h>
#include <sys/uio.h>

/* Bytes moved, possibly fewer than asked when a later page is missing. */
long inject_read(int pid, uint64_t address, void *buffer, long size)
{
	struct iovec local = {buffer, size}, remote = {(void *)address, size};
	long r = process_vm_readv(pid, &local, 1, &remote, 1, 0);
	return r < 0 ? -errno : r;
}

long inject_write(int pid, uint64_t address, const void *buffer, long size)
{
	struct iovec local = {(void *)buffer, size}, remote = {(void *)address, size};
	long r = guest_memory_writev(pid, &local, 1, &remote, 1);
	return r < 0 ? -errno : r;
}
