/* What the program before this one has promised to peers. */
#define _GNU_SOURCE
#include "mfs/server/sessions/request.h"

#include <glob.h>
#include <stdio.h>
#include <unistd.h>

static long long predecessors_until; /* ms: what the program before this one has promised */

void mfs_sessions_begin(void)
{
	char pattern[4096];
	glob_t found;

	snprintf(pattern, sizeof pattern, "%s/*.nodes", mfs_run_directory);
	if (glob(pattern, GLOB_NOSORT, NULL, &found) != GLOB_NOMATCH)
		predecessors_until = mfs_now() + MFS_SETTLES_WITHIN;
	globfree(&found);
}

void mfs_wait_for_predecessor(struct mfs_request *request)
{
	long long left = predecessors_until - mfs_now();

	if (left <= 0)
		return;
	mfs_step_down(request);
	usleep((useconds_t)left * 1000);
}
