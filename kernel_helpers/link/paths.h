/* Which calls name a path, and which open a file for reading alone: the same for both ends. */
#ifndef FARHOME_LINK_PATHS_H
#define FARHOME_LINK_PATHS_H
#include <stdint.h>

#pragma GCC visibility push(hidden)
struct named_path {
	int argument;           /* the path */
	int is_relative;        /* to the descriptor in argument 0, which may be AT_FDCWD */
	int follows;            /* a link at its end */
};

/* Whether the call names a path of which home may say what there is to know. */
int call_names_path(long number, const uint64_t arguments[6], struct named_path *named);
/* Whether the call opens something for reading alone, so that its reply may carry answers. */
int call_only_reads(long number, const uint64_t arguments[6]);
/* Whether it opens something that is written to, and not at once to the disk. */
int call_opens_to_write(long number, const uint64_t arguments[6]);
#pragma GCC visibility pop
#endif
