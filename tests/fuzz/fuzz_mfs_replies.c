/* mfs-client: what a hostile peer may send: replies to what the kernel has asked, notifications, and frames of our own. The kernel is a socket
 * of which at most what is there is read. */
#define _GNU_SOURCE
#include "mfs/client/link/connection.h"
#include "mfs/client/parts.h"
#include "input.h"

#include <linux/fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FRAMES 32

static int device[2];

static void require(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		abort();
	}
}

static void *be_kernel(void *unused)
{
	static char bytes[2 << 20];

	(void)unused;
	while (recv(device[1], bytes, sizeof bytes, 0) > 0)
		;
	return NULL;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static struct mfs_client_figures figures;
	static struct mfs_client_kept kept = {.minor = 45, .mounted = true, .has_session = true};
	pthread_t thread;

	(void)argc, (void)argv;
	mfs_options = (struct mfs_client_options){.mount = "/nonexistent", .peer = "n9", .plain = true, .timeout = 1000};
	mfs_figures = &figures;
	mfs_kept = &kept;
	require(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, device), "socketpair");
	require(!pthread_create(&thread, NULL, be_kernel, NULL) && !mfs_fuse_begin(device[0]), "threads");
	return 0;
}

/* A request of the kernel's, which is well formed. */
static void ask(struct input *input, uint64_t unique)
{
	struct {
		struct fuse_in_header in;
		char argument[256];
	} frame = {.in = {.len = sizeof frame, .unique = unique, .pid = 5}};

	frame.in.opcode = input_number(input, 1) % 52;
	frame.in.nodeid = 1 + input_number(input, 1) % 8;
	input_take(input, frame.argument, 16);
	mfs_unread_asked(&frame.in);
	for (unsigned i = 0; i < MFS_MEMORIES && !mfs_memories[i].asked(&frame.in); i++)
		;
}

static size_t make_frame(struct input *input, uint64_t unique, char *frame)
{
	struct fuse_out_header header = {.unique = unique};
	uint8_t what = input_number(input, 1);
	size_t size = sizeof header;

	if (what & 1) {
		header.unique = 0;
		header.error = what & 2 ? (int32_t)(MFS_PONG + input_number(input, 1) % 8) : (int32_t)(input_number(input, 1) % 12);
	} else if (what & 2) {
		header.unique = input_number(input, 8);
	}
	if (what & 4)
		header.unique |= MFS_BESIDE;
	if (what & 16)
		header.error = -(int32_t)input_number(input, 1);
	size_t bytes =
		what & 32 ? sizeof(struct fuse_entry_out) + sizeof(struct fuse_open_out) : input_number(input, 1) * (what & 64 ? 16 : 1);
	input_take(input, frame + size, bytes);
	size += bytes;
	header.len = what & 128 ? (uint32_t)input_number(input, 4) : (uint32_t)size;
	memcpy(frame, &header, sizeof header);
	return size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t input_size)
{
	struct input input = {data, input_size};
	static char buffer[MFS_FRAME_MOST], sent[FRAMES * 8192];
	static uint64_t unique = 2;
	int ends[2];
	size_t size = 0;

	for (int i = 0; i < FRAMES && input.left && size < 100000; i++) {
		unique += 2;
		if (input_number(&input, 1) & 3)
			ask(&input, unique);
		size += make_frame(&input, unique, sent + size);
	}
	require(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
	mfs_connection.from = (struct mfs_stream){.fd = ends[0]};
	require(send(ends[1], sent, size, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)size, "send");
	shutdown(ends[1], SHUT_WR);
	mfs_link_receive(buffer);
	mfs_stream_close(&mfs_connection.from);
	close(ends[1]);
	mfs_promises_forget();
	return 0;
}
