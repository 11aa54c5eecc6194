/* Whether a process has its address space together with another one (vfork, clone with CLONE_VM): only the kernel's own comparison tells,
 * and nothing lists who it is. So all processes that are to be seen are asked for. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <linux/kcmp.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The process that shares the memory of pid; 0: none does; -errno (ENOSYS: this kernel cannot compare). */
int farhome_shares_memory(int pid)
{
	DIR *processes = opendir("/proc");
	struct dirent *entry;
	int found = 0;

	if (!processes)
		return -errno;
	while (!found && (entry = readdir(processes))) {
		char *end;
		long other = strtol(entry->d_name, &end, 10);
		if (*end || other <= 0 || other == pid)
			continue;
		long order = syscall(SYS_kcmp, pid, other, KCMP_VM, 0, 0);
		if (order == 0)
			found = other;
		else if (order < 0 && (errno == ENOSYS || errno == EOPNOTSUPP))
			found = -ENOSYS;
		/* else it has ended, or they differ */
	}
	closedir(processes);
	return found;
}
