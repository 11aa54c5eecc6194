/* What the files of sandbox share.
 *
 *   main.c      its commands
 *   create.c    makes it, and keeps it
 *   requests.c  what the sandbox is to be
 *   root.c      its tree of files, made and changed from inside
 *   init.c      what its process 1 does
 *   process.c   what a process sets of its own
 *   fail.c      how all of them end that fail */
#ifndef FARHOME_SANDBOX_H
#define FARHOME_SANDBOX_H
#include <sched.h>

#ifndef CLONE_NEWCGROUP
#define CLONE_NEWCGROUP 0x02000000
#endif
#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

struct bind {
	int tree;       /* a detached copy of the source's mount */
	int is_directory;
	const char *target;
};

struct requests {
	const char *hostname, *domainname, *size, *clocks;
	const char *uids, *gids; /* lines of the maps; NULL: no user namespace */
	unsigned root;           /* root inside, as it is outside */
	struct bind *binds;
	int count, numbers, files;
};

/* Ends this program with one line on standard error, about errno. */
void sandbox_fail(const char *what) __attribute__((noreturn));

void sandbox_die_with_parent(void);

/* A descriptor for sandbox_enter_cgroup(). */
int sandbox_open_cgroup(const char *directory);
void sandbox_enter_cgroup(int fd);

/* The commands `create` and `try`. */
int sandbox_create(char **cgroups);
int sandbox_try(void);

/* Where memory is short, guests end before anything of the node's own: the caller is one, and what it starts. */
void sandbox_offer_to_oom_killer(void);

/* Of the user namespace that the caller is in, and has all capabilities of. */
void sandbox_become_root(void);

/* From standard input. */
struct requests sandbox_read_requests(void);

/* The caller is in the new mount namespace, and its root is another one afterwards; without /proc yet. */
void sandbox_make_root(const struct requests *q);
void sandbox_place(const struct bind *bind);
/* 0, or -1 and errno. */
int sandbox_remount_root(int read_only);
/* One more file, in a sandbox that is confined: whether it is there. The guest makes no file call here: it does not meet a root that can be
 * written. */
int sandbox_show_file(int tree, const char *target);

/* What came through a socket, and a descriptor if one came along, else -1. Returns its length. */
long sandbox_take_request(int socket, char *text, unsigned long room, int *descriptor);

/* Reaps orphans, that `children` (a signalfd) reports, and does what comes through `numbers`, answered by '+' or '-'. */
void sandbox_serve_forever(int children, int numbers, int last_pid) __attribute__((noreturn));

#endif
