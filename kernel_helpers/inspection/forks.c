/* Which process has forked which, in the order in which they did: what the kernel writes of each birth into a ring for each processor
 * (perf_event_open(2), PERF_RECORD_FORK). Nobody is woken; who wants to know takes what is there. Processes are counted as in the pid
 * namespace of the thread that opens the rings; those of others are left out. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096u
#define RING (32 * PAGE)        /* bytes of each: more than two thousand births */

struct birth {
	uint64_t time;
	uint32_t parent, child;
};

struct ring {
	int fd;
	struct perf_event_mmap_page *page;
};

struct forks {
	unsigned count;
	struct ring rings[];
};

void forks_close(struct forks *f)
{
	for (unsigned i = 0; i < f->count; i++) {
		if (f->rings[i].page)
			munmap(f->rings[i].page, PAGE + RING);
		close(f->rings[i].fd);
	}
	free(f);
}

static int open_ring(struct ring *ring, unsigned processor)
{
	struct perf_event_attr attributes = {.type = PERF_TYPE_SOFTWARE,
	                                     .size = sizeof attributes,
	                                     .config = PERF_COUNT_SW_DUMMY,
	                                     .task = 1,
	                                     .watermark = 1,
	                                     .wakeup_watermark = UINT32_MAX};
	ring->fd = syscall(SYS_perf_event_open, &attributes, -1, processor, -1, PERF_FLAG_FD_CLOEXEC);
	if (ring->fd < 0)
		return -errno;
	void *page = mmap(NULL, PAGE + RING, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, 0);
	if (page == MAP_FAILED) {
		int error = -errno;
		close(ring->fd);
		return error;
	}
	ring->page = page;
	return 0;
}

/* NULL with errno: it cannot be known here (EACCES, EPERM, ENOSYS, ENOENT, ...). */
struct forks *forks_open(void)
{
	long processors = sysconf(_SC_NPROCESSORS_CONF);
	struct forks *f = calloc(1, sizeof *f + processors * sizeof(struct ring));
	int error = f ? 0 : -ENOMEM;
	for (long i = 0; i < processors && !error; i++) {
		error = open_ring(&f->rings[f->count], i);
		if (error == -ENODEV)
			error = 0;          /* a processor that is not there */
		else if (!error)
			f->count++;
	}
	if (!error)
		return f;
	if (f)
		forks_close(f);
	errno = -error;
	return NULL;
}

static void copy(const struct ring *ring, uint64_t at, void *to, size_t length)
{
	const unsigned char *data = (const unsigned char *)ring->page + PAGE;
	for (size_t i = 0; i < length; i++)
		((unsigned char *)to)[i] = data[(at + i) % RING];
}

static int by_time(const void *one, const void *other)
{
	const struct birth *a = one, *b = other;
	return a->time < b->time ? -1 : a->time > b->time;
}

/* Takes the births of processes since the last time, at most `room` of them, the oldest first. `lost`: whether some are missing. How many. */
unsigned forks_take(struct forks *f, struct birth *births, unsigned room, int *lost)
{
	unsigned n = 0;
	*lost = 0;
	for (unsigned i = 0; i < f->count; i++) {
		struct ring *ring = &f->rings[i];
		uint64_t head = __atomic_load_n(&ring->page->data_head, __ATOMIC_ACQUIRE), at = ring->page->data_tail;
		while (at < head) {
			struct perf_event_header header = {0};
			struct {
				uint32_t pid, ppid, tid, ptid;
				uint64_t time;
			} record = {0};
			copy(ring, at, &header, sizeof header);
			if (header.size < sizeof header)
				break;
			if (header.type == PERF_RECORD_LOST)
				*lost = 1;
			if (header.type == PERF_RECORD_FORK && header.size >= sizeof header + sizeof record) {
				copy(ring, at + sizeof header, &record, sizeof record);
				if (record.pid != record.ppid && (int32_t)record.pid > 0 && (int32_t)record.ppid > 0) {
					if (n < room)
						births[n++] = (struct birth){record.time, record.ppid, record.pid};
					else
						*lost = 1;
				}
			}
			at += header.size;
		}
		__atomic_store_n(&ring->page->data_tail, head, __ATOMIC_RELEASE);
	}
	qsort(births, n, sizeof *births, by_time);
	return n;
}
