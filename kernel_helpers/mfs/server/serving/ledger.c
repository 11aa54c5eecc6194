/* What a peer's requests have changed is remembered with its answer, in a mapped file. If the connection is lost, or this server, the peer's
 * kernel asks again, under the same number, whatever has not been answered: what was done is answered from here, what is under way when it is
 * done, what was not begun is done now, and what nobody knows any more is an error. Nothing is done twice. */
#define _GNU_SOURCE
#include "mfs/server/serving/serving.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define ENTRIES 4096
#define REPLY_MOST 224

struct mfs_ledger {
	uint64_t unique; /* 0: unused */
	uint32_t done, size;
	uint32_t begun_by; /* which server */
	uint32_t again; /* it was asked again while it was under way */
	char reply[REPLY_MOST]; /* header and all */
};

static uint32_t mark;

static void make_mark(void)
{
	if (getrandom(&mark, sizeof mark, 0) != sizeof mark || !mark)
		mark = (uint32_t)getpid();
}

/* Another one in each server. */
static uint32_t own_mark(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, make_mark);
	return mark;
}

static bool is_remembered(uint32_t opcode)
{
	switch (opcode) {
	case FUSE_SETATTR:
	case FUSE_SYMLINK:
	case FUSE_MKNOD:
	case FUSE_MKDIR:
	case FUSE_UNLINK:
	case FUSE_RMDIR:
	case FUSE_RENAME:
	case FUSE_RENAME2:
	case FUSE_LINK:
	case FUSE_OPEN:
	case FUSE_CREATE:
	case FUSE_TMPFILE:
	case FUSE_WRITE:
	case FUSE_RELEASE:
	case FUSE_SETXATTR:
	case FUSE_REMOVEXATTR:
	case FUSE_FALLOCATE:
	case FUSE_COPY_FILE_RANGE:
	case FUSE_OPENDIR:
	case FUSE_RELEASEDIR:
		return true;
	}
	return false;
}

static struct mfs_ledger *entry_of(struct mfs_ledger *ledger, uint64_t unique)
{
	return &ledger[(unique & ~MFS_AGAIN) / 2 % ENTRIES]; /* the kernel counts in steps of two */
}

struct mfs_ledger *mfs_ledger_begin(const char *path)
{
	const size_t size = ENTRIES * sizeof(struct mfs_ledger);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	struct mfs_ledger *ledger = MAP_FAILED;

	if (fd >= 0 && !ftruncate(fd, (off_t)size))
		ledger = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	return ledger == MAP_FAILED ? NULL : ledger;
}

void mfs_ledger_end(struct mfs_ledger *ledger)
{
	munmap(ledger, ENTRIES * sizeof(struct mfs_ledger));
}

bool mfs_ledger_settles(struct mfs_ledger *ledger, struct mfs_request *request)
{
	uint64_t unique = request->in->unique;
	struct mfs_ledger *entry = entry_of(ledger, unique);

	if (!is_remembered(request->in->opcode))
		return false;
	if (unique & MFS_AGAIN && entry->unique >= (unique & ~MFS_AGAIN)) {
		struct fuse_out_header *header = (struct fuse_out_header *)request->buffer;
		bool is_same = entry->unique == (unique & ~MFS_AGAIN);
		if (is_same && entry->begun_by == own_mark())
			__atomic_store_n(&entry->again, 1, __ATOMIC_SEQ_CST);
		bool is_known = is_same && __atomic_load_n(&entry->done, __ATOMIC_SEQ_CST);
		if (!is_known && is_same && entry->begun_by == own_mark())
			return true; /* the thread that does it answers to this number */
		if (is_known)
			memcpy(request->buffer, entry->reply, entry->size);
		else
			*header = (struct fuse_out_header){.len = sizeof *header, .error = -EIO};
		header->unique = unique;
		mfs_send(request->session, header, header->len);
		return true;
	}
	entry->done = entry->again = 0;
	entry->begun_by = own_mark();
	__atomic_store_n(&entry->unique, unique & ~MFS_AGAIN, __ATOMIC_RELEASE);
	return false;
}

void mfs_ledger_note(struct mfs_ledger *ledger, const struct mfs_request *request)
{
	struct fuse_out_header *header = (struct fuse_out_header *)request->buffer;
	struct mfs_ledger *entry = entry_of(ledger, header->unique);

	if (!is_remembered(request->in->opcode) || entry->unique != (header->unique & ~MFS_AGAIN) || header->len > REPLY_MOST)
		return;
	memcpy(entry->reply, header, header->len);
	entry->size = header->len;
	__atomic_store_n(&entry->done, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&entry->again, __ATOMIC_SEQ_CST))
		header->unique |= MFS_AGAIN;
}
