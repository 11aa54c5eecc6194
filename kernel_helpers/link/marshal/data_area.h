/* The guest's memory, and, for marshal.c alone, the data area of a CALL that is made of it.
 * The area has two parts: the image, which is sent, and behind it what the kernel at home only writes. While the image
 * grows, offsets into the second part carry BEHIND. */
#ifndef FARHOME_AREA_H
#define FARHOME_AREA_H
#include "link/link.h"

#define BEHIND 0x80000000u
#define PATH_ROOM 4096u

#pragma GCC visibility push(hidden)
/* 0, or -EFAULT. */
int guest_read(int tid, uint64_t address, void *to, size_t length);
/* The length of a string, whose NUL is put behind it; `room`, which `text` has and one byte more: it is longer; -1: it cannot be read. */
int64_t guest_string(int tid, uint64_t address, char *text, uint32_t room);
/* Whether a buffer that cannot be read as a whole has a beginning that can, or is a stack that grows: how much of it the kernel
 * would look at, and so whether it would fail, is not known here. */
int begins(const struct marshalled *m, int tid, uint64_t address);
/* What home gets for a pointer that cannot be read: outside user space it fails the same way there. */
uint64_t fault(uint64_t address);

/* Room in the image; its offset, or -1 with m->failed set. */
int64_t image_room(struct marshalled *m, uint64_t address, uint64_t length);
/* Room behind the image, of which nothing is sent. m->call.area counts it until the image has its length. */
int64_t behind_room(struct marshalled *m, uint64_t address, uint64_t length);
void set_u64(struct marshalled *m, uint32_t where, uint64_t value);
/* A pointer inside the image to an offset of the data area. */
void point(struct marshalled *m, uint32_t where, uint32_t offset);
void add_out(struct marshalled *m, uint32_t offset, uint32_t length, const struct call_argument *rule);
void add_ruled(struct marshalled *m, struct out out);
/* The guest address of the next part of the last out range. */
void add_segment(struct marshalled *m, uint64_t address, uint32_t length);
/* Whether the guest can take what is written there: 1; 0: nothing of it. If a part of it, or the memory grows, m->failed is set: home
 * alone can make the call. */
int has_room(struct marshalled *m, int tid, uint64_t address, uint64_t length);
/* The same of memory of which the kernel finds out only after it has done what was asked. */
void wants_room(struct marshalled *m, int tid, uint64_t address, uint64_t length);
/* Whether two results would be written to the same place: in which order, the kernel knows alone. */
int results_overlap(const struct marshalled *m);
/* Copies a guest buffer into the image: its offset, or -1 (m->failed set), or -2: the guest cannot read it. */
int64_t copy_in(struct marshalled *m, int tid, uint64_t address, uint64_t length);
/* Copies a string into the image. One that does not end within `room` is sent without an end, so that the kernel at home
 * says ENAMETOOLONG itself; if it must be `whole`, only home can make the call. */
int64_t copy_string(struct marshalled *m, int tid, uint64_t address, uint32_t room, int whole);
/* Copies pointers up to a NULL, and the string behind each; answers as copy_in(). One that cannot be read, or is longer than
 * a program may be given, is left for the kernel at home to refuse. */
int64_t copy_strings(struct marshalled *m, int tid, uint64_t address);
#pragma GCC visibility pop
#endif
