/* A row for each file that remembers something of requests and replies: what it does at each of them. */
#include "mfs/client/kernel/kernel.h"

const struct mfs_memory mfs_memories[MFS_MEMORIES] = {
	{.asked = mfs_known_answers, .answered = mfs_known_learns},
	{.asked = mfs_beside_answers},
	{.asked = mfs_promises_asked, .answered = mfs_promises_come},
};
