// fuse_alone DIRECTORY: a file system there with one file, `large`, of which it says that it has been written, and keeps nothing: what FUSE
// itself costs anyone who writes. It asks for requests as large as mfs-client does, and for the file to be written past the page cache. Ends when
// it is unmounted.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST (1u << 20) // bytes of one write
#define ROOT FUSE_ROOT_ID
#define LARGE 2u // the file's number

static int device;

static void answer(const struct fuse_in_header *in, int error, const void *body, size_t size)
{
	struct fuse_out_header header = {.len = (uint32_t)(sizeof header + size), .error = error, .unique = in->unique};
	struct iovec parts[] = {{&header, sizeof header}, {(void *)body, size}};
	if (writev(device, parts, 2) < 0 && errno != ENOENT) // it is not waited for any more
		exit(1);
}

static struct fuse_attr attributes(uint64_t node)
{
	return (struct fuse_attr){.ino = node, .mode = node == ROOT ? S_IFDIR | 0755 : S_IFREG | 0644, .nlink = 1, .blksize = 4096};
}

static void serve(const struct fuse_in_header *in)
{
	const void *asked = in + 1;
	struct fuse_init_out agreed = {
		.major = FUSE_KERNEL_VERSION,
		.minor = FUSE_KERNEL_MINOR_VERSION,
		.max_write = MOST,
		.max_pages = MOST / 4096,
		.time_gran = 1,
		.flags = FUSE_ASYNC_READ | FUSE_ATOMIC_O_TRUNC | FUSE_BIG_WRITES | FUSE_MAX_PAGES,
		.max_background = 16,
	};
	struct fuse_entry_out entry = {.nodeid = LARGE, .entry_valid = 60, .attr_valid = 60, .attr = attributes(LARGE)};
	struct fuse_attr_out attr = {.attr_valid = 60, .attr = attributes(in->nodeid)};
	struct fuse_open_out open = {.open_flags = FOPEN_DIRECT_IO};
	struct fuse_statfs_out room = {.st = {.bsize = 4096, .frsize = 4096, .namelen = 255}};
	struct fuse_write_out written;

	switch (in->opcode) {
	case FUSE_INIT:
		answer(in, 0, &agreed, sizeof agreed);
		break;
	case FUSE_LOOKUP:
		if (strcmp(asked, "large"))
			answer(in, -ENOENT, NULL, 0);
		else
			answer(in, 0, &entry, sizeof entry);
		break;
	case FUSE_GETATTR:
		answer(in, 0, &attr, sizeof attr);
		break;
	case FUSE_STATFS:
		answer(in, 0, &room, sizeof room);
		break;
	case FUSE_OPEN:
		answer(in, 0, &open, sizeof open);
		break;
	case FUSE_WRITE:
		written = (struct fuse_write_out){.size = ((const struct fuse_write_in *)asked)->size};
		answer(in, 0, &written, sizeof written);
		break;
	case FUSE_RELEASE:
	case FUSE_FLUSH:
	case FUSE_FSYNC:
		answer(in, 0, NULL, 0);
		break;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		break;
	default:
		answer(in, -ENOSYS, NULL, 0);
	}
}

int main(int argc, char **argv)
{
	const size_t room = MOST + (64u << 10);
	char options[128], *buffer = malloc(room);

	device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other", device);
	if (argc != 2 || !buffer || device < 0 || mount("fuse_alone", argv[1], "fuse", MS_NOSUID | MS_NODEV, options)) {
		fprintf(stderr, "fuse_alone: %s: %s\n", argc == 2 ? argv[1] : "usage: fuse_alone DIRECTORY", strerror(errno));
		return 1;
	}
	for (;;) {
		ssize_t size = read(device, buffer, room);
		if (size < 0 && (errno == ENOENT || errno == EINTR || errno == EAGAIN))
			continue;
		if (size < (ssize_t)sizeof(struct fuse_in_header))
			return 0;
		serve((const struct fuse_in_header *)buffer);
	}
}
