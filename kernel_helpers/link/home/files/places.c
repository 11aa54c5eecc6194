/* Directories that paths have led to: see places.h. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "link/home/files/places.h"

#define MOST 256                /* directories, each with a descriptor */

struct place {
	char *path;             /* NULL: none */
	size_t length;
	uint64_t scope;
	int descriptor;
	uint32_t directory;
	struct dependencies on;
};

static struct place places[MOST];
static unsigned next_place;

int dependencies_add(struct dependencies *d, uint32_t directory, uint32_t name)
{
	struct dependency fresh = {directory, name};
	for (uint32_t i = 0; i < d->count; i++)
		if (!memcmp(&d->all[i], &fresh, sizeof fresh))
			return 1;
	if (d->count >= DEPENDENCIES_LIMIT)
		return 0;
	d->all[d->count++] = fresh;
	return 1;
}

int places_find(uint64_t scope, const char *path, size_t length, uint32_t *directory, struct dependencies *on)
{
	for (unsigned i = 0; i < MOST; i++) {
		struct place *p = &places[i];
		if (!p->path || p->scope != scope || p->length != length || memcmp(p->path, path, length))
			continue;
		*directory = p->directory;
		*on = p->on;
		return p->descriptor;
	}
	return -1;
}

static void forget(struct place *p)
{
	if (!p->path)
		return;
	free(p->path);
	p->path = NULL;
	close(p->descriptor);
}

void places_put(uint64_t scope, const char *path, size_t length, int descriptor, uint32_t directory, const struct dependencies *on)
{
	struct place *p = &places[next_place++ % MOST];
	forget(p);
	char *copy = malloc(length + 1);
	if (!copy) {
		close(descriptor);
		return;
	}
	memcpy(copy, path, length);
	*p = (struct place){copy, length, scope, descriptor, directory, *on};
}

void places_recall(const struct dependency *changed)
{
	for (unsigned i = 0; i < MOST; i++)
		if (places[i].path && dependencies_have(places[i].on.all, places[i].on.count, changed))
			forget(&places[i]);
}
