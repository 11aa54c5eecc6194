/*
 * Private pages of a frozen process, out through a socket and in again: the part of a move that is done once per page.
 *
 * Stream (little-endian, as both ends are x86-64): frames of {magic, count, bytes}, count × {address, length}, bytes of
 * page content; the last frame has count 0 and is followed by the totals with a checksum of everything before.
 * The checksum finds mistakes (ours, or a buffer that was changed under our hands); that nobody forges the stream is
 * the connection's business.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <nmmintrin.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096u
#define BATCH_BYTES (1u << 20)
/* A run is at least a page, so a full batch never has more runs than pages. */
#define BATCH_RUNS (BATCH_BYTES / PAGE)
#define FRAME_MAGIC 0x67706866u /* "fhpg" */
#define SCAN_REGIONS 512
#define PAGEMAP_WORDS 65536

struct page_range {
	uint64_t start, end; /* bytes, multiples of the page size */
	uint64_t flags;
};
#define KEEP_ZEROS 1 /* sending: a page of zeros differs from what is below it (a file) and must be sent */
#define DISCARD 2    /* receiving: may come, and is thrown away */

struct page_totals {
	uint64_t runs, bytes, zero_bytes; /* zero_bytes: found to be all zero and not sent */
	uint64_t checksum;
};

struct run {
	uint64_t address, length;
};

struct frame {
	uint32_t magic, count;
	uint64_t bytes;
};

/* ---- checksum: crc32c in four lanes, because one crc32 instruction waits three cycles for the one before it ---- */

struct checksum {
	uint64_t lane[4];
};

__attribute__((target("sse4.2"))) static void checksum_add(struct checksum *sum, const void *data, size_t size)
{
	const uint64_t *word = data;
	uint64_t a = sum->lane[0], b = sum->lane[1], c = sum->lane[2], d = sum->lane[3];

	for (; size >= 32; size -= 32, word += 4) {
		a = _mm_crc32_u64(a, word[0]);
		b = _mm_crc32_u64(b, word[1]);
		c = _mm_crc32_u64(c, word[2]);
		d = _mm_crc32_u64(d, word[3]);
	}
	for (; size >= 8; size -= 8, word++)
		a = _mm_crc32_u64(a, word[0]);
	sum->lane[0] = a;
	sum->lane[1] = b;
	sum->lane[2] = c;
	sum->lane[3] = d;
}

__attribute__((target("sse4.2"))) static uint64_t checksum_value(const struct checksum *sum)
{
	uint64_t value = ~0u;

	for (int i = 0; i < 4; i++)
		value = _mm_crc32_u64(value, sum->lane[i]);
	return value;
}

/* ---- socket: never blocks longer than timeout_ms without progress ---- */

static int wait_ready(int socket, short events, int timeout_ms)
{
	struct pollfd entry = {.fd = socket, .events = events};

	for (;;) {
		int count = poll(&entry, 1, timeout_ms);
		if (count > 0)
			return 0;
		if (count == 0)
			return -ETIMEDOUT;
		if (errno != EINTR)
			return -errno;
	}
}

static int send_all(int socket, struct iovec *vector, size_t count, int timeout_ms)
{
	while (count) {
		struct msghdr message = {.msg_iov = vector, .msg_iovlen = count < IOV_MAX ? count : IOV_MAX};
		ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent < 0) {
			if (errno == EINTR)
				continue;
			if (errno != EAGAIN)
				return -errno;
			int result = wait_ready(socket, POLLOUT, timeout_ms);
			if (result)
				return result;
			continue;
		}
		while (count && (size_t)sent >= vector->iov_len) {
			sent -= vector->iov_len;
			vector++;
			count--;
		}
		if (count) {
			vector->iov_base = (char *)vector->iov_base + sent;
			vector->iov_len -= sent;
		}
	}
	return 0;
}

static int receive_all(int socket, void *buffer, size_t size, int timeout_ms)
{
	char *next = buffer;

	while (size) {
		ssize_t received = recv(socket, next, size, MSG_DONTWAIT);
		if (received == 0)
			return -ECONNRESET;
		if (received < 0) {
			if (errno == EINTR)
				continue;
			if (errno != EAGAIN)
				return -errno;
			int result = wait_ready(socket, POLLIN, timeout_ms);
			if (result)
				return result;
			continue;
		}
		next += received;
		size -= received;
	}
	return 0;
}

/* ---- which pages a process has of its own ---- */

/* PAGEMAP_SCAN (Linux 6.7); the headers of the systems that we build on are older. */
struct scan_region {
	uint64_t start, end, categories;
};
struct scan_argument {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define PAGEMAP_SCAN_REQUEST _IOWR('f', 16, struct scan_argument)
#define SCAN_FILE (1u << 2)
#define SCAN_PRESENT (1u << 3)
#define SCAN_SWAPPED (1u << 4)
#define SCAN_ZERO_PAGE (1u << 5)
#define PAGEMAP_PRESENT (1ull << 63)
#define PAGEMAP_SWAPPED (1ull << 62)
#define PAGEMAP_FILE (1ull << 61)

typedef int (*found_pages)(void *context, uint64_t start, uint64_t end);

static int walk_scan(int pagemap, uint64_t start, uint64_t end, found_pages found, void *context)
{
	struct scan_region regions[SCAN_REGIONS];

	while (start < end) {
		struct scan_argument argument = {
			.size = sizeof argument, .start = start, .end = end,
			.vec = (uintptr_t)regions, .vec_len = SCAN_REGIONS,
			.category_inverted = SCAN_FILE | SCAN_ZERO_PAGE,
			.category_mask = SCAN_FILE | SCAN_ZERO_PAGE,
			.category_anyof_mask = SCAN_PRESENT | SCAN_SWAPPED,
			.return_mask = SCAN_PRESENT,
		};
		int count = ioctl(pagemap, PAGEMAP_SCAN_REQUEST, &argument);
		if (count < 0)
			return -errno;
		for (int i = 0; i < count; i++) {
			/* Present and swapped pages come as regions of their own: joined again by the caller's batches. */
			int result = found(context, regions[i].start, regions[i].end);
			if (result)
				return result;
		}
		if (argument.walk_end <= start)
			return -EIO;
		start = argument.walk_end;
	}
	return 0;
}

/* The same from the words of /proc/PID/pagemap. A page of the kernel's zero page counts as present here. */
static int walk_words(int pagemap, uint64_t start, uint64_t end, found_pages found, void *context)
{
	uint64_t *words = malloc(PAGEMAP_WORDS * sizeof *words);
	int result = 0;

	if (!words)
		return -ENOMEM;
	while (start < end && !result) {
		size_t wanted = (end - start) / PAGE;
		if (wanted > PAGEMAP_WORDS)
			wanted = PAGEMAP_WORDS;
		ssize_t size = pread(pagemap, words, wanted * sizeof *words, start / PAGE * sizeof *words);
		if (size < (ssize_t)sizeof *words) {
			result = size < 0 ? -errno : -EIO;
			break;
		}
		size_t count = size / sizeof *words, first = count;
		for (size_t i = 0; i <= count && !result; i++) {
			bool own = i < count && (words[i] & (PAGEMAP_PRESENT | PAGEMAP_SWAPPED)) && !(words[i] & PAGEMAP_FILE);
			if (own && first == count)
				first = i;
			else if (!own && first != count) {
				result = found(context, start + first * PAGE, start + i * PAGE);
				first = count;
			}
		}
		start += count * PAGE;
	}
	free(words);
	return result;
}

static int walk_pages(int pagemap, uint64_t start, uint64_t end, found_pages found, void *context)
{
	static int without_scan;

	if (!__atomic_load_n(&without_scan, __ATOMIC_RELAXED)) {
		int result = walk_scan(pagemap, start, end, found, context);
		if (result != -ENOTTY && result != -EINVAL && result != -EOPNOTSUPP)
			return result;
		__atomic_store_n(&without_scan, 1, __ATOMIC_RELAXED);
	}
	return walk_words(pagemap, start, end, found, context);
}

static int open_proc(int pid, const char *name, int flags)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
	int fd = open(path, flags | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static int count_bytes(void *context, uint64_t start, uint64_t end)
{
	*(uint64_t *)context += end - start;
	return 0;
}

/* Returns how many bytes of [start, end) of pid are pages of its own (not the file's, not the zero page), or -errno. */
int64_t farhome_pages_own(int pid, uint64_t start, uint64_t end)
{
	uint64_t bytes = 0;
	int pagemap = open_proc(pid, "pagemap", O_RDONLY);
	if (pagemap < 0)
		return pagemap;
	int result = walk_pages(pagemap, start, end, count_bytes, &bytes);
	close(pagemap);
	return result ? result : (int64_t)bytes;
}

/* ---- sending ---- */

struct sender {
	int pid, memory, socket, timeout_ms;
	bool keep_zeros;
	uint64_t range_start; /* a run never spans two ranges, as the other side checks it against one */
	char *buffer;
	size_t bytes;
	unsigned count;
	struct run runs[BATCH_RUNS];
	bool keep[BATCH_RUNS];
	struct checksum checksum;
	struct page_totals totals;
};

static bool is_zero(const char *page)
{
	const uint64_t *word = (const void *)page;
	return !word[0] && !word[PAGE / 8 - 1] && !memcmp(page, page + 8, PAGE - 8);
}

/* Fills the buffer with the content of the batch's runs; unreadable mappings through /proc/PID/mem, which asks no leave. */
static int read_batch(struct sender *sender)
{
	struct iovec remote[BATCH_RUNS];
	char *next = sender->buffer;
	size_t left = sender->bytes;
	unsigned index = 0;
	uint64_t skip = 0; /* bytes of runs[index] that are read */

	while (left) {
		unsigned count = 0;
		for (unsigned i = index; i < sender->count; i++, count++)
			remote[count] = (struct iovec){(void *)(sender->runs[i].address + (i == index ? skip : 0)),
						       sender->runs[i].length - (i == index ? skip : 0)};
		struct iovec local = {next, left};
		ssize_t size = process_vm_readv(sender->pid, &local, 1, remote, count, 0);
		if (size <= 0) {
			if (size < 0 && errno != EFAULT)
				return -errno;
			size = pread(sender->memory, next, remote[0].iov_len, (off_t)(uintptr_t)remote[0].iov_base);
			if (size <= 0)
				return size < 0 ? -errno : -EFAULT;
		}
		next += size;
		left -= size;
		skip += size;
		while (index < sender->count && skip >= sender->runs[index].length)
			skip -= sender->runs[index++].length;
	}
	return 0;
}

static int flush(struct sender *sender)
{
	struct run runs[BATCH_RUNS];
	struct iovec vector[BATCH_RUNS + 2];
	struct frame frame = {.magic = FRAME_MAGIC};
	unsigned count = 0;
	size_t offset = 0;

	if (!sender->count)
		return 0;
	int result = read_batch(sender);
	if (result)
		return result;
	for (unsigned i = 0; i < sender->count; i++) {
		bool open = false; /* the last run out ends where this page starts */
		for (uint64_t at = 0; at < sender->runs[i].length; at += PAGE, offset += PAGE) {
			if (!sender->keep[i] && is_zero(sender->buffer + offset)) {
				sender->totals.zero_bytes += PAGE;
				open = false;
				continue;
			}
			if (!open) {
				runs[count] = (struct run){sender->runs[i].address + at, 0};
				vector[2 + count] = (struct iovec){sender->buffer + offset, 0};
				count++;
				open = true;
			}
			runs[count - 1].length += PAGE;
			vector[1 + count].iov_len += PAGE;
			frame.bytes += PAGE;
		}
	}
	sender->count = 0;
	sender->bytes = 0;
	if (!count)
		return 0;
	frame.count = count;
	vector[0] = (struct iovec){&frame, sizeof frame};
	vector[1] = (struct iovec){runs, count * sizeof *runs};
	for (unsigned i = 0; i < count + 2; i++)
		checksum_add(&sender->checksum, vector[i].iov_base, vector[i].iov_len);
	sender->totals.runs += count;
	sender->totals.bytes += frame.bytes;
	return send_all(sender->socket, vector, count + 2, sender->timeout_ms);
}

static int collect(void *context, uint64_t start, uint64_t end)
{
	struct sender *sender = context;

	while (start < end) {
		if (sender->bytes == BATCH_BYTES) {
			int result = flush(sender);
			if (result)
				return result;
		}
		uint64_t length = end - start, room = BATCH_BYTES - sender->bytes;
		if (length > room)
			length = room;
		struct run *last = sender->count ? &sender->runs[sender->count - 1] : NULL;
		if (last && last->address + last->length == start && start != sender->range_start)
			last->length += length;
		else {
			sender->runs[sender->count] = (struct run){start, length};
			sender->keep[sender->count++] = sender->keep_zeros;
		}
		sender->bytes += length;
		start += length;
	}
	return 0;
}

/*
 * Sends the pages of pid's own in the ranges, and the end mark. Returns 0 or -errno (-ETIMEDOUT: nothing could be sent
 * for timeout_ms). Nothing in pid is changed.
 */
int farhome_pages_send(int pid, const struct page_range *ranges, size_t range_count, int socket, int timeout_ms,
		       struct page_totals *totals)
{
	struct sender *sender = calloc(1, sizeof *sender);
	char *buffer = mmap(NULL, BATCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int result = 0, pagemap = -1, memory = -1;

	if (!sender || buffer == MAP_FAILED) {
		result = -ENOMEM;
		goto out;
	}
	pagemap = result = open_proc(pid, "pagemap", O_RDONLY);
	if (result < 0)
		goto out;
	memory = result = open_proc(pid, "mem", O_RDONLY);
	if (result < 0)
		goto out;
	*sender = (struct sender){.pid = pid, .memory = memory, .socket = socket, .timeout_ms = timeout_ms, .buffer = buffer};
	result = 0;
	for (size_t i = 0; i < range_count && !result; i++) {
		sender->keep_zeros = ranges[i].flags & KEEP_ZEROS;
		sender->range_start = ranges[i].start;
		result = walk_pages(pagemap, ranges[i].start, ranges[i].end, collect, sender);
	}
	if (!result)
		result = flush(sender);
	if (!result) {
		struct frame end = {.magic = FRAME_MAGIC};
		sender->totals.checksum = checksum_value(&sender->checksum);
		struct iovec vector[2] = {{&end, sizeof end}, {&sender->totals, sizeof sender->totals}};
		result = send_all(socket, vector, 2, timeout_ms);
	}
	*totals = sender->totals;
out:
	if (pagemap >= 0)
		close(pagemap);
	if (memory >= 0)
		close(memory);
	if (buffer != MAP_FAILED)
		munmap(buffer, BATCH_BYTES);
	free(sender);
	return result;
}

/* ---- receiving: one thread takes frames from the socket, one writes them into the process ---- */

#define SLOTS 4

struct slot {
	struct run runs[BATCH_RUNS];
	bool discard[BATCH_RUNS];
	unsigned count;
	size_t bytes;
	char *buffer;
};

struct receiver {
	int pid, memory;
	struct slot slots[SLOTS];
	sem_t filled, empty;
	int error; /* of the writing thread, atomic */
};

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
		for (unsigned i = index; i < slot->count && !slot->discard[i]; i++, count++) {
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

static int receive_frame(int socket, int timeout_ms, const struct page_range *ranges, size_t range_count,
			 struct slot *slot, struct checksum *checksum, struct page_totals *totals)
{
	struct frame frame;
	int result = receive_all(socket, &frame, sizeof frame, timeout_ms);

	if (result)
		return result;
	if (frame.magic != FRAME_MAGIC || frame.count > BATCH_RUNS || frame.bytes > BATCH_BYTES)
		return -EPROTO;
	slot->count = frame.count;
	slot->bytes = frame.bytes;
	if (!frame.count)
		return 0;
	result = receive_all(socket, slot->runs, frame.count * sizeof *slot->runs, timeout_ms);
	if (result)
		return result;
	uint64_t bytes = 0;
	for (unsigned i = 0; i < frame.count; i++) {
		const struct page_range *range = allowed(ranges, range_count, &slot->runs[i]);
		if (!range || slot->runs[i].length > frame.bytes)
			return -EPROTO;
		slot->discard[i] = range->flags & DISCARD;
		bytes += slot->runs[i].length;
	}
	if (bytes != frame.bytes)
		return -EPROTO;
	result = receive_all(socket, slot->buffer, frame.bytes, timeout_ms);
	if (result)
		return result;
	checksum_add(checksum, &frame, sizeof frame);
	checksum_add(checksum, slot->runs, frame.count * sizeof *slot->runs);
	for (uint64_t i = 0, offset = 0; i < frame.count; offset += slot->runs[i++].length)
		checksum_add(checksum, slot->buffer + offset, slot->runs[i].length);
	totals->runs += frame.count;
	totals->bytes += frame.bytes;
	return 0;
}

/*
 * Receives what farhome_pages_send sends and writes it into pid, whose mappings exist. ranges: sorted; a run outside
 * them is refused. Returns 0 or -errno: -EPROTO not such a stream, -EBADMSG wrong checksum or totals, -ECONNRESET and
 * -ETIMEDOUT (nothing for timeout_ms) the connection's; others: pid could not be written. Part may be written by then.
 */
int farhome_pages_receive(int pid, const struct page_range *ranges, size_t range_count, int socket, int timeout_ms,
			  struct page_totals *totals)
{
	struct receiver *receiver = calloc(1, sizeof *receiver);
	char *buffers = mmap(NULL, SLOTS * BATCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct checksum checksum = {{0}};
	struct page_totals said;
	pthread_t writer;
	int result = -ENOMEM, error;

	*totals = (struct page_totals){0};
	if (!receiver || buffers == MAP_FAILED)
		goto out;
	receiver->pid = pid;
	receiver->memory = result = open_proc(pid, "mem", O_RDWR);
	if (result < 0)
		goto out;
	for (int i = 0; i < SLOTS; i++)
		receiver->slots[i].buffer = buffers + i * BATCH_BYTES;
	sem_init(&receiver->filled, 0, 0);
	sem_init(&receiver->empty, 0, SLOTS);
	result = -pthread_create(&writer, NULL, write_slots, receiver);
	if (result)
		goto out_memory;
	for (unsigned turn = 0;; turn++) {
		take(&receiver->empty);
		struct slot *slot = &receiver->slots[turn % SLOTS];
		result = __atomic_load_n(&receiver->error, __ATOMIC_ACQUIRE);
		if (!result)
			result = receive_frame(socket, timeout_ms, ranges, range_count, slot, &checksum, totals);
		if (result)
			slot->count = 0; /* tells the writer to end */
		bool last = !slot->count;
		sem_post(&receiver->filled);
		if (last)
			break;
	}
	pthread_join(writer, NULL);
	error = receiver->error;
	if (!result)
		result = error;
	if (!result)
		result = receive_all(socket, &said, sizeof said, timeout_ms);
	if (!result) {
		totals->zero_bytes = said.zero_bytes;
		totals->checksum = checksum_value(&checksum);
		if (said.runs != totals->runs || said.bytes != totals->bytes || said.checksum != totals->checksum)
			result = -EBADMSG;
	}
out_memory:
	sem_destroy(&receiver->filled);
	sem_destroy(&receiver->empty);
	close(receiver->memory);
out:
	if (buffers != MAP_FAILED)
		munmap(buffers, SLOTS * BATCH_BYTES);
	free(receiver);
	return result;
}
