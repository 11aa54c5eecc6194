/* mfs-client OPTIONS: mounts the files of one peer.
 *
 *   --mount PATH                     where
 *   --peer NAME --address ADDRESS --port PORT   whose: the node that its certificate must name, and where it is
 *   --pki DIRECTORY                  certificates of the cluster
 *   --figures FILE                   what it has done, for mosd to read, if that is wanted
 *   --timeout SECONDS                for which a peer that is lost is waited for; 0: without end
 *   --setuid                         setuid bits count
 *   --plain                          no encryption, if the peer does not want it either
 *   --with-parent                    ends with the thread that has started it, also if others have its standard input
 *   --keep                           in two processes: when the one that serves dies, another goes on where it was
 *
 * Started by mosd, as root; unmounts and ends with it (when its standard input does), or on SIGINT or SIGTERM. */
#define _GNU_SOURCE
#include "mfs/client/parts.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define LOOK 250        /* ms */

/* Memory that others see by that descriptor, which is closed; -1: nobody does. NULL: errno says why. */
static void *shared(int fd, size_t size)
{
	void *memory = MAP_FAILED;

	if (fd < 0 || !ftruncate(fd, (off_t)size))
		memory = mmap(NULL, size, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	return memory == MAP_FAILED ? NULL : memory;
}

static int begin_memory(void)
{
	int figures = -1;

	if (mfs_options.figures && (figures = open(mfs_options.figures, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) < 0)
		return -errno;
	mfs_figures = shared(figures, sizeof *mfs_figures);
	return mfs_figures ? 0 : -errno;
}

/* The device's number is known from the table of mounts: nobody may have to answer. */
static void read_further_ahead(void)
{
	char line[8192], path[4096], number[32], knob[128];
	FILE *list = fopen("/proc/self/mountinfo", "re");
	bool found = false;

	while (list && fgets(line, sizeof line, list))
		if (sscanf(line, "%*u %*u %31s %*s %4095s", number, path) == 2 && !strcmp(path, mfs_options.mount)) {
			snprintf(knob, sizeof knob, "/sys/class/bdi/%s/read_ahead_kb", number);
			found = true; /* the last one is on top */
		}
	if (list)
		fclose(list);
	int fd = found ? open(knob, O_WRONLY | O_CLOEXEC) : -1;
	if (fd >= 0) {
		if (dprintf(fd, "%u", MFS_READ_AHEAD) < 0)
			mfs_log("%s: %s", knob, strerror(errno));
		close(fd);
	}
}

static int begin_mount(int *device)
{
	char options[256], source[MFS_NAME_MOST + 2];

	if (*device < 0)
		*device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (*device < 0)
		return -errno;
	if (mfs_kept->mounted)
		return 0;
	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions", *device);
	snprintf(source, sizeof source, "%s:/", mfs_options.peer);
	if (mount(source, mfs_options.mount, "fuse.mfs", MS_NODEV | (mfs_options.setuid ? 0 : MS_NOSUID), options))
		return -errno;
	mfs_kept->mounted = true;
	return 0;
}

static void serve_until_the_end(int signals)
{
	struct pollfd watched[] = {{.fd = signals, .events = POLLIN}, {.fd = 0, .events = POLLIN}};

	while (poll(watched, 2, LOOK) <= 0)
		mfs_link_look();
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"mount", 1, 0, 'm'}, {"peer", 1, 0, 'n'},        {"address", 1, 0, 'a'}, {"port", 1, 0, 'p'},
		{"pki", 1, 0, 'k'},   {"figures", 1, 0, 'f'},     {"timeout", 1, 0, 't'}, {"setuid", 0, 0, 's'},
		{"plain", 0, 0, 'P'}, {"with-parent", 0, 0, 'w'}, {"keep", 0, 0, 'K'},    {0},
	};
	int device = -1, result;
	sigset_t ends;

	mfs_program = "mfs-client";
	for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
		switch (option) {
		case 'm':
			mfs_options.mount = optarg;
			break;
		case 'n':
			mfs_about = mfs_options.peer = optarg;
			break;
		case 'a':
			mfs_options.address = optarg;
			break;
		case 'p':
			mfs_options.port = optarg;
			break;
		case 'k':
			mfs_options.pki = optarg;
			break;
		case 'f':
			mfs_options.figures = optarg;
			break;
		case 't':
			mfs_options.timeout = (long long)(atof(optarg) * 1000);
			break;
		case 's':
			mfs_options.setuid = true;
			break;
		case 'P':
			mfs_options.plain = true;
			break;
		case 'w':
			prctl(PR_SET_PDEATHSIG, SIGINT);
			break;
		case 'K':
			mfs_options.keep = true;
			break;
		default:
			return 64;
		}
	}
	if (!mfs_options.mount || !mfs_options.peer || !mfs_options.address || !mfs_options.port || !mfs_options.pki) {
		mfs_log("usage: mfs-client --mount PATH --peer NAME --address ADDRESS --port PORT --pki DIRECTORY");
		return 64;
	}
	if (mfs_options.keep && (result = mfs_keep(&device)))
		return mfs_fail("/dev/fuse", -result);
	sigemptyset(&ends);
	if (!mfs_options.keep) /* else it does not come from who may end all */
		sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGINT);
	sigprocmask(SIG_BLOCK, &ends, NULL);
	signal(SIGPIPE, SIG_IGN);
	int signals = signalfd(-1, &ends, SFD_CLOEXEC);
	if (signals < 0 || (result = begin_memory()) || (result = mfs_pages_begin()))
		return mfs_fail("memory", signals < 0 ? errno : -result);
	bool goes_on = mfs_kept->mounted;
	if (mfs_link_begin())
		return 1;
	if ((result = begin_mount(&device)))
		return mfs_fail(mfs_options.mount, -result);
	if ((result = mfs_fuse_begin(device)))
		return mfs_fail("/dev/fuse", -result);
	if (!goes_on)
		read_further_ahead();
	else if ((result = mfs_fuse_ask_again()) && result != -ENODEV)
		mfs_log("what the one before has not answered is not asked again: %s", strerror(-result));
	printf("ready\n");
	fflush(stdout);
	serve_until_the_end(signals);
	/* By force: the connection is aborted, which answers each process that waits. One of our own threads may wait for such a process (pages
	 * that are taken away while they are read), and as long as it does the kernel's end stays open. */
	if (umount2(mfs_options.mount, MNT_FORCE | UMOUNT_NOFOLLOW))
		umount2(mfs_options.mount, MNT_DETACH | UMOUNT_NOFOLLOW);
	mfs_link_end();
	_exit(0);
}
