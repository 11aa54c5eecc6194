/* mfs-server OPTIONS: shows the files of this node to the other nodes of the cluster.
 *
 *   --listen ADDRESS --port PORT   where mfs-client of other nodes connects
 *   --pki DIRECTORY                certificates of the cluster
 *   --run DIRECTORY                what outlives the server (a server that is started again goes on), and its figures in `server.figures`
 *   --export PATH, --read-only PATH   directories that others see
 *   --hide PATH                    what nobody sees, with all that is in it, whatever is exported
 *   --root-of NAME                 a node whose root is root here as well; `*`: each
 *   --plain                        no encryption, if the other side does not want it either
 *   --quiet MS                     for so long nobody else must have changed what a peer may remember
 *   --bound WHAT=ALL/EACH          what all peers, and each of them, may have at a time (places.c)
 *
 * Started by mosd, as root; ends with it (when its standard input does). Complaints go to standard error, a line each. */
#define _GNU_SOURCE
#include "mfs/server/pending.h"
#include "mfs/members.h"
#include "mfs/server/serving/serving.h"
#include "common/pacing.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define LOOK 250       /* ms */
#define ACCEPTED 16    /* connections that are taken at once: fewer than one address has places, so that who has come can speak */
/* Seconds within which the kernel keeps a connection that has said nothing to itself. A caller speaks first; so what is accepted in that time
 * has spoken, and no crowd of silent connections from a peer's address takes the peer's place before its first byte is read. */
#define FIRST_BYTE 3
#define DESCRIPTORS 32768 /* for which there is room from the beginning */

static bool plain; /* it need not be secret */

/* The pending connections are known by its descriptor, which must stay that connection's until it has left; or -1. */
static int dup_of(int fd)
{
	return fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

static void *meet(void *argument)
{
	int fd = (int)(intptr_t)argument;
	struct mfs_stream stream;
	struct mfs_hello hello;

	SSL_CTX *context = mfs_members_context();
	int result = mfs_stream_accept(&stream, context, dup_of(fd), plain, MFS_PENDING_PATIENCE);
	SSL_CTX_free(context);
	if (result) {
		mfs_pending_complain("stranger", fd, "refused: it has no certificate of this cluster that counts");
	} else {
		if (mfs_stream_read(&stream, &hello, sizeof hello) || hello.magic != MFS_MAGIC || hello.version != MFS_VERSION ||
		    (hello.role != MFS_REQUESTS && hello.role != MFS_REPLIES)) {
			mfs_pending_complain("protocol", fd, "refused: it speaks another protocol");
			mfs_stream_close(&stream);
		} else {
			mfs_pending_remove(fd);
			mfs_serve(&stream, &hello);
		}
	}
	mfs_pending_remove(fd);
	close(fd);
	return NULL;
}

/* It has said something. */
static void begin_to_meet(int fd)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, meet, (void *)(intptr_t)fd)) {
		mfs_pending_remove(fd);
		close(fd);
	} else {
		pthread_detach(thread);
	}
}

static int listen_at(const char *address, const char *port)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
	int one = 1, first_byte = FIRST_BYTE, fd;

	if (getaddrinfo(address, port, &hints, &found))
		return errno = EADDRNOTAVAIL, -1;
	fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	farhome_unpaced(fd);
	if (fd >= 0 && (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
	                setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &first_byte, sizeof first_byte) ||
	                bind(fd, found->ai_addr, found->ai_addrlen) || listen(fd, 1024))) {
		int reason = errno;
		close(fd);
		errno = reason;
		fd = -1;
	}
	freeaddrinfo(found);
	return fd;
}

static void on_wake(int number)
{
	(void)number;
}

static void begin_process(void)
{
	struct rlimit limit = {1 << 20, 1 << 20};
	struct sigaction wake = {.sa_handler = on_wake}; /* calls that wait return */

	if (setrlimit(RLIMIT_NOFILE, &limit) && !getrlimit(RLIMIT_NOFILE, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	getrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_cur / 4 < mfs_nodes_open_most)
		mfs_nodes_open_most = (unsigned)(limit.rlim_cur / 4);
	mfs_places_begin((unsigned)(limit.rlim_cur < 1u << 30 ? limit.rlim_cur : 1u << 30));
	/* As long as there is one thread, the table of descriptors grows at once; afterwards each time takes many milliseconds. */
	int high = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, limit.rlim_cur > DESCRIPTORS ? DESCRIPTORS - 1 : (int)limit.rlim_cur - 1);
	if (high >= 0)
		close(high);
	sigset_t breaks;
	sigemptyset(&breaks);
	sigaddset(&breaks, MFS_BREAK);
	sigaddset(&breaks, SIGIO);
	pthread_sigmask(SIG_BLOCK, &breaks, NULL); /* one thread waits for them */
	signal(SIGPIPE, SIG_IGN);
	sigaction(SIGUSR1, &wake, NULL);
	if (chdir("/"))
		mfs_log("/: %s", strerror(errno));
	mfs_own_files = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	umask(022); /* the way to exports is for everybody */
}

static void serve_until_the_end(int listener)
{
	struct pollfd watched[3 + MFS_PENDING_PLACES] = {
		{.fd = listener, .events = POLLIN}, {.fd = 0, .events = POLLIN}, {.fd = mfs_direct_mailbox(), .events = POLLIN}};
	long long looked = 0;

	for (;;) {
		unsigned strangers = mfs_pending_watched(watched + 3);
		if (poll(watched, 3 + strangers, LOOK) > 0) {
			if (watched[1].revents)
				return; /* mosd has ended */
			if (watched[2].revents)
				mfs_direct_take();
			mfs_pending_handle(watched + 3, strangers, begin_to_meet);
			for (int fd, count = 0;
			     watched[0].revents && count < ACCEPTED && (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0; count++)
				mfs_pending_add(fd);
		} else {
			mfs_pending_handle(watched + 3, strangers, begin_to_meet);
		}
		if (mfs_now() - looked < LOOK / 2)
			continue; /* strangers do not make the rest go round any faster */
		looked = mfs_now();
		if (mfs_members_look())
			mfs_sessions_drop_removed();
		mfs_sessions_look();
		mfs_direct_look();
	}
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"listen", 1, 0, 'l'}, {"port", 1, 0, 'p'},      {"pki", 1, 0, 'k'},   {"run", 1, 0, 'r'},
		{"export", 1, 0, 'e'}, {"read-only", 1, 0, 'o'}, {"hide", 1, 0, 'h'},  {"root-of", 1, 0, 'R'},
		{"plain", 0, 0, 'P'},  {"quiet", 1, 0, 'q'},     {"bound", 1, 0, 'b'}, {0},
	};
	const char *address = NULL, *port = "7227", *pki = NULL, *what;
	char *paths[MFS_EXPORTS], skeleton[4096], why[512];
	bool read_only[MFS_EXPORTS];
	unsigned count = 0;

	mfs_program = "mfs-server";
	for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
		switch (option) {
		case 'l':
			address = optarg;
			break;
		case 'p':
			port = optarg;
			break;
		case 'k':
			pki = optarg;
			break;
		case 'r':
			mfs_run_directory = optarg;
			break;
		case 'h':
			if (mfs_hide(optarg))
				return mfs_fail(optarg, E2BIG);
			break;
		case 'R':
			mfs_root_count(strcmp(optarg, "*") ? optarg : NULL);
			break;
		case 'P':
			plain = true;
			break;
		case 'b':
			if (!mfs_places_bound(optarg))
				return mfs_fail(optarg, EINVAL);
			break;
		case 'q':
			mfs_quiet = atoi(optarg);
			break;
		case 'e':
		case 'o':
			if (count == MFS_EXPORTS)
				return mfs_fail(optarg, E2BIG);
			read_only[count] = option == 'o';
			paths[count++] = optarg;
			break;
		default:
			return 64;
		}
	}
	if (!address || !pki || !mfs_run_directory) {
		mfs_log("usage: mfs-server --listen ADDRESS --port PORT --pki DIRECTORY --run DIRECTORY [--export PATH]...");
		return 64;
	}
	begin_process();
	snprintf(skeleton, sizeof skeleton, "%s/root", mfs_run_directory);
	mfs_hide_keys(pki);
	int result = mfs_exports_begin(skeleton, paths, read_only, count, &what);
	if (result == -EXDEV) {
		mfs_log("%s is farhome's own, or another node's, and is never shown to others", what);
		return 1;
	}
	if (result)
		return mfs_fail(what, -result);
	if ((result = mfs_counters_begin()))
		return mfs_fail(mfs_run_directory, -result);
	if (!mfs_members_begin(pki, 1, why, sizeof why)) {
		mfs_log("%s", why);
		return 1;
	}
	mfs_sessions_begin();
	if ((result = mfs_turns_begin(mfs_session_add_thread)))
		mfs_log("a client that asks for files that hang holds up others: %s", strerror(-result));
	/* Without either, peers remember nothing. */
	if ((result = mfs_leases_begin()) || (result = mfs_watch_begin()))
		mfs_log("files are asked for each time: %s", strerror(-result));
	if ((result = mfs_direct_begin()))
		mfs_log("no file is read where processes that are away are: %s", strerror(-result));
	int listener = listen_at(address, port);
	if (listener < 0)
		return mfs_fail(address, errno);
	printf("ready\n");
	fflush(stdout);
	serve_until_the_end(listener);
	_exit(0); /* without waiting for threads: what is to be kept is in mapped files */
}
