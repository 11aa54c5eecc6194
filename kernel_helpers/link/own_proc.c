/* Paths in /proc by which a process looks at itself. What these files show, the stub at home would show of itself: its hollow memory, its
 * masks, its tracer. What becomes of such an open, Python decides (remote/requests/own_proc.py). */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include "link/link.h"

static const char *const names[] = {"maps",    "smaps",   "smaps_rollup", "numa_maps", "status",  "stat",      "statm",
                                    "cmdline", "environ", "auxv",         "mem",       "pagemap", "clear_refs"};

static int is_named(const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!strcmp(name, names[i]))
			return 1;
	return 0;
}

int own_proc_path(const char *path, uint32_t *id)
{
	*id = 0;
	if (*path != '/')
		return is_named(path);
	if (strncmp(path, "/proc/", 6))
		return 0;
	const char *who = path + 6, *rest = strchr(who, '/');
	if (!rest || !(is_named(rest) || !strncmp(rest, "/map_files/", 11)))
		return 0;
	if (!strncmp(who, "self/", 5) || !strncmp(who, "thread-self/", 12))
		return 1;
	char *end;
	*id = strtoul(who, &end, 10);
	return end == rest && *id;
}
