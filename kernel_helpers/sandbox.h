/* What the files of sandbox share.
 *
 *   sandbox.c           its commands
 *   sandbox_requests.c  what the sandbox is to be
 *   sandbox_root.c      its tree of files, made and changed from inside
 *   sandbox_first.c     what its process 1 does */
#ifndef FARHOME_SANDBOX_H
#define FARHOME_SANDBOX_H

struct bind {
    int tree;       /* a detached copy of the source's mount */
    int is_directory;
    const char *target;
};

struct requests {
    const char *hostname, *domainname, *size, *clocks;
    struct bind *binds;
    int count, numbers;
};

/* Ends this program with one line on standard error, about errno. */
void sandbox_fail(const char *what) __attribute__((noreturn));

/* From standard input. */
struct requests sandbox_read_requests(void);

/* The caller is in the new namespaces, and its root is another one afterwards. */
void sandbox_make_root(const struct requests *q);
void sandbox_place(const struct bind *bind);
/* 0, or -1 and errno. */
int sandbox_remount_root(int read_only);
/* One more file, in a sandbox that is sealed: whether it is there. The guest makes no file call here: it does not meet a root that can be
 * written. */
int sandbox_show_file(int tree, const char *target);

/* Reaps orphans, of whom `children` (a signalfd) tells, and does what comes through `numbers`, answered by '+' or '-'. */
void sandbox_serve_forever(int children, int numbers, int last_pid) __attribute__((noreturn));

#endif
