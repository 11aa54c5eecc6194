#define _GNU_SOURCE
#include "link/away/files/giving.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>

int give_file(int listener, uint64_t id, int file, int number)
{
	struct seccomp_notif_addfd give = {
		.id = id, .flags = SECCOMP_ADDFD_FLAG_SETFD, .srcfd = file, .newfd = number, .newfd_flags = O_CLOEXEC};
	while (ioctl(listener, SECCOMP_IOCTL_NOTIF_ADDFD, &give) < 0)
		if (errno != EINTR) /* a signal of ours may end the wait for the guest's thread to take it */
			return -errno;
	return 0;
}
