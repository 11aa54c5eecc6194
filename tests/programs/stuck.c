/* stuck DIRECTORY: mounts a file system of its own there (FUSE, in a user namespace), and has the kernel hold the lock of its memory for as
 * long as that does not answer: a mapping waits for a page to be written back. DIRECTORY.server has the pid of the process that does not
 * answer; DIRECTORY.stuck is made just before. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static void set(const char *path, const char *value)
{
	int file = open(path, O_WRONLY | O_CREAT, 0644);
	if (file < 0 || write(file, value, strlen(value)) < 0)
		exit(1);
	close(file);
}

static struct fuse_attr attributes(uint64_t node)
{
	return (struct fuse_attr){.ino = node, .mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0644, .nlink = 1, .size = 4096};
}

/* A directory with one file, whose second opener bypasses the cache; what is to be written is never taken. */
static void serve(int device)
{
	static char request[1 << 20];
	alarm(30); /* whatever becomes of the process that started this one */
	for (int opens = 0;;) {
		struct {
			struct fuse_out_header head;
			char body[4096];
		} reply = {.head.len = sizeof reply.head};
		const struct fuse_in_header *head = (const void *)request;
		size_t size = 0;
		if (read(device, request, sizeof request) < 0 && errno != EINTR && errno != ENOENT)
			_exit(0);
		if (head->opcode == FUSE_WRITE || head->opcode == FUSE_FORGET || head->opcode == FUSE_INTERRUPT)
			continue;
		if (head->opcode == FUSE_INIT) {
			struct fuse_init_out made = {.major = 7, .minor = 31, .max_write = 4096, .flags = FUSE_WRITEBACK_CACHE};
			memcpy(reply.body, &made, size = sizeof made);
		} else if (head->opcode == FUSE_LOOKUP) {
			struct fuse_entry_out found = {.nodeid = 2, .attr_valid = 1000, .entry_valid = 1000, .attr = attributes(2)};
			memcpy(reply.body, &found, size = sizeof found);
		} else if (head->opcode == FUSE_GETATTR || head->opcode == FUSE_SETATTR) {
			struct fuse_attr_out attributes_out = {.attr_valid = 1000, .attr = attributes(head->nodeid)};
			memcpy(reply.body, &attributes_out, size = sizeof attributes_out);
		} else if (head->opcode == FUSE_OPEN) {
			struct fuse_open_out opened = {.fh = 1, .open_flags = opens++ ? FOPEN_DIRECT_IO : 0};
			memcpy(reply.body, &opened, size = sizeof opened);
		} else if (head->opcode == FUSE_READ)
			size = sizeof reply.body;
		else
			reply.head.error = -ENOSYS;
		reply.head.unique = head->unique;
		reply.head.len += size;
		if (write(device, &reply, reply.head.len) < 0 && errno != ENOENT)
			_exit(1);
	}
}

int main(int argc, char **argv)
{
	char text[4096];
	unsigned uid = getuid(), gid = getgid();
	if (argc != 2 || mkdir(argv[1], 0700) || unshare(CLONE_NEWUSER | CLONE_NEWNS))
		return 1;
	set("/proc/self/setgroups", "deny");
	snprintf(text, sizeof text, "%u %u 1", uid, uid);
	set("/proc/self/uid_map", text);
	snprintf(text, sizeof text, "%u %u 1", gid, gid);
	set("/proc/self/gid_map", text);
	int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	snprintf(text, sizeof text, "fd=%d,rootmode=40000,user_id=%u,group_id=%u", device, uid, gid);
	if (mount("stuck", argv[1], "fuse", MS_NOSUID | MS_NODEV, text))
		return 2;
	pid_t server = fork();
	if (!server)
		serve(device);
	close(device);
	char path[4096], number[16];
	snprintf(path, sizeof path, "%s.server", argv[1]);
	snprintf(number, sizeof number, "%d", server);
	set(path, number);
	snprintf(path, sizeof path, "%s/file", argv[1]);
	int file = open(path, O_RDWR);
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (page == MAP_FAILED)
		return 3;
	file = open(path, O_RDONLY);
	snprintf(path, sizeof path, "%s.stuck", argv[1]);
	set(path, "");
	page[0] = 1;
	page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
	return page == MAP_FAILED ? 4 : 5;
}
