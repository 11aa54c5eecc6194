/* sandbox: the namespaces and the small root that a guest lives in, and what has to happen inside them.
 *
 *   sandbox create [CGROUP...]            reads requests from stdin, prints the id of the sandbox's process 1, and stays
 *   sandbox mount PID                     reads `bind` requests and carries them out in the sandbox of process 1 PID
 *   sandbox unmount PID PATH...           lazily; PATH "-" makes the root read-only
 *   sandbox run PID UID GID LAST [CGROUP...] -- PROGRAM [ARGUMENT...]
 *                                         PID 0: no sandbox. UID -1: as we are. Otherwise as that user with every capability
 *                                         except CAP_SYS_RESOURCE. LAST (0: as it comes): the pid before the one that the
 *                                         program gets in there. Exit status: the program's, 128 + signal when killed
 *
 * Requests are strings, each ended by NUL: `hostname NAME`, `domainname NAME`, `size BYTES`, `clocks MONOTONIC:BOOTTIME` (how
 * many ns ahead of the caller's they are inside), `numbers FD` (a socket through which process 1 is told the last pid, in digits,
 * or `v` and the pid of a vessel that it is to make, a process without a descriptor that waits for ever, or is given the mount of a file
 * and told where the guest shall see it, answered by '+' or '-'), `bind ro|rw SOURCE TARGET`
 * (every word its own string). Sources are opened in the caller's mount namespace, targets inside the sandbox, after its
 * root has become the only root: no target can lead out of it. CGROUP is the directory of a cgroup to join.
 *
 * Whatever fails ends this program with one line on stderr, status 125 and nothing left: mounts and namespaces die with
 * it. Every process here dies with the one that started it (PR_SET_PDEATHSIG), process 1 of the sandbox last in the row,
 * and with it all that is in the sandbox. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif

#ifndef CLONE_NEWCGROUP
#define CLONE_NEWCGROUP 0x02000000
#endif
#ifndef OPEN_TREE_CLONE
#define OPEN_TREE_CLONE 1
#endif
#ifndef MOVE_MOUNT_F_EMPTY_PATH
#define MOVE_MOUNT_F_EMPTY_PATH 4
#endif
struct mount_attributes { /* struct mount_attr */
    unsigned long long set, clear, propagation, userns;
};
#define ATTRIBUTE_RDONLY 1
#define ATTRIBUTE_NOSUID 2
#define ATTRIBUTE_NODEV 4
#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif
#define CGROUPS 32 /* hierarchies */
#define NAMESPACES (CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC)
#define MAX_REQUEST (16 << 20)
#define MAX_BINDS 20000

static void fail(const char *what)
{
    fprintf(stderr, "sandbox: %s: %s\n", what, strerror(errno));
    exit(125);
}

static void die_with_parent(pid_t parent)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL))
        fail("PR_SET_PDEATHSIG");
    if (parent && getppid() != parent)
        exit(125); /* it died before */
}

/* A descriptor for enter_cgroup(). */
static int open_cgroup(const char *directory)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/cgroup.procs", directory) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        fail(directory);
    }
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        fail(path);
    return fd;
}

static void enter_cgroup(int fd)
{
    if (write(fd, "0", 1) != 1)
        fail("cgroup");
    close(fd);
}

/* ---- requests */

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

static char *read_all(size_t *length)
{
    char *buffer = malloc(MAX_REQUEST + 1);
    size_t n = 0;
    ssize_t r;
    if (!buffer)
        fail("memory");
    while ((r = read(0, buffer + n, MAX_REQUEST - n)) > 0)
        n += r;
    if (r < 0)
        fail("requests");
    buffer[n] = 0;
    *length = n;
    return buffer;
}

static void open_source(struct bind *bind, const char *mode, const char *source)
{
    struct mount_attributes a = {ATTRIBUTE_NOSUID, 0, 1 << 18 /* MS_PRIVATE */, 0};
    struct stat st;
    if (!strcmp(mode, "ro"))
        a.set |= ATTRIBUTE_RDONLY;
    if (!strcmp(mode, "dev"))
        a.set = 0;
    else
        a.set |= ATTRIBUTE_NODEV;
    bind->tree = syscall(SYS_open_tree, AT_FDCWD, source, OPEN_TREE_CLONE | O_CLOEXEC);
    if (bind->tree < 0 || syscall(SYS_mount_setattr, bind->tree, "", AT_EMPTY_PATH, &a, sizeof a))
        fail(source);
    if (fstat(bind->tree, &st))
        fail(source);
    bind->is_directory = S_ISDIR(st.st_mode);
}

static struct requests read_requests(void)
{
    struct requests q = {0};
    size_t length;
    char *at = read_all(&length), *end = at + length;
    const char *words[4];
    q.size = "1g";
    q.numbers = -1;
    q.binds = calloc(MAX_BINDS, sizeof *q.binds);
    while (at < end) {
        int want = !strcmp(at, "bind") ? 4 : 2;
        for (int i = 0; i < want; i++) {
            if (at >= end) {
                errno = EINVAL;
                fail("requests");
            }
            words[i] = at;
            at += strlen(at) + 1;
        }
        if (!strcmp(words[0], "hostname"))
            q.hostname = words[1];
        else if (!strcmp(words[0], "domainname"))
            q.domainname = words[1];
        else if (!strcmp(words[0], "size"))
            q.size = words[1];
        else if (!strcmp(words[0], "clocks"))
            q.clocks = words[1];
        else if (!strcmp(words[0], "numbers"))
            q.numbers = atoi(words[1]);
        else if (want == 4 && q.count < MAX_BINDS) {
            open_source(&q.binds[q.count], words[1], words[2]);
            q.binds[q.count++].target = words[3];
        } else {
            errno = EINVAL;
            fail(words[0]);
        }
    }
    return q;
}

/* ---- inside the sandbox */

static int make_parents(const char *path)
{
    char copy[4096];
    if (path[0] != '/' || strlen(path) >= sizeof copy) {
        errno = EINVAL;
        return -1;
    }
    strcpy(copy, path);
    for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(copy, 0755) && errno != EEXIST)
            return -1;
        *slash = '/';
    }
    return 0;
}

static int try_to_place(const struct bind *bind)
{
    if (make_parents(bind->target))
        return -1;
    if (bind->is_directory) {
        if (mkdir(bind->target, 0755) && errno != EEXIST)
            return -1;
    } else {
        int fd = open(bind->target, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
        if (fd >= 0)
            close(fd);
        else if (errno != EEXIST)
            return -1;
    }
    return syscall(SYS_move_mount, bind->tree, "", AT_FDCWD, bind->target, MOVE_MOUNT_F_EMPTY_PATH);
}

static void place(const struct bind *bind)
{
    if (try_to_place(bind))
        fail(bind->target);
    close(bind->tree);
}

static void make_directory(const char *path)
{
    if (mkdir(path, 0755) && errno != EEXIST)
        fail(path);
}

/* CRIU's kernel probes connect to themselves. */
static void raise_loopback(void)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request))
        fail("loopback");
    close(fd);
}

static void make_root(const struct requests *q)
{
    char options[64];
    snprintf(options, sizeof options, "mode=0755,size=%s", q->size);
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        fail("making mounts private");
    /* Any directory will do to stack the new root on; every system has this one. */
    if (mount("tmpfs", "/proc", "tmpfs", MS_NOSUID | MS_NODEV, options) || chdir("/proc"))
        fail("tmpfs");
    /* Both roots at one place; the old one is then on top and goes with all its mounts. */
    if (syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
        fail("pivot_root");
    make_directory("/proc");
    make_directory("/dev");
    make_directory("/run");
    make_directory("/tmp"); /* CRIU's kernel probes want it */
    make_directory("/.farhome");
    make_directory("/.farhome/criu");
    make_directory("/.farhome/images");
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL))
        fail("/proc");
    /* CRIU keeps what it learned of the kernel on /run, if that is a tmpfs. */
    if (mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=16m"))
        fail("/run");
    for (int i = 0; i < q->count; i++)
        place(&q->binds[i]);
    if (q->hostname && sethostname(q->hostname, strlen(q->hostname)))
        fail("hostname");
    if (q->domainname && setdomainname(q->domainname, strlen(q->domainname)))
        fail("domainname");
}

/* Only a process inside the namespace can say which pid comes next. */
static int set_next_pid(int last_pid, const char *text, ssize_t length)
{
    return length > 0 && pwrite(last_pid, text, length, 0) == length;
}

static void reap(void)
{
    while (waitpid(-1, NULL, __WALL | WNOHANG) > 0)
        ;
}

/* One that had this pid before may have to be reaped yet. */
static int make_vessel(pid_t pid)
{
    struct {
        unsigned long long flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
    } a = {.exit_signal = SIGCHLD, .set_tid = (unsigned long long)&pid, .set_tid_size = 1};
    for (int tries = 0; tries < 2000; tries++) {
        pid_t child = syscall(SYS_clone3, &a, sizeof a);
        if (child < 0 && errno == EEXIST) {
            usleep(250);
            reap();
            continue;
        }
        if (child)
            return child > 0;
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        setsid();
        syscall(SYS_close_range, 0, ~0u, 0);
        for (;;)
            pause();
    }
    return 0;
}

static int remount_root(int read_only)
{
    return mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | (read_only ? MS_RDONLY : 0), NULL);
}

/* One more file, in a sandbox that is sealed. The guest makes no file call here: it does not meet a root that can be written. */
static int show_file(int tree, const char *target)
{
    struct bind bind = {tree, 0, target};
    if (remount_root(0))
        return 0;
    int is_placed = !try_to_place(&bind);
    return !remount_root(1) && is_placed;
}

/* What came through the socket, and a descriptor if one came along. */
static ssize_t take_request(int numbers, char *text, size_t room, int *descriptor)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec where = {text, room - 1};
    struct msghdr message = {.msg_iov = &where, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t length = recvmsg(numbers, &message, MSG_CMSG_CLOEXEC);
    struct cmsghdr *given = length > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    text[length > 0 ? length : 0] = 0;
    *descriptor = -1;
    if (given && given->cmsg_type == SCM_RIGHTS)
        memcpy(descriptor, CMSG_DATA(given), sizeof *descriptor);
    return length;
}

/* Reaps orphans, and does what comes through `numbers`, answered by '+' or '-'. */
static void serve_forever(int children, int numbers, int last_pid)
{
    struct pollfd watched[2] = {{children, POLLIN, 0}, {numbers, POLLIN, 0}};
    char text[4096];
    for (;;) {
        reap();
        poll(watched, 2, 1000); /* a task with exit signal 0 tells nobody of its end */
        if (watched[0].revents && read(children, text, sizeof text) < 0 && errno != EAGAIN)
            watched[0].fd = -1;
        if (watched[1].revents) {
            int tree;
            ssize_t length = take_request(numbers, text, sizeof text, &tree);
            int done = tree >= 0 ? show_file(tree, text) : *text == 'v' ? make_vessel(atoi(text + 1)) : set_next_pid(last_pid, text, length);
            char answer = done ? '+' : '-';
            if (tree >= 0)
                close(tree);
            if (length <= 0 || write(numbers, &answer, 1) != 1)
                watched[1].fd = -1;
        }
    }
}

/* The children's clocks run ahead of ours. Offsets are told against the first time namespace of all, so that ours count too. */
static void shift_clocks(const char *ahead)
{
    static const char *names[] = {"monotonic", "boottime"};
    long long shift[2], offset[2] = {0, 0};
    char line[128], name[32];
    long long seconds, nanoseconds;
    if (sscanf(ahead, "%lld:%lld", &shift[0], &shift[1]) != 2) {
        errno = EINVAL;
        fail("clocks");
    }
    if (unshare(CLONE_NEWTIME))
        fail("time namespace");
    FILE *file = fopen("/proc/self/timens_offsets", "re");
    if (!file)
        fail("timens_offsets");
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%31s %lld %lld", name, &seconds, &nanoseconds) == 3)
            for (int i = 0; i < 2; i++)
                if (!strcmp(name, names[i]))
                    offset[i] = seconds * 1000000000LL + nanoseconds;
    fclose(file);
    int fd = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
    for (int i = 0; i < 2; i++) {
        long long wanted = offset[i] + shift[i];
        seconds = wanted / 1000000000LL;
        nanoseconds = wanted % 1000000000LL;
        if (nanoseconds < 0) {
            nanoseconds += 1000000000LL;
            seconds--;
        }
        int size = snprintf(line, sizeof line, "%s %lld %lld\n", names[i], seconds, nanoseconds);
        if (fd < 0 || write(fd, line, size) != size)
            fail("timens_offsets");
    }
    close(fd);
}

/* Only process 1 is in the guest's cgroups, and not before it is ready: there it has to wait for its turn among other guests. */
static int create(char **cgroups)
{
    int up[2], groups[CGROUPS], count = 0;
    char ok;
    struct requests q = read_requests();
    die_with_parent(0);
    for (; *cgroups && count < CGROUPS; cgroups++)
        groups[count++] = open_cgroup(*cgroups);
    if (*cgroups) {
        errno = E2BIG;
        fail(*cgroups);
    }
    if (unshare(NAMESPACES))
        fail("unshare");
    if (q.clocks)
        shift_clocks(q.clocks);
    if (pipe2(up, O_CLOEXEC))
        fail("pipe");
    pid_t self = getpid(), first = fork();
    if (first < 0)
        fail("fork");
    if (!first) {
        /* The parent is outside this pid namespace: getppid() is 0 as long as it lives, too. */
        (void)self;
        die_with_parent(0);
        close(up[0]);
        setsid();
        sigset_t children;
        sigemptyset(&children);
        sigaddset(&children, SIGCHLD);
        sigprocmask(SIG_BLOCK, &children, NULL);
        make_root(&q);
        raise_loopback();
        prctl(PR_SET_NAME, "farhome-sandbox");
        int last_pid = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
        int orphans = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
        if (last_pid < 0 || orphans < 0)
            fail("process 1");
        for (int i = 0; i < count; i++)
            enter_cgroup(groups[i]);
        if (unshare(CLONE_NEWCGROUP))
            fail("unshare");
        if (write(up[1], "+", 1) != 1)
            fail("pipe");
        /* Nothing else stays open: first out of the way, for what is needed may have one of these numbers. */
        int kept[3] = {q.numbers, last_pid, orphans};
        for (int i = 0; i < 3; i++)
            kept[i] = kept[i] < 0 ? -1 : fcntl(kept[i], F_DUPFD_CLOEXEC, 64);
        for (int i = 0; i < 3; i++)
            if (kept[i] < 0 || dup2(kept[i], i) < 0)
                close(i);
        syscall(SYS_close_range, 3, ~0u, 0);
        serve_forever(2, q.numbers < 0 ? -1 : 0, 1);
    }
    close(up[1]);
    if (read(up[0], &ok, 1) != 1)
        exit(125); /* it has said why */
    printf("%d\n", first);
    fflush(stdout);
    close(1);
    int status;
    while (waitpid(first, &status, __WALL) < 0 && errno == EINTR)
        ;
    return 0;
}

/* ---- from outside */

static void enter(const char *pid, int namespaces)
{
    int fd = syscall(SYS_pidfd_open, atoi(pid), 0);
    if (fd < 0 || setns(fd, namespaces) || chdir("/"))
        fail("entering the sandbox");
    close(fd);
}

static int mount_into(const char *pid)
{
    struct requests q = read_requests();
    enter(pid, CLONE_NEWNS);
    for (int i = 0; i < q.count; i++)
        place(&q.binds[i]);
    return 0;
}

static int unmount(const char *pid, char **paths)
{
    enter(pid, CLONE_NEWNS);
    for (; *paths; paths++) {
        if (!strcmp(*paths, "-")) {
            if (remount_root(1))
                fail("making the root read-only");
        } else if (umount2(*paths, MNT_DETACH) && errno != EINVAL && errno != ENOENT)
            fail(*paths);
    }
    return 0;
}

/* Another user, but with all capabilities that we have, except CAP_SYS_RESOURCE: also after exec. */
static void become(unsigned uid, unsigned gid)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    if (prctl(PR_SET_KEEPCAPS, 1) || setgroups(0, NULL) || setresgid(gid, gid, gid) || setresuid(uid, uid, uid))
        fail("becoming the user");
    if (syscall(SYS_capget, &header, data))
        fail("capget");
    data[0].permitted &= ~(1u << CAP_SYS_RESOURCE);
    for (int i = 0; i < 2; i++)
        data[i].effective = data[i].inheritable = data[i].permitted;
    if (syscall(SYS_capset, &header, data))
        fail("capset");
    for (int cap = 0; cap < 64; cap++)
        if (data[cap / 32].permitted & (1u << (cap % 32)))
            if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0))
                fail("ambient capability");
}

/* Keeps the program and its children off the pids that it is to give out. Only a process inside the namespace can. */
static void set_last_pid(const char *last)
{
    int status;
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    if (!child) {
        int fd = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
        if (fd < 0 || write(fd, last, strlen(last)) < 0)
            fail("ns_last_pid");
        _exit(0);
    }
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            fail("waitpid");
    if (status)
        exit(125);
}

static int run(char **arguments)
{
    const char *pid = arguments[0];
    long uid = atol(arguments[1]), gid = atol(arguments[2]);
    const char *last = arguments[3];
    char **program = arguments + 4;
    int status;
    for (; *program && strcmp(*program, "--"); program++)
        enter_cgroup(open_cgroup(*program));
    if (!*program || !*++program) {
        errno = EINVAL;
        fail("run");
    }
    die_with_parent(0);
    if (strcmp(pid, "0"))
        enter(pid, NAMESPACES | CLONE_NEWCGROUP | CLONE_NEWTIME);
    if (strcmp(last, "0"))
        set_last_pid(last);
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    if (!child) {
        if (uid >= 0)
            become(uid, gid);
        die_with_parent(0); /* after become(): a change of credentials clears it */
        execv(*program, program);
        fail(*program);
    }
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            fail("waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv)
{
    prctl(PR_SET_MEMORY_MERGE, 0, 0, 0, 0);     /* our caller's memory may be merged, a guest's is nobody's to compare */
    if (argc >= 2 && !strcmp(argv[1], "create"))
        return create(argv + 2);
    if (argc == 3 && !strcmp(argv[1], "mount"))
        return mount_into(argv[2]);
    if (argc >= 3 && !strcmp(argv[1], "unmount"))
        return unmount(argv[2], argv + 3);
    if (argc >= 7 && !strcmp(argv[1], "run"))
        return run(argv + 2);
    fprintf(stderr, "sandbox: create | mount PID | unmount PID PATH... | run PID UID GID LAST [CGROUP...] -- PROGRAM...\n");
    return 125;
}
