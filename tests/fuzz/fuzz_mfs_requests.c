/* mfs-server: requests as a hostile peer may send them, on a file system of this program's own that is gone with it. Each is as large as it is
 * in memory, so that a read beyond is detected. */
#define _GNU_SOURCE
#include "mfs/server/serving/serving.c"
#include "input.h"
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT "/mnt"
#define REQUESTS 48

#define OPEN_MOST 64

static struct mfs_session *session;
static uint64_t opened[OPEN_MOST]; /* by the requests of this input */
static unsigned opened_count;

static void require(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		abort();
	}
}

/* Reads what the session says to its peer. */
static void *drain(void *argument)
{
	char bytes[65536];

	while (recv((int)(intptr_t)argument, bytes, sizeof bytes, 0) > 0)
		;
	return NULL;
}

static void fill(void)
{
	char path[64];

	for (int i = 0; i < 4; i++) {
		snprintf(path, sizeof path, EXPORT "/out/f%d", i);
		int fd = open(path, O_RDWR | O_CREAT, 0666);
		require(fd >= 0 && write(fd, path, sizeof path) == sizeof path, path);
		close(fd);
		snprintf(path, sizeof path, EXPORT "/out/d%d", i);
		mkdir(path, 0777);
		snprintf(path, sizeof path, EXPORT "/out/l%d", i);
		if (symlink(EXPORT "/secret", path)) {
			/* it is there */
		}
	}
}

static void find_session(struct mfs_session *one, void *argument)
{
	(void)argument;
	session = one;
}

static void connect_one(enum mfs_role role)
{
	struct mfs_hello hello = {.magic = MFS_MAGIC, .version = MFS_VERSION, .role = role, .able = MFS_TAKES_BESIDE, .session = "s"};
	struct mfs_stream stream = {.peer = "n9"};
	pthread_t thread;
	int ends[2];

	require(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
	stream.fd = ends[0];
	mfs_serve(&stream, &hello);
	require(!pthread_create(&thread, NULL, drain, (void *)(intptr_t)ends[1]), "thread");
}

/* As server.c, which is not linked, has them. */
const char *mfs_run_directory;

struct mfs_counters *mfs_counters_take(const char *peer)
{
	static struct mfs_counters counters;

	(void)peer;
	return &counters;
}

static int begin_server(void)
{
	int result = mfs_turns_begin(mfs_session_add_thread);

	if (!result)
		result = mfs_leases_begin();
	return result ? result : mfs_watch_begin();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static char *paths[] = {EXPORT "/out", EXPORT "/fixed"};
	static const bool read_only[] = {false, true};
	struct rlimit size = {1 << 20, 1 << 20}, open_files = {4096, 4096};
	const char *what;

	(void)argc, (void)argv;
	require(!unshare(CLONE_NEWNS) && !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), "a mount namespace");
	require(!mount("fuzz", EXPORT, "tmpfs", MS_NODEV, "size=24m,nr_inodes=4000,mode=755"), EXPORT);
	signal(SIGXFSZ, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	setrlimit(RLIMIT_NOFILE, &open_files);
	mfs_nodes_open_most = 512;
	mfs_places_begin(4096);
	mkdir(EXPORT "/out", 0777);
	chmod(EXPORT "/out", 0777);
	mkdir(EXPORT "/fixed", 0755);
	mkdir(EXPORT "/run", 0700);
	int secret = open(EXPORT "/secret", O_WRONLY | O_CREAT, 0600);
	require(write(secret, "secret", 6) == 6 && !close(secret), "secret");
	fill();
	mfs_run_directory = EXPORT "/run";
	mfs_own_files = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	require(!mfs_exports_begin(EXPORT "/run/root", paths, read_only, 2, &what), "exports");
	require(!begin_server(), "the server");
	mfs_sessions_begin();
	connect_one(MFS_REQUESTS);
	connect_one(MFS_REPLIES);
	mfs_sessions_each(find_session, NULL);
	require(session && session->serving, "a session");
	setrlimit(RLIMIT_FSIZE, &size); /* what the server keeps of a session is there by now */
	mfs_thread_begin(session);
	require(!mfs_identity_begin(true), "an identity");
	return 0;
}

/* What an opcode's argument begins with: numbers that mean something, from few bytes of input. */
static size_t make_argument(struct input *input, uint32_t opcode, char *argument)
{
	static const char *const names[] = {"f0",
	                                    "f1",
	                                    "d0",
	                                    "d1",
	                                    "l0",
	                                    "..",
	                                    ".",
	                                    "a/b",
	                                    "new",
	                                    "user.x",
	                                    "security.capability",
	                                    "tmp",
	                                    "out",
	                                    "",
	                                    "system.posix_acl_access",
	                                    "trusted.x"};
	static const uint64_t numbers[] = {0,       1,       2,       3,          4,          7,          255,   4096,
	                                   1 << 16, 1 << 20, 1 << 24, 0x7fffffff, 0xffffffff, 1ull << 62, ~0ull, 0100644};
	uint8_t what = input_number(input, 1);
	size_t size = 0;

	(void)opcode;
	for (unsigned i = 0; i < (what & 15u); i++) {
		uint8_t kind = input_number(input, 1);
		uint64_t number = kind & 0x80 ? input_number(input, 8) : kind & 0x20 ? opened[(kind & 15) % OPEN_MOST] : numbers[kind & 15];
		size_t width = kind & 0x40 ? 8 : 4;
		memcpy(argument + size, &number, width);
		size += width;
	}
	for (unsigned i = 0; i < (what >> 4 & 3u); i++) {
		uint8_t kind = input_number(input, 1);
		if (kind & 0x80) {
			size_t length = kind & 0x7f;
			memset(argument + size, 'x', length);
			size += length;
		} else {
			const char *name = names[kind & 15];
			memcpy(argument + size, name, strlen(name) + 1);
			size += strlen(name) + !(kind & 0x40);
		}
	}
	if (what & 0x40) {
		size_t length = input_number(input, 1) * 2;
		input_take(input, argument + size, length);
		size += length;
	}
	return size;
}

static void note_opened(const struct mfs_request *request)
{
	const struct fuse_out_header *header = (const struct fuse_out_header *)request->buffer;
	uint32_t opcode = request->in->opcode;
	size_t at = opcode == FUSE_CREATE || opcode == FUSE_TMPFILE ? sizeof(struct fuse_entry_out) : 0;

	if (header->unique == request->in->unique && !header->error && opened_count < OPEN_MOST &&
	    (at || opcode == FUSE_OPEN || opcode == FUSE_OPENDIR))
		opened[opened_count++] = ((const struct fuse_open_out *)(request->reply + at))->fh;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t input_size)
{
	static char buffer[MFS_FRAME_MOST], argument[4096];
	static uint64_t unique = 2;
	struct input input = {data, input_size};

	for (int i = 0; i < REQUESTS && input.left; i++) {
		struct fuse_in_header in = {.opcode = input_number(&input, 1), .unique = unique += 2, .pid = 1};
		uint8_t what = input_number(&input, 1);
		in.nodeid = what & 0x80 ? input_number(&input, 8) : (uint64_t)(what & 15);
		in.uid = what & 0x40 ? 65534 : 0;
		in.gid = what & 0x20 ? 65534 : 0;
		if (in.opcode >= 60)
			in.opcode = (uint32_t[]){
				MFS_PING, MFS_ACK, FUSE_FORGET, FUSE_BATCH_FORGET, FUSE_INTERRUPT, 52, 4096, ~0u}[in.opcode % 8];
		size_t size = make_argument(&input, in.opcode, argument);
		/* A wait for a lock is in a thread of its own, and its memory is not ours to end. */
		if (in.opcode == FUSE_SETLKW)
			continue;
		in.len = (uint32_t)(sizeof in + size);
		char *frame = malloc(sizeof in + size + 1);
		memcpy(frame, &in, sizeof in);
		memcpy(frame + sizeof in, argument, size);
		frame[sizeof in + size] = 0;
		struct mfs_request request = {
			.session = session,
			.in = (struct fuse_in_header *)frame,
			.argument = frame + sizeof in,
			.size = size,
			.buffer = buffer,
			.reply = buffer + HEADROOM,
			.room = MFS_DATA_MOST,
			.leads = false,
			.news = mfs_session_news(session),
			.connection = session->connections,
		};
		session->heard = mfs_now();
		serve(&request);
		note_opened(&request);
		free(frame);
	}
	mfs_be_self();
	while (opened_count)
		mfs_handle_release(&session->handles, opened[--opened_count]);
	/* No request has left what is exported, and none has changed what is read-only. */
	struct stat secret;
	require(!stat(EXPORT "/secret", &secret) && secret.st_size == 6 && secret.st_mode == (S_IFREG | 0600) && !secret.st_uid,
	        "the secret");
	require(!rmdir(EXPORT "/fixed") && !mkdir(EXPORT "/fixed", 0755), "what is read-only");
	return 0;
}
