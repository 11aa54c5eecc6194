/* What the files of the marshaller have for one another: data_area.c <- argument.c <- vectors.c <-
 * messages.c, structures.c <- shapes.c <- marshal.c. */
#ifndef FARHOME_MARSHAL_PARTS_H
#define FARHOME_MARSHAL_PARTS_H
#include "link/marshal/data_area.h"

#define VECTOR_LIMIT 1024u

enum traffic { SENT, RETURNED, BOTH_WAYS }; /* BOTH_WAYS: what comes back is perhaps not all that the call says it has got */

/* One argument of a call. row: its row of the table; size: of what it points to, if its shape has one by the table. */
struct argument {
	struct marshalled *m;
	int tid, index;
	const struct call_argument *row;
	const uint64_t *all;
	uint64_t address, size;
};

#pragma GCC visibility push(hidden)
/* ---- argument.c ---- */

/* The argument of the call at home is this. */
void become(struct argument *a, uint64_t value);
/* What it points to lies at `at` of the data area; -2: the guest cannot read it; -1: m->failed is set. */
void point_to(struct argument *a, int64_t at);
/* A buffer is sent. Returns its offset as copy_in(). */
int64_t send_buffer(struct argument *a, uint64_t size);
/* send_buffer(), of which the kernel may look at a beginning that can be read. */
int64_t send_whole(struct argument *a, uint64_t size);
/* The size that the table gives: 0, -E2BIG, or -EFAULT: it lies where the guest cannot read. */
int size_of(const struct argument *of, uint64_t *size);

/* ---- vectors.c ---- */

/* Copies `count` struct iovec into the image; returns its offset as copy_in(), and their total length. Lengths that the
 * kernel would refuse are left for it to refuse. */
int64_t copy_vector(struct marshalled *m, int tid, uint64_t address, uint64_t count, uint64_t *total);
/* The memory behind the vector at `at` of the image (copied above): sent, or written as far as `rule` says, or both. It lies in one
 * piece, as the kernel fills it. A part that cannot be read, or written, becomes FAULT_ADDRESS. */
void copy_parts(struct marshalled *m, int tid, uint32_t at, uint64_t count, uint64_t total, enum traffic traffic, struct out rule);
/* The pointer at `where` of the image and the length beside it: what it points to is sent, and comes back if `back`. */
void copy_nested(struct marshalled *m, int tid, uint32_t where, uint64_t length, int back);

/* ---- messages.c ---- */

/* The struct msghdr at `at` of the image, which the guest has at `address`. `rule`: how much of its buffers comes back. */
void copy_message(struct marshalled *m, int tid, uint32_t at, uint64_t address, enum traffic traffic, struct out rule);
/* `count` struct mmsghdr; returns their offset as copy_in(). */
int64_t copy_messages(struct marshalled *m, int tid, uint64_t address, uint64_t count, enum traffic traffic);

/* ---- structures.c ---- */

/* A struct sigevent of mq_notify, a struct sock_fprog, a struct xattr_args with a value that is sent, or comes back. */
void put_event(struct argument *a);
void put_program(struct argument *a);
void put_attribute_in(struct argument *a);
void put_attribute_out(struct argument *a);

/* ---- shapes.c ---- */

/* Puts an argument into the call by its shape; m->failed: only home can make the call. */
void marshal_argument(struct argument *a);
#pragma GCC visibility pop
#endif
