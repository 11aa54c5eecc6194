/* Direct files: a process of ours that is away has a file open, and the node where it is reads it through us (docs/files.md).
 *
 * Its deputy deposits the open file here, as a descriptor that leads to nothing but it, under a token: sent to a socket that root alone can
 * reach. The peer that the token is for looks it up in the root, and may read that file from then on, whatever we export; no more. */
#define _GNU_SOURCE
#include "mfs/server/operations/operations.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PREFIX ".farhome-direct-"
#define TOKEN 32    /* characters */
#define KEPT 30000  /* ms for which a token may be looked up */
#define MOST 4096
#define MOST_EACH 1024 /* for one peer */

struct message {
	char token[TOKEN];
	char peer[MFS_NAME_MOST];
};

struct deposit {
	struct message about;
	int fd; /* O_PATH */
	long long until;
	struct deposit *next;
};

static int mailbox = -1;
static struct deposit *deposits;
static unsigned count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The next message, and the descriptor that came with it (-1: none); false: there is no more. */
static bool take(struct message *message, int *fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec where = {message, sizeof *message};
	struct msghdr header = {.msg_iov = &where, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	ssize_t size = recvmsg(mailbox, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	struct cmsghdr *given = size >= 0 ? CMSG_FIRSTHDR(&header) : NULL;

	*fd = -1;
	if (given && given->cmsg_level == SOL_SOCKET && given->cmsg_type == SCM_RIGHTS && given->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(fd, CMSG_DATA(given), sizeof *fd);
	if (size >= 0 && size != sizeof *message && *fd >= 0) {
		close(*fd);
		*fd = -1;
	}
	return size >= 0;
}

/* Under `lock`: deposits for that peer. */
static unsigned count_of(const char *peer)
{
	unsigned found = 0;

	for (const struct deposit *one = deposits; one; one = one->next)
		found += !strcmp(one->about.peer, peer);
	return found;
}

/* Under `lock`. */
static void empty_mailbox(void)
{
	struct message message;
	int fd;

	while (take(&message, &fd)) {
		message.peer[MFS_NAME_MOST - 1] = 0;
		struct deposit *fresh = fd >= 0 && count < MOST && count_of(message.peer) < MOST_EACH ? malloc(sizeof *fresh) : NULL;
		if (fresh) {
			*fresh = (struct deposit){.about = message, .fd = fd, .until = mfs_now() + KEPT, .next = deposits};
			deposits = fresh;
			count++;
		} else if (fd >= 0) {
			close(fd);
		}
	}
}

int mfs_direct_mailbox(void)
{
	return mailbox;
}

void mfs_direct_take(void)
{
	pthread_mutex_lock(&lock);
	empty_mailbox();
	pthread_mutex_unlock(&lock);
}

void mfs_direct_look(void)
{
	long long now = mfs_now();

	if (mailbox < 0)
		return;
	pthread_mutex_lock(&lock);
	empty_mailbox();
	for (struct deposit **at = &deposits; *at;) {
		struct deposit *one = *at;
		if (one->until > now) {
			at = &one->next;
			continue;
		}
		*at = one->next;
		close(one->fd);
		free(one);
		count--;
	}
	pthread_mutex_unlock(&lock);
}

bool mfs_direct_is(const struct mfs_request *request, const char *name)
{
	return request->in->nodeid == MFS_ROOT && !strncmp(name, PREFIX, strlen(PREFIX));
}

long mfs_direct_lookup(struct mfs_request *request, const char *name)
{
	const char *token = name + strlen(PREFIX);
	struct mfs_found found = {.fd = -1, .export = MFS_DIRECT};

	if (strlen(token) != TOKEN)
		return -ENOENT;
	pthread_mutex_lock(&lock);
	empty_mailbox();
	for (struct deposit *one = deposits; one && found.fd < 0; one = one->next)
		if (!memcmp(one->about.token, token, TOKEN) && !strcmp(one->about.peer, request->session->peer))
			found.fd = fcntl(one->fd, F_DUPFD_CLOEXEC, 0);
	pthread_mutex_unlock(&lock);
	if (found.fd < 0)
		return -ENOENT;
	if (fstat(found.fd, &found.stat) || !S_ISREG(found.stat.st_mode)) {
		close(found.fd);
		return -EACCES;
	}
	long result = mfs_tell(request, &found, (struct fuse_entry_out *)request->reply);
	return result ? result : (long)sizeof(struct fuse_entry_out);
}

int mfs_direct_begin(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	/* They lead to one file each, of which no more is to be had: nothing that could be moved out of anywhere. */
	mfs_exports.all[MFS_DIRECT] = (struct mfs_export){.fd = -1, .read_only = true, .whole = true};
	if (snprintf(address.sun_path, sizeof address.sun_path, "%s/direct", mfs_run_directory) >= (int)sizeof address.sun_path)
		return -ENAMETOOLONG;
	unlink(address.sun_path);
	mailbox = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	return mailbox < 0 || bind(mailbox, (struct sockaddr *)&address, sizeof address) ? -errno : 0;
}
