/* The flags of a process's mappings, without a look at its pages: /proc/PID/smaps looks at each of them, some 30 ms for a GiB.
 *
 * A BPF iterator over the mappings of one process (Linux 6.1 for one process) writes start, end and flags of each, and whether it may have a
 * file or a name, which it does not read. Where structures have
 * their members is read from the kernel's own description (BTF). Whatever is missing (BTF, the right to use BPF) is an error, and the caller
 * reads smaps. Which bit is which is for the caller to find out on mappings of its own. */
#define _GNU_SOURCE
#include "pages/tables/tables.h"
#include "pages/tables/plain.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/btf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BTF "/sys/kernel/btf/vmlinux"
#define ITERATOR "bpf_iter_task_vma" /* its context: struct bpf_iter__task_vma {meta, task, vma} */
#define LOADS 16 /* tries */

/* What the program needs to know of this kernel. */
struct layout {
	uint32_t iterator; /* BTF id of the function */
	uint32_t meta, vma, sequence, start, end, flags; /* offsets */
	uint32_t file, operations, name; /* of pointers in a mapping; name: 0 where mappings of memory have none */
	uint32_t mm, start_brk, brk, start_stack;
};

/* ---- the kernel's description of itself ---- */

struct description {
	const unsigned char *types, *end;
	const char *strings;
	uint32_t count;
	uint32_t *offsets; /* of each type, by id, from `types` */
};

static size_t size_of_type(const struct btf_type *type)
{
	uint32_t members = BTF_INFO_VLEN(type->info);

	switch (BTF_INFO_KIND(type->info)) {
	case BTF_KIND_INT:
	case BTF_KIND_VAR:
	case BTF_KIND_DECL_TAG:
		return sizeof *type + 4;
	case BTF_KIND_ARRAY:
		return sizeof *type + sizeof(struct btf_array);
	case BTF_KIND_STRUCT:
	case BTF_KIND_UNION:
		return sizeof *type + members * sizeof(struct btf_member);
	case BTF_KIND_ENUM:
		return sizeof *type + members * sizeof(struct btf_enum);
	case BTF_KIND_FUNC_PROTO:
		return sizeof *type + members * sizeof(struct btf_param);
	case BTF_KIND_DATASEC:
		return sizeof *type + members * sizeof(struct btf_var_secinfo);
	case BTF_KIND_ENUM64:
		return sizeof *type + members * 12;
	default:
		return sizeof *type;
	}
}

static const struct btf_type *type_of(const struct description *d, uint32_t id)
{
	return (const void *)(d->types + d->offsets[id]);
}

static uint32_t find_type(const struct description *d, unsigned kind, const char *name)
{
	for (uint32_t id = 1; id < d->count; id++) {
		const struct btf_type *type = type_of(d, id);
		if (BTF_INFO_KIND(type->info) == kind && !strcmp(d->strings + type->name_off, name))
			return id;
	}
	return 0;
}

/* Offset in bytes of a member, also of one in a nameless structure inside; -1: there is none. */
static long member_of(const struct description *d, uint32_t id, const char *name)
{
	const struct btf_type *type = type_of(d, id);
	const struct btf_member *members = (const void *)(type + 1);
	unsigned kind = BTF_INFO_KIND(type->info);

	if (kind != BTF_KIND_STRUCT && kind != BTF_KIND_UNION)
		return -1;
	for (unsigned i = 0; i < BTF_INFO_VLEN(type->info); i++) {
		const char *own = d->strings + members[i].name_off;
		long offset = (BTF_INFO_KFLAG(type->info) ? members[i].offset & 0xffffff : members[i].offset) / 8;
		if (!strcmp(own, name))
			return offset;
		long inner = *own || members[i].type >= d->count ? -1 : member_of(d, members[i].type, name);
		if (inner >= 0)
			return offset + inner;
	}
	return -1;
}

static int describe(const unsigned char *data, size_t size, struct description *d)
{
	const struct btf_header *header = (const void *)data;
	uint32_t room = 1 << 16;

	if (size < sizeof *header || header->magic != BTF_MAGIC || (uint64_t)header->hdr_len + header->type_off + header->type_len > size ||
	    (uint64_t)header->hdr_len + header->str_off + header->str_len > size)
		return -EINVAL;
	d->types = data + header->hdr_len + header->type_off;
	d->end = d->types + header->type_len;
	d->strings = (const char *)data + header->hdr_len + header->str_off;
	d->count = 1;
	d->offsets = malloc(room * sizeof *d->offsets);
	if (!d->offsets)
		return -ENOMEM;
	for (const unsigned char *at = d->types; at + sizeof(struct btf_type) <= d->end; at += size_of_type((const void *)at)) {
		if (d->count == room) {
			uint32_t *more = realloc(d->offsets, (room *= 2) * sizeof *more);
			if (!more)
				return -ENOMEM;
			d->offsets = more;
		}
		d->offsets[d->count++] = at - d->types;
	}
	return 0;
}

static int look_up(const struct description *d, struct layout *layout)
{
	static const struct {
		const char *type, *member;
		size_t at;
	} wanted[] = {
		{"bpf_iter__task_vma", "meta", offsetof(struct layout, meta)},
		{"bpf_iter__task_vma", "vma", offsetof(struct layout, vma)},
		{"bpf_iter_meta", "seq", offsetof(struct layout, sequence)},
		{"vm_area_struct", "vm_start", offsetof(struct layout, start)},
		{"vm_area_struct", "vm_end", offsetof(struct layout, end)},
		{"vm_area_struct", "vm_flags", offsetof(struct layout, flags)},
		{"vm_area_struct", "vm_file", offsetof(struct layout, file)},
		{"vm_area_struct", "vm_ops", offsetof(struct layout, operations)},
		{"vm_area_struct", "anon_name", offsetof(struct layout, name)},
		{"vm_area_struct", "vm_mm", offsetof(struct layout, mm)},
		{"mm_struct", "start_brk", offsetof(struct layout, start_brk)},
		{"mm_struct", "brk", offsetof(struct layout, brk)},
		{"mm_struct", "start_stack", offsetof(struct layout, start_stack)},
	};
	layout->iterator = find_type(d, BTF_KIND_FUNC, ITERATOR);
	if (!layout->iterator)
		return -ENOENT;
	for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
		uint32_t id = find_type(d, BTF_KIND_STRUCT, wanted[i].type);
		long offset = id ? member_of(d, id, wanted[i].member) : -1;
		if (offset < 0 && wanted[i].at != offsetof(struct layout, name))
			return -ENOENT;
		*(uint32_t *)((char *)layout + wanted[i].at) = offset < 0 ? 0 : offset;
	}
	return 0;
}

/* Reads the kernel's description: some 20 ms, once. Returns 0 or -errno. */
int farhome_vmas_layout(struct layout *layout)
{
	struct description d = {0};
	struct stat status;
	int fd = open(BTF, O_RDONLY | O_CLOEXEC), result;

	if (fd < 0)
		return -errno;
	unsigned char *data = NULL;
	result = fstat(fd, &status) ? -errno : 0;
	if (!result && !(data = calloc(1, status.st_size)))
		result = -ENOMEM;
	for (off_t at = 0; !result && at < status.st_size;) {
		ssize_t got = read(fd, data + at, status.st_size - at);
		if (got <= 0)
			result = got ? -errno : -EIO;
		at += got;
	}
	close(fd);
	if (!result)
		result = describe(data, status.st_size, &d);
	if (!result)
		result = look_up(&d, layout);
	free(d.offsets);
	free(data);
	return result;
}

/* ---- the program ---- */

#define LOAD(to, from, at) ((struct bpf_insn){.code = BPF_LDX | BPF_MEM | BPF_DW, .dst_reg = to, .src_reg = from, .off = at})
#define STORE(to, at, from) ((struct bpf_insn){.code = BPF_STX | BPF_MEM | BPF_DW, .dst_reg = to, .src_reg = from, .off = at})
#define MOVE(to, from) ((struct bpf_insn){.code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = to, .src_reg = from})
#define SET(to, value) ((struct bpf_insn){.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = to, .imm = value})
#define ADD(to, value) ((struct bpf_insn){.code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = to, .imm = value})
#define SKIP_IF_ZERO(of, count) ((struct bpf_insn){.code = BPF_JMP | BPF_JEQ | BPF_K, .dst_reg = of, .off = count})
#define SKIP_IF_GREATER(of, than, count) \
	((struct bpf_insn){.code = BPF_JMP | BPF_JGT | BPF_X, .dst_reg = of, .src_reg = than, .off = count})
#define CALL(function) ((struct bpf_insn){.code = BPF_JMP | BPF_CALL, .imm = function})
#define EXIT ((struct bpf_insn){.code = BPF_JMP | BPF_EXIT})

static int bpf(int command, union bpf_attr *attributes)
{
	int result = syscall(SYS_bpf, command, attributes, sizeof *attributes);
	return result < 0 ? -errno : result;
}

/* The kernel gives up the check of a program as soon as a signal waits, and says EAGAIN: the signal is taken before the next try. */
static int load(union bpf_attr *attributes)
{
	int result = -EAGAIN;
	for (int i = 0; i < LOADS && result == -EAGAIN; i++)
		result = bpf(BPF_PROG_LOAD, attributes);
	return result;
}

/* Returns the program's descriptor, or -errno. */
int farhome_vmas_open(const struct layout *layout)
{
	struct bpf_insn program[] = {
		LOAD(6, 1, layout->vma),
		LOAD(7, 1, layout->meta),
		SKIP_IF_ZERO(6, 33), /* the end */
		LOAD(2, 6, layout->start),
		STORE(10, -32, 2),
		LOAD(3, 6, layout->end),
		STORE(10, -24, 3),
		LOAD(8, 6, layout->flags),
		STORE(10, -16, 8),
		SET(9, 0), /* whether it is one to be asked about */
		LOAD(8, 6, layout->file),
		SKIP_IF_ZERO(8, 1),
		SET(9, 1),
		LOAD(8, 6, layout->operations), /* special ones have some, as all that are shared */
		SKIP_IF_ZERO(8, 1),
		SET(9, 1),
		LOAD(8, 6, layout->name ? layout->name : layout->file),
		SKIP_IF_ZERO(8, 1),
		SET(9, 1),
		LOAD(8, 6, layout->mm),
		SKIP_IF_ZERO(8, 9),
		LOAD(4, 8, layout->brk), /* [heap], or beside it */
		SKIP_IF_GREATER(2, 4, 3),
		LOAD(4, 8, layout->start_brk),
		SKIP_IF_GREATER(4, 3, 1),
		SET(9, 1),
		LOAD(4, 8, layout->start_stack), /* [stack] */
		SKIP_IF_GREATER(2, 4, 2),
		SKIP_IF_GREATER(4, 3, 1),
		SET(9, 1),
		STORE(10, -8, 9),
		LOAD(1, 7, layout->sequence),
		MOVE(2, 10),
		ADD(2, -32),
		SET(3, sizeof(struct vma)),
		CALL(BPF_FUNC_seq_write),
		SET(0, 0),
		EXIT,
	};
	union bpf_attr attributes = {
		.prog_type = BPF_PROG_TYPE_TRACING,
		.expected_attach_type = BPF_TRACE_ITER,
		.insns = (uintptr_t)program,
		.insn_cnt = sizeof program / sizeof *program,
		.license = (uintptr_t)"GPL",
		.attach_btf_id = layout->iterator,
		.prog_name = "farhome_vmas",
	};
	return load(&attributes);
}

/* The mappings of a process, by address: as many as `room`, in `vmas`. Returns how many, or -errno (-E2BIG: there are more). */
int64_t farhome_vmas_read(int program, int pid, struct vma *vmas, size_t room)
{
	union bpf_iter_link_info which = {.task = {.pid = pid}};
	union bpf_attr attributes = {.link_create = {
					     .prog_fd = program,
					     .attach_type = BPF_TRACE_ITER,
					     .iter_info = (uintptr_t)&which,
					     .iter_info_len = sizeof which,
				     }};
	int link = bpf(BPF_LINK_CREATE, &attributes);
	if (link < 0)
		return link;
	attributes = (union bpf_attr){.iter_create = {.link_fd = link}};
	int iterator = bpf(BPF_ITER_CREATE, &attributes);
	close(link);
	if (iterator < 0)
		return iterator;
	char *next = (char *)vmas, *end = (char *)(vmas + room);
	int64_t result = 0;
	for (;;) {
		char more;
		ssize_t got = next < end ? read(iterator, next, end - next) : read(iterator, &more, 1);
		if (got < 0 && errno == EAGAIN)
			continue;
		if (got < 0)
			result = -errno;
		else if (got && next == end)
			result = -E2BIG;
		if (got <= 0 || result)
			break;
		next += got;
	}
	close(iterator);
	return result ? result : (int64_t)((struct vma *)next - vmas);
}

/* The flags that any of them has. */
uint64_t farhome_vmas_flags(const struct vma *vmas, size_t count)
{
	uint64_t flags = 0;

	for (size_t i = 0; i < count; i++)
		flags |= vmas[i].flags;
	return flags;
}

static int any(void *context, uint64_t start, uint64_t end, bool written)
{
	(void)context, (void)start, (void)end, (void)written;
	return 1;
}

/* Of each range, whether pid has pages of its own in it, in has[]. Returns 0 or -errno. */
int farhome_pages_any(int pid, const struct page_range *ranges, size_t count, uint8_t *has)
{
	int pagemap = open_proc(pid, "pagemap", O_RDONLY), result = 0;
	if (pagemap < 0)
		return pagemap;
	for (size_t i = 0; i < count && result >= 0; i++) {
		result = walk_pages(pagemap, SCAN_ANY, ranges[i].start, ranges[i].end, any, NULL);
		has[i] = result > 0;
	}
	close(pagemap);
	return result < 0 ? result : 0;
}
