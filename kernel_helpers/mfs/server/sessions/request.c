/* What a request says. */
#define _GNU_SOURCE
#include "mfs/server/sessions/request.h"

#include <string.h>

void *mfs_argument(struct mfs_request *request, size_t size)
{
	return request->size >= size ? request->argument : NULL;
}

const char *mfs_word(struct mfs_request *request, size_t skip)
{
	size_t length;

	if (request->size <= skip)
		return NULL;
	length = strnlen(request->argument + skip, request->size - skip);
	return length && length < request->size - skip ? request->argument + skip : NULL;
}

const char *mfs_name(struct mfs_request *request, size_t skip)
{
	const char *name = mfs_word(request, skip);

	/* One step: no way up, and none further down. */
	return !name || !strcmp(name, ".") || !strcmp(name, "..") || strchr(name, '/') ? NULL : name;
}

const char *mfs_second_name(struct mfs_request *request, const char *first)
{
	const char *second = first + strlen(first) + 1;
	size_t left = (size_t)(request->argument + request->size - second);
	size_t length = second < request->argument + request->size ? strnlen(second, left) : 0;

	return length && length < left ? second : NULL;
}
