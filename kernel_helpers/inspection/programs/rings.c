/* See rings.h. */
#define _GNU_SOURCE
#include "inspection/programs/rings.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096u
#define RING (32 * PAGE) /* bytes of each */

static void copy(const struct ring *ring, uint64_t at, void *to, size_t length)
{
	const unsigned char *data = (const unsigned char *)ring->page + PAGE;

	for (size_t i = 0; i < length; i++)
		((unsigned char *)to)[i] = data[(at + i) % RING];
}

/* One record, if it is of use. Returns its length; 0: there is none. */
static unsigned parse(const struct ring *ring, uint64_t at, struct record *record, int *is_one, int *lost)
{
	struct perf_event_header header = {0};
	struct {
		uint32_t pid, ppid, tid, ptid;
		uint64_t time;
	} task = {0};
	struct {
		uint32_t pid, tid;
	} comm = {0};

	copy(ring, at, &header, sizeof header);
	*is_one = 0;
	if (header.size < sizeof header)
		return 0;
	if (header.type == PERF_RECORD_LOST)
		*lost = 1;
	if ((header.type == PERF_RECORD_FORK || header.type == PERF_RECORD_EXIT) && header.size >= sizeof header + sizeof task) {
		copy(ring, at + sizeof header, &task, sizeof task);
		int is_birth = header.type == PERF_RECORD_FORK;
		*is_one = (int32_t)task.pid > 0 && (is_birth ? task.pid != task.ppid : task.pid == task.tid);
		*record = (struct record){task.time, task.pid, task.ppid, is_birth ? BIRTH : END};
	}
	if (header.type == PERF_RECORD_COMM && header.misc & PERF_RECORD_MISC_COMM_EXEC &&
	    header.size >= sizeof header + sizeof comm + sizeof record->time) {
		copy(ring, at + sizeof header, &comm, sizeof comm);
		copy(ring, at + header.size - sizeof record->time, &record->time, sizeof record->time); /* sample_id_all */
		record->pid = comm.pid;
		record->what = EXECUTION;
		*is_one = (int32_t)comm.pid > 0;
	}
	return header.size;
}

unsigned ring_take(struct ring *ring, struct record *records, unsigned room, int *lost)
{
	uint64_t head = __atomic_load_n(&ring->page->data_head, __ATOMIC_ACQUIRE), at = ring->page->data_tail;
	unsigned n = 0;

	while (at < head) {
		int is_one;
		struct record record = {0};
		unsigned length = parse(ring, at, &record, &is_one, lost);
		if (!length)
			break;
		if (is_one && n < room)
			records[n++] = record;
		else if (is_one)
			*lost = 1;
		at += length;
	}
	__atomic_store_n(&ring->page->data_tail, head, __ATOMIC_RELEASE);
	return n;
}

void ring_switch(const struct ring *ring, int on)
{
	ioctl(ring->fd, on ? PERF_EVENT_IOC_ENABLE : PERF_EVENT_IOC_DISABLE, 0);
}

void ring_close(struct ring *ring)
{
	munmap(ring->page, PAGE + RING);
	close(ring->fd);
}

int ring_open(struct ring *ring, int processor, int epoll)
{
	struct perf_event_attr attributes = {.type = PERF_TYPE_SOFTWARE,
	                                     .size = sizeof attributes,
	                                     .config = PERF_COUNT_SW_DUMMY,
	                                     .sample_type = PERF_SAMPLE_TIME,
	                                     .disabled = 1,
	                                     .task = 1,
	                                     .comm = 1,
	                                     .comm_exec = 1,
	                                     .sample_id_all = 1,
	                                     .watermark = 1,
	                                     .wakeup_watermark = 1};
	struct epoll_event ready = {.events = EPOLLIN};

	ring->fd = (int)syscall(SYS_perf_event_open, &attributes, -1, processor, -1, PERF_FLAG_FD_CLOEXEC);
	if (ring->fd < 0)
		return errno == ENODEV ? 0 : -errno; /* a processor that is not there */
	ring->page = mmap(NULL, PAGE + RING, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, 0);
	if (ring->page == MAP_FAILED || epoll_ctl(epoll, EPOLL_CTL_ADD, ring->fd, &ready)) {
		int error = -errno;
		if (ring->page != MAP_FAILED)
			munmap(ring->page, PAGE + RING);
		close(ring->fd);
		return error;
	}
	return 1;
}
