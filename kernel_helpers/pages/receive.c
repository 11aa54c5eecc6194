/* Pages out of the stream into a process: one thread takes frames from the socket, one writes them. */
#define _GNU_SOURCE
#include "pages/pages.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define SLOTS 4
#define FRAMES 8        /* that the time of one is an average of */
#define SLOW_FRAME 2e-3 /* seconds */
#define PAUSE_US 1000   /* of a slow stream, between two looks for more */

struct slot {
	struct run runs[BATCH_RUNS];
	bool discard[BATCH_RUNS], missing[BATCH_RUNS];
	unsigned count;
	char *buffer;
};

struct receiver {
	int pid, memory, userfaultfd; /* or -1 */
	struct run *gone; /* what the process has no more */
	size_t gone_count;
	struct slot slots[SLOTS];
	char *packed; /* room for a batch */
	double frame_time; /* seconds that a frame with content takes, about */
	sem_t filled, empty;
	int error; /* of the writing thread, atomic */
};

/* Returns how many bytes; what is left has to be written: there is a page already. */
static uint64_t fill_missing(const struct receiver *receiver, uint64_t address, const char *content, uint64_t length)
{
	uint64_t done = 0;

	while (done < length) {
		int64_t filled = uffd_fill(receiver->userfaultfd, address + done, content + done, length - done);
		if (filled < 0)
			break;
		if (!filled)
			sched_yield();
		done += filled;
	}
	return done;
}

static int write_slot(struct receiver *receiver, const struct slot *slot)
{
	struct iovec remote[BATCH_RUNS];
	const char *next = slot->buffer;
	unsigned index = 0;
	uint64_t skip = 0; /* bytes of runs[index] that are written */

	while (index < slot->count) {
		unsigned count = 0;
		size_t size_wanted = 0;
		if (slot->discard[index]) {
			next += slot->runs[index++].length;
			continue;
		}
		if (!skip && slot->missing[index]) {
			uint64_t length = slot->runs[index].length,
				 filled = fill_missing(receiver, slot->runs[index].address, next, length);
			next += filled;
			skip = filled;
			if (skip == length) {
				skip = 0;
				index++;
				continue;
			}
		}
		for (unsigned i = index; i < slot->count && !slot->discard[i] && (i == index || !slot->missing[i]); i++, count++) {
			remote[count] = (struct iovec){(void *)(slot->runs[i].address + (i == index ? skip : 0)),
			                               slot->runs[i].length - (i == index ? skip : 0)};
			size_wanted += remote[count].iov_len;
		}
		struct iovec local = {(void *)next, size_wanted};
		ssize_t size = process_vm_writev(receiver->pid, &local, 1, remote, count, 0);
		if (size <= 0) {
			if (size < 0 && errno != EFAULT)
				return -errno;
			/* A mapping that is not writable: as a debugger does it, which makes the page the process's own. */
			size = pwrite(receiver->memory, next, remote[0].iov_len, (off_t)(uintptr_t)remote[0].iov_base);
			if (size <= 0)
				return size < 0 ? -errno : -EFAULT;
		}
		next += size;
		skip += size;
		while (index < slot->count && skip >= slot->runs[index].length)
			skip -= slot->runs[index++].length;
	}
	return 0;
}

static void take(sem_t *semaphore)
{
	while (sem_wait(semaphore) < 0 && errno == EINTR)
		;
}

static void *write_slots(void *context)
{
	struct receiver *receiver = context;

	for (unsigned turn = 0;; turn++) {
		take(&receiver->filled);
		struct slot *slot = &receiver->slots[turn % SLOTS];
		if (!slot->count)
			return NULL;
		if (!__atomic_load_n(&receiver->error, __ATOMIC_ACQUIRE)) {
			int result = write_slot(receiver, slot);
			if (result)
				__atomic_store_n(&receiver->error, result, __ATOMIC_RELEASE);
		}
		sem_post(&receiver->empty);
	}
}

/* The range that the run lies in, or NULL. */
static const struct page_range *allowed(const struct page_range *ranges, size_t count, const struct run *run)
{
	size_t low = 0, high = count;

	if (!run->length || (run->address | run->length) % PAGE || run->address + run->length < run->address)
		return NULL;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (ranges[middle].end <= run->address)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == count || ranges[low].start > run->address || run->address + run->length > ranges[low].end)
		return NULL;
	return &ranges[low];
}

/* Runs without content: remembered for the caller. */
static int receive_gone(struct receiver *receiver, struct slot *slot, struct checksum *checksum, struct page_totals *totals)
{
	struct run *gone = realloc(receiver->gone, (receiver->gone_count + slot->count) * sizeof *gone);

	if (!gone)
		return -ENOMEM;
	receiver->gone = gone;
	for (unsigned i = 0; i < slot->count; i++)
		if (!slot->discard[i])
			gone[receiver->gone_count++] = slot->runs[i];
	checksum_add(checksum, slot->runs, slot->count * sizeof *slot->runs);
	totals->runs += slot->count;
	for (unsigned i = 0; i < slot->count; i++)
		slot->discard[i] = true; /* nothing of it is written */
	return 0;
}

static int receive_frame(struct receiver *receiver, struct stream *stream, int timeout_ms, const struct page_range *ranges,
                         size_t range_count, struct slot *slot, struct checksum *checksum, struct page_totals *totals)
{
	struct frame frame;
	int result = receive_all(stream, &frame, sizeof frame, timeout_ms);

	if (result)
		return result;
	bool packed = frame.magic == PACKED_MAGIC, spliced = frame.magic == SPLICED_MAGIC;
	if ((frame.magic != FRAME_MAGIC && !packed && !spliced) || frame.count > BATCH_RUNS || frame.bytes > BATCH_BYTES ||
	    ((packed || spliced) && !frame.bytes))
		return -EPROTO;
	slot->count = frame.count;
	if (!frame.count)
		return 0;
	result = receive_all(stream, slot->runs, frame.count * sizeof *slot->runs, timeout_ms);
	if (result)
		return result;
	uint64_t bytes = 0;
	for (unsigned i = 0; i < frame.count; i++) {
		const struct page_range *range = allowed(ranges, range_count, &slot->runs[i]);
		if (!range || (frame.bytes && slot->runs[i].length > BATCH_BYTES))
			return -EPROTO;
		slot->discard[i] = range->flags & DISCARD;
		slot->missing[i] = range->flags & MISSING && receiver->userfaultfd >= 0;
		bytes += slot->runs[i].length;
	}
	if (!frame.bytes)
		return receive_gone(receiver, slot, checksum, totals);
	if (packed ? bytes > BATCH_BYTES : bytes != frame.bytes)
		return -EPROTO;
	result = receive_slowly(stream, packed ? receiver->packed : slot->buffer, frame.bytes, timeout_ms,
	                        receiver->frame_time > SLOW_FRAME ? PAUSE_US : 0);
	if (result)
		return result;
	if (packed && !unpack(receiver->packed, frame.bytes, slot->buffer, bytes))
		return -EPROTO;
	checksum_add(checksum, slot->runs, frame.count * sizeof *slot->runs);
	for (uint64_t i = 0, offset = 0; !spliced && i < frame.count; offset += slot->runs[i++].length)
		checksum_add(checksum, slot->buffer + offset, slot->runs[i].length);
	totals->runs += frame.count;
	totals->bytes += bytes;
	return 0;
}

static void end_receiver(struct receiver *receiver)
{
	sem_destroy(&receiver->filled);
	sem_destroy(&receiver->empty);
	close(receiver->memory);
}

/* buffers: of all slots, and of what came packed. 0 or -errno, with nothing to undo. */
static int begin_receiver(struct receiver *receiver, int pid, char *buffers, int userfaultfd, pthread_t *writer)
{
	receiver->pid = pid;
	receiver->userfaultfd = userfaultfd;
	receiver->memory = open_proc(pid, "mem", O_RDWR);
	if (receiver->memory < 0)
		return receiver->memory;
	for (int i = 0; i < SLOTS; i++)
		receiver->slots[i].buffer = buffers + i * BATCH_BYTES;
	receiver->packed = buffers + SLOTS * BATCH_BYTES;
	sem_init(&receiver->filled, 0, 0);
	sem_init(&receiver->empty, 0, SLOTS);
	int result = -pthread_create(writer, NULL, write_slots, receiver);
	if (result)
		end_receiver(receiver);
	return result;
}

/* All frames up to the empty one that is the last, or up to an error, which the writer has then, too. */
static int receive_frames(struct receiver *receiver, struct stream *stream, int timeout_ms, const struct page_range *ranges,
                          size_t range_count, struct checksum *checksum, struct page_totals *totals)
{
	double before = now_seconds();

	for (unsigned turn = 0;; turn++) {
		take(&receiver->empty);
		struct slot *slot = &receiver->slots[turn % SLOTS];
		double now = now_seconds();
		receiver->frame_time += (now - before - receiver->frame_time) / FRAMES;
		before = now;
		int result = __atomic_load_n(&receiver->error, __ATOMIC_ACQUIRE);
		if (!result)
			result = receive_frame(receiver, stream, timeout_ms, ranges, range_count, slot, checksum, totals);
		if (result)
			slot->count = 0; /* has the writer end */
		bool last = !slot->count;
		sem_post(&receiver->filled);
		if (last)
			return result;
	}
}

/* Compares what has come with what the other side says that it has sent. */
static int receive_totals(struct stream *stream, int timeout_ms, const struct checksum *checksum, struct page_totals *totals)
{
	struct page_totals said;
	int result = receive_all(stream, &said, sizeof said, timeout_ms);

	if (result)
		return result;
	totals->zero_bytes = said.zero_bytes;
	totals->checksum = checksum_value(checksum);
	return said.runs != totals->runs || said.bytes != totals->bytes || said.checksum != totals->checksum ? -EBADMSG : 0;
}

/*
 * Receives what farhome_pages_send sends and writes it into pid, whose mappings exist. ranges: sorted; a run outside
 * them is refused. Returns 0 or -errno: -EPROTO not such a stream, -EBADMSG wrong checksum or totals, -ECONNRESET and
 * -ETIMEDOUT (nothing for timeout_ms) the connection's; others: pid could not be written. Part may be written by then.
 * userfaultfd: of pid, for ranges that are MISSING, or -1.
 * *gone: the runs of what came before and is no more, for the caller to take away and to free(); NULL without any.
 */
int farhome_pages_receive(int pid, const struct page_range *ranges, size_t range_count, struct stream *stream, int timeout_ms,
                          struct page_totals *totals, struct run **gone, size_t *gone_count, int userfaultfd)
{
	struct receiver *receiver = calloc(1, sizeof *receiver);
	char *buffers = mmap(NULL, (SLOTS + 1) * BATCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct checksum checksum = {{0}};
	pthread_t writer;
	int result = -ENOMEM;

	*totals = (struct page_totals){0};
	*gone = NULL;
	*gone_count = 0;
	if (receiver && buffers != MAP_FAILED)
		result = begin_receiver(receiver, pid, buffers, userfaultfd, &writer);
	if (!result) {
		result = receive_frames(receiver, stream, timeout_ms, ranges, range_count, &checksum, totals);
		pthread_join(writer, NULL);
		if (!result)
			result = receiver->error;
		if (!result)
			result = receive_totals(stream, timeout_ms, &checksum, totals);
		end_receiver(receiver);
	}
	if (buffers != MAP_FAILED)
		munmap(buffers, (SLOTS + 1) * BATCH_BYTES);
	if (receiver && !result) {
		*gone = receiver->gone;
		*gone_count = receiver->gone_count;
	} else if (receiver) {
		free(receiver->gone);
	}
	free(receiver);
	return result;
}

void farhome_runs_free(struct run *runs)
{
	free(runs);
}
