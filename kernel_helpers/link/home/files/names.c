/* What there is to know of a path: see names.h.
 *
 * The path is walked once more, each directory watched before the next name is looked up in it: what is found so is true until one of these
 * names changes, and then it is recalled (watch.h). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>
#include "link/home/files/access_time.h"
#include "link/home/files/mounts.h"
#include "link/home/files/names.h"
#include "link/home/files/places.h"
#include "link/paths.h"

#define DEPTH 32                /* directories on a path */
#define LINKS 8                 /* that are followed */

const char *names_path(const struct call *call, const unsigned char *image, int *follows)
{
	struct named_path named;
	if (!call_names_path(call->number, call->arguments, &named))
		return NULL;
	uint64_t at = call->arguments[named.argument];
	if (!(call->offsets >> named.argument & 1) || at >= call->image || !memchr(image + at, 0, call->image - at))
		return NULL;
	const char *path = (const char *)image + at;
	if (named.is_relative && *path != '/' && (int)call->arguments[0] != AT_FDCWD)
		return NULL;
	*follows = named.follows;
	return path;
}

/* ---- for whom ---- */

static uint64_t mix(uint64_t hash, const void *data, size_t length)
{
	const unsigned char *at = data;
	while (length--)
		hash = (hash ^ *at++) * 1099511628211u;
	return hash;
}

uint64_t names_scope(int pid)
{
	char path[64], line[4096];
	struct stat status;
	uint64_t hash = 14695981039346656037u;
	snprintf(path, sizeof path, "/proc/%d/status", pid);
	FILE *file = fopen(path, "re");
	if (!file)
		return 0;
	while (fgets(line, sizeof line, file))
		if (!strncmp(line, "Uid:", 4) || !strncmp(line, "Gid:", 4) || !strncmp(line, "Groups:", 7) || !strncmp(line, "CapEff:", 7))
			hash = mix(hash, line, strlen(line));
	fclose(file);
	static const char *const also[] = {"root", "ns/mnt", "ns/user"};
	for (unsigned i = 0; i < sizeof also / sizeof *also; i++) {
		snprintf(path, sizeof path, "/proc/%d/%s", pid, also[i]);
		if (stat(path, &status))
			return 0;
		hash = mix(mix(hash, &status.st_dev, sizeof status.st_dev), &status.st_ino, sizeof status.st_ino);
	}
	return hash ? hash : 1;
}

/* ---- the walk ---- */

struct directory {
	int descriptor;
	uint32_t number;
};

struct walk {
	int pid;
	uint64_t scope;
	int links;
	unsigned depth;
	struct directory stack[DEPTH];  /* the way to where we are; descriptors are ours */
	struct dependencies on;
	uint32_t kind;                  /* what was found: a name_kind, 0: nothing that can be sent */
	struct stat status;
	char text[PATH_LIMIT];          /* of a link */
	size_t length;
	int ended_in_link;
};

static void leave_all(struct walk *w)
{
	while (w->depth)
		close(w->stack[--w->depth].descriptor);
}

/* The descriptor is the walk's. Whether the directory is watched. */
static int enter(struct walk *w, int descriptor)
{
	uint32_t number = descriptor >= 0 && w->depth < DEPTH ? watch_directory(descriptor) : 0;
	if (!number) {
		if (descriptor >= 0)
			close(descriptor);
		return 0;
	}
	w->stack[w->depth++] = (struct directory){descriptor, number};
	return 1;
}

static int begin_at(struct walk *w, const char *which)
{
	char path[64];
	uint32_t mode;
	leave_all(w);
	snprintf(path, sizeof path, "/proc/%d/%s", w->pid, which);
	int descriptor = open(path, O_PATH | O_CLOEXEC);
	if (descriptor >= 0 && !mounts_are_local(w->pid, descriptor, &mode)) {
		close(descriptor);
		return 0;
	}
	return enter(w, descriptor);
}

static int walk(struct walk *w, const char *path, int follows);

/* The link at the end of what was walked: its text and the rest of the path are walked in its place. */
static int follow(struct walk *w, int link, const char *rest, int follows)
{
	char path[PATH_LIMIT];
	ssize_t length = readlinkat(link, "", path, sizeof path - 1);
	close(link);
	if (length <= 0 || ++w->links > LINKS || (size_t)length + strlen(rest) + 2 > sizeof path)
		return 0;
	path[length] = 0;
	strcat(path, rest);
	return walk(w, path, follows);
}

/* One name of the path, in the directory on top of the stack. `rest`: what comes behind it; empty: it is the last. 1: the walk goes on. */
static int step(struct walk *w, const char *name, size_t length, const char *rest, int follows, int *done)
{
	char text[NAME_MAX + 1];
	uint32_t mode;
	struct directory *here = &w->stack[w->depth - 1];
	*done = 0;
	if (length > NAME_MAX || !dependencies_add(&w->on, here->number, name_hash(name, length)))
		return 0;
	memcpy(text, name, length);
	text[length] = 0;
	int child = openat(here->descriptor, text, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (child < 0) {
		w->kind = errno == ENOENT ? NAME_ABSENT : 0;
		return 0;
	}
	if (!mounts_are_local(w->pid, child, &mode)) {
		close(child);
		return 0;
	}
	if (S_ISLNK(mode) && (*rest || follows)) {
		*done = 1;
		w->ended_in_link |= !*rest;
		return follow(w, child, rest, follows);
	}
	if (S_ISLNK(mode)) {
		ssize_t got = readlinkat(child, "", w->text, sizeof w->text);
		close(child);
		w->kind = got > 0 && got < (ssize_t)sizeof w->text ? NAME_LINK : 0;
		w->length = got > 0 ? (size_t)got : 0;
		return 0;
	}
	if (!S_ISDIR(mode)) {
		close(child);
		w->kind = NAME_NO_LINK;
		return 0;
	}
	return enter(w, child);
}

/* From the root, or from where the stack is. Whether it led to a directory, which is on top then; else see w->kind. */
static int walk(struct walk *w, const char *path, int follows)
{
	if (*path == '/' && !begin_at(w, "root"))
		return 0;
	while (*path) {
		while (*path == '/')
			path++;
		size_t length = strcspn(path, "/");
		const char *name = path, *rest = path + length;
		path = rest;
		if (!length || (length == 1 && *name == '.'))
			continue;
		if (length == 2 && name[0] == '.' && name[1] == '.') {
			if (w->depth < 2)
				return 0; /* above where it began: what leads there is not known */
			close(w->stack[--w->depth].descriptor);
			continue;
		}
		int done;
		if (!step(w, name, length, rest, follows, &done))
			return 0;
		if (done)
			return 1;
	}
	return w->depth > 0;
}

/* What a directory at the end is like, from when it is watched on: unless reads, which nothing reports, set its time of access. That it is
 * no link is so in any case. */
static void look(struct walk *w)
{
	struct directory *here = &w->stack[w->depth - 1];
	struct statfs system;
	w->kind = NAME_NO_LINK;
	if (!fstat(here->descriptor, &w->status) && !fstatfs(here->descriptor, &system) && access_time_stays(&w->status, &system, 0) &&
	    dependencies_add(&w->on, here->number, OWN_ATTRIBUTES))
		w->kind = NAME_STATUS;
}

/* By the directory that the path names all but its last name of, if it is known. Whether it was. */
static int walk_known(struct walk *w, const char *path, size_t head, int follows)
{
	uint32_t number;
	int known = head ? places_find(w->scope, path, head, &number, &w->on) : -1;
	int copy = known < 0 ? -1 : fcntl(known, F_DUPFD_CLOEXEC, 0);
	if (copy < 0)
		return 0;
	w->stack[w->depth++] = (struct directory){copy, number};
	if (walk(w, path + head + 1, follows))
		look(w);
	return 1;
}

/* Whether the directory is on the file system of the root. On another a descriptor would keep that from being unmounted. */
static int is_on_root(const struct walk *w)
{
	struct stat root, here;
	return !fstat(w->stack[0].descriptor, &root) && !fstat(w->stack[w->depth - 1].descriptor, &here) && root.st_dev == here.st_dev;
}

/* The first time: the directory is walked to by itself, and remembered. */
static void walk_new(struct walk *w, const char *path, size_t head, int follows)
{
	char directory[PATH_LIMIT];
	if (!head) {
		if ((*path == '/' || begin_at(w, "cwd")) && walk(w, path, follows))
			look(w);
		return;
	}
	memcpy(directory, path, head);
	directory[head] = 0;
	if ((*path != '/' && !begin_at(w, "cwd")) || !walk(w, directory, 1))
		return; /* absent in the middle, perhaps */
	struct directory *here = &w->stack[w->depth - 1];
	int copy = *path == '/' && is_on_root(w) ? fcntl(here->descriptor, F_DUPFD_CLOEXEC, 0) : -1;
	if (copy >= 0)
		places_put(w->scope, path, head, copy, here->number, &w->on);
	if (walk(w, path + head + 1, follows))
		look(w);
}

/* Where the last name begins less one; 0: there is no directory before it, or what is behind is no plain name. */
static size_t head_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;
	if (!slash || slash == path || !*name || !strcmp(name, ".") || !strcmp(name, ".."))
		return 0;
	return slash - path;
}

static struct name_answer *make_answer(const struct walk *w, const struct hearer *h, uint64_t position, int follows, size_t *size)
{
	size_t length = w->kind == NAME_STATUS ? sizeof w->status : w->kind == NAME_LINK ? w->length : 0;
	size_t on = w->on.count * sizeof *w->on.all;
	struct name_answer *a = malloc(sizeof *a + on + length);
	if (!a)
		return NULL;
	*a = (struct name_answer){watch_program(), w->scope, h->since,
	                          position,        w->kind,  w->ended_in_link || w->kind == NAME_LINK ? 1u << follows : 3,
	                          w->on.count,     length};
	memcpy(a + 1, w->on.all, on);
	memcpy((char *)(a + 1) + on, w->kind == NAME_STATUS ? (const void *)&w->status : w->text, length);
	*size = sizeof *a + on + length;
	return a;
}

/* What was looked up once more says the same as the call. readlink(2) of what is no link is an error, which says that there is a file, too. */
static int is_as_said(const struct walk *w, int64_t value)
{
	switch (w->kind) {
	case NAME_ABSENT:
		return value == -ENOENT;
	case NAME_STATUS:
		return value == -EINVAL || value >= 0;
	case NAME_LINK:
		return value >= 0;
	}
	return value == -EINVAL;
}

struct name_answer *names_take(struct hearer *h, int pid, uint64_t scope, const char *path, int follows, int64_t value, size_t *size)
{
	struct name_answer *answer = NULL;
	size_t all = strlen(path), head = head_of(path);
	if (!scope || !all || all >= PATH_LIMIT || path[all - 1] == '/' || (value < 0 && value != -ENOENT && value != -EINVAL))
		return NULL;
	struct walk *w = calloc(1, sizeof *w);
	if (!w)
		return NULL;
	w->pid = pid;
	w->scope = scope;
	watch_lock();
	if (!watch_mounts(pid)) {
		uint64_t position = watch_position();
		if (*path != '/' || !walk_known(w, path, head, follows))
			walk_new(w, path, head, follows);
		for (uint32_t i = 0; w->kind && i < w->on.count; i++)
			watch_name(&w->on.all[i]);
		if ((w->kind && !is_as_said(w, value)) || watch_position() != position)
			w->kind = 0;
		if (w->kind)
			watch_hear(h, position);
		if (w->kind)
			answer = make_answer(w, h, position, follows, size);
	}
	leave_all(w);
	watch_unlock();
	free(w);
	return answer;
}
