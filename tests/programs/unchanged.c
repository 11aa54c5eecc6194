/* unchanged: calls that ask for what is so already (ids), or does not matter (on which node of memory its memory is), again and again until
 * there is a file `enough`; each round writes a line into `lines`.
 *
 * Exit status: 0; 3 with one line about the first thing that was wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPECT(condition) \
	do { \
		if (!(condition)) { \
			printf("line %d: not so: %s (%s)\n", __LINE__, #condition, strerror(errno)); \
			fflush(stdout); \
			_exit(3); \
		} \
	} while (0)

static void ids(void)
{
	uid_t uid = getuid(), as_it_is = -1;
	gid_t gid = getgid();
	EXPECT(!setuid(uid) && !setgid(gid) && !setreuid(uid, uid) && !setregid(gid, gid));
	EXPECT(!setresuid(uid, uid, uid) && !setresgid(gid, gid, gid));
	EXPECT(!setreuid(as_it_is, as_it_is) && !setregid(as_it_is, as_it_is));
	EXPECT(!setresuid(as_it_is, uid, as_it_is) && !setresgid(as_it_is, as_it_is, gid));
	EXPECT(setuid(as_it_is) == -1 && errno == EINVAL);
	EXPECT(geteuid() == uid && getegid() == gid && setfsuid(-1) == (int)uid);
}

static long bind_to(void *memory, unsigned long size, int mode, unsigned long nodes, unsigned flags)
{
	return syscall(SYS_mbind, memory, size, mode, &nodes, 8 * sizeof nodes, flags);
}

static void memory(void)
{
	char *memory = mmap(NULL, 8 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(memory != MAP_FAILED);
	EXPECT(!bind_to(memory, 8 << 12, MPOL_PREFERRED, 1, 0) && !bind_to(memory, 4 << 12, MPOL_BIND, 1, MPOL_MF_MOVE));
	EXPECT(bind_to(memory, 8 << 12, MPOL_BIND, 2, 0) == -1 && errno == EINVAL);
	EXPECT(bind_to(memory + 1, 4096, MPOL_BIND, 1, 0) == -1 && errno == EINVAL);
	EXPECT(bind_to(memory, 4096, MPOL_DEFAULT, 1, 0) == -1 && errno == EINVAL);
	EXPECT(!munmap(memory, 4096) && bind_to(memory, 4096, MPOL_BIND, 1, 0) == -1 && errno == EFAULT);
	memset(memory + 4096, 1, 7 << 12);
	EXPECT(!munmap(memory + 4096, 7 << 12));
}

int main(void)
{
	int lines = open("lines", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	while (access("enough", F_OK)) {
		ids();
		memory();
		dprintf(lines, "so\n");
		usleep(10000);
	}
	return 0;
}
