/* Directories that paths have led to: by its path, what a directory is and which names lead there. With the lock of watch.h held. */
#ifndef FARHOME_PLACES_H
#define FARHOME_PLACES_H
#include "link/link.h"

#define PATH_LIMIT 4096u

/* What an answer depends on: names in directories that are watched. */
struct dependencies {
	uint32_t count;
	struct dependency all[DEPENDENCIES_LIMIT];
};

#pragma GCC visibility push(hidden)
/* Names of at most DEPENDENCIES_LIMIT. Whether there was room. */
int dependencies_add(struct dependencies *d, uint32_t directory, uint32_t name);

/* A descriptor (O_PATH) of the directory, which stays the cache's; -1: it is not known. `directory`: its number. */
int places_find(uint64_t scope, const char *path, size_t length, uint32_t *directory, struct dependencies *on);
/* The descriptor is given away. */
void places_put(uint64_t scope, const char *path, size_t length, int descriptor, uint32_t directory, const struct dependencies *on);
/* A name has changed: what it leads to is forgotten. */
void places_recall(const struct dependency *changed);
#pragma GCC visibility pop
#endif
