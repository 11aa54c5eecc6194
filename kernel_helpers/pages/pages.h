/* What the files here share: the stream that a process's pages go through.
 *
 * Little-endian, as both ends are x86-64: frames of {magic, count, bytes}, count × {address, length}, bytes of page content, or of what it
 * was packed into (another magic); of a frame with runs and no bytes, the pages that were sent before are gone. The last frame has count 0
 * and is followed by the totals with a checksum of everything before, but for content that nobody has read who could add it up (a third
 * magic). The checksum finds mistakes (ours, or a buffer that was changed under our hands); that nobody forges the stream is the
 * connection's business. */
#ifndef FARHOME_PAGES_H
#define FARHOME_PAGES_H
#include "pages/tables/tables.h"
#include "process/injection/inject.h"
#include "stream/stream.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define FRAME_MAGIC 0x67706866u  /* "fhpg" */
#define PACKED_MAGIC 0x7a706866u /* "fhpz" */
#define SPLICED_MAGIC 0x73706866u /* "fhps": the content is in no checksum */

struct page_totals {
	uint64_t runs, bytes, zero_bytes; /* zero_bytes: found to be all zero and not sent */
	uint64_t checksum;
};

struct frame {
	uint32_t magic, count;
	uint64_t bytes;
};

/* Which way gets more content through: as it is, or packed. */
struct pace {
	bool packs, trying, has_tried;
	unsigned windows;
	uint64_t bytes;
	double began, rate[2];
};
/* So much content has been sent. may_try: the other way may be tried. */
void pace_count(struct pace *pace, uint64_t bytes, bool may_try);
/* Of the clock that both go by. */
double now_seconds(void);
/* What comes next has nothing to do with what was before. */
void pace_rest(struct pace *pace);
int pack_bound(size_t size);
/* Returns the size of what was packed; 0: it does not become less. */
size_t pack(const char *content, size_t size, char *packed, size_t room);
bool unpack(const char *packed, size_t size, char *content, size_t wanted);

/* crc32c in four lanes, because one crc32 instruction waits three cycles for the one before it */
struct checksum {
	uint64_t lane[4];
};
void checksum_add(struct checksum *sum, const void *data, size_t size);
uint64_t checksum_value(const struct checksum *sum);

/* All that is wanted, never without progress for longer than timeout_ms. Returns 0 or -errno. */
int receive_all(struct stream *stream, void *buffer, size_t size, int timeout_ms);
/* The same: each time that something is taken its sender hears of it, and is interrupted. Where something has come, more is let come for a
 * while first. */
int receive_slowly(struct stream *stream, void *buffer, size_t size, int timeout_ms, int pause_us);
/* On a stream that takes pipes (stream_splices()) between begin_splicing(), which returns what end_splicing() wants, and that one: what is in
 * a pipe. What is less than a packet waits for more meanwhile. */
int begin_splicing(const struct stream *stream);
void end_splicing(const struct stream *stream, int before);
int splice_all(int pipe, const struct stream *stream, size_t size, int timeout_ms);

/* A process that stands still, and is the calling thread's tracee: it puts its pages into a pipe itself, without a copy (splice.c). */
struct splicer {
	int32_t tid, pipe, inside; /* pipe: the end to read from, inside: the number of the other one in the process */
	int32_t refused; /* frames that it could not put there */
	int32_t pause_loop, padding; /* pause_loop: as inject_call() has it */
	uint64_t instruction, room; /* addresses in it: of a `syscall`, and of a page of its own for vectors */
	struct user_regs_struct registers;
	struct deferred deferred;
	uint64_t bytes; /* that have gone this way */
};
/* The runs, of so many bytes in all, at most a batch. Returns 1: they are in the pipe, 0: they have to be read as others are; or -errno. */
int splice_in(struct splicer *splicer, const struct run *runs, unsigned count, size_t bytes);

/* What has been sent of a process while it ran: a bit for each page of its areas. */
struct history {
	struct pace pace; /* of its rounds */
	size_t count;
	struct area {
		uint64_t start, end;
		uint64_t *sent, *gone; /* gone: sent, and not seen when that was last looked for */
	} areas[];
};
/* Whether the page was sent; the area that it is in is tried first, and kept, in *hint. */
bool history_has(const struct history *history, uint64_t page, size_t *hint);
void history_mark(struct history *history, uint64_t start, uint64_t end);
/* What was sent counts as gone until it is seen. */
void history_look(struct history *history, uint64_t start, uint64_t end);
void history_seen(struct history *history, uint64_t start, uint64_t end);
/* How many pages of [start, end) were sent. */
size_t history_pages(const struct history *history, uint64_t start, uint64_t end);
/* Where the part of [start, end) that begins at start and is all dense, or all not, comes to its end. Dense: half of the pages of each
 * chunk were sent. */
uint64_t history_dense(const struct history *history, uint64_t start, uint64_t end, bool *dense);
/* Calls found with each run of pages in [start, end) that were sent and have not been seen. */
int history_gone(const struct history *history, uint64_t start, uint64_t end, found_pages found, void *context);

#endif
