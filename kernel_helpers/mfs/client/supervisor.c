/* A mount that outlives its server. The supervisor has the kernel's end of it open, and does nothing but start one server after the other:
 * the next one goes on where the one before was, and processes that wait for the mount do not notice. It never uses the mount itself: who waits
 * for an answer there cannot end before all have closed the kernel's end. */
#define _GNU_SOURCE
#include "mfs/client/parts.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAUSE 200 /* ms between two servers */

/* Passes on that it is to end. Returns how it has ended, as waitpid() reports it. */
static int wait_for(pid_t server, const sigset_t *signals)
{
	int status;

	while (waitpid(server, &status, WNOHANG) != server)
		if (sigwaitinfo(signals, NULL) != SIGCHLD)
			kill(server, SIGINT);
	return status;
}

int mfs_keep(int *device)
{
	pid_t supervisor = getpid();
	sigset_t signals;

	*device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (*device < 0)
		return -errno;
	mfs_kept = mmap(NULL, sizeof *mfs_kept, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (mfs_kept == MAP_FAILED)
		return -errno;
	sigemptyset(&signals);
	sigaddset(&signals, SIGCHLD);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	for (;;) {
		pid_t server = fork();
		if (server < 0)
			return -errno;
		if (!server) {
			sigprocmask(SIG_UNBLOCK, &signals, NULL);
			prctl(PR_SET_PDEATHSIG, SIGINT);
			prctl(PR_SET_NAME, "mfs-worker");
			if (getppid() != supervisor)
				_exit(0);
			return 0;
		}
		int status = wait_for(server, &signals);
		/* It has ended in order, or nobody can go on from where it was. */
		if ((WIFEXITED(status) && !WEXITSTATUS(status)) || !mfs_kept->mounted)
			_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
		mfs_log("a server has ended (%d): another goes on", status);
		usleep(PAUSE * 1000);
	}
}
