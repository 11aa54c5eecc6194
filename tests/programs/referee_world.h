/* What an episode of tests/programs/referee.c finds: memory, descriptors, names of processes, handlers; its begin and its end. */
#ifndef REFEREE_WORLD_H
#define REFEREE_WORLD_H
#include <arpa/inet.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <ucontext.h>
#include "referee.h"

/* ---- names of what has other numbers in each run ---- */

static struct {
	char name;
	int64_t value;
} names[40];
static unsigned names_count;

static void know(char name, int64_t value)
{
	if (names_count < 40) {
		names[names_count].name = name;
		names[names_count++].value = value;
	}
}

/* The last of that name. */
static uint64_t known(char name)
{
	for (unsigned i = names_count; i-- > 0;)
		if (names[i].name == name)
			return names[i].value;
	return 0x3ffffe;            /* of no process */
}

/* Only numbers that are no others: processes have high ones here. */
static char name_of(int64_t value)
{
	for (unsigned i = 0; i < names_count; i++)
		if (names[i].value == value && value > 65536)
			return names[i].name;
	return 0;
}

/* ---- signals ---- */

static struct note {
	int thread, signal, code;
	int64_t first, second;
} notes[256];
static unsigned notes_count, notes_recorded[4];
static volatile int is_storing;
static sigjmp_buf stored;

static void note(int signal, siginfo_t *info, void *context)
{
	unsigned at = __atomic_fetch_add(&notes_count, 1, __ATOMIC_SEQ_CST) % 256;
	int64_t first = 0, second = 0;
	if (signal == SIGSEGV || signal == SIGBUS) {
		if (!is_storing) {
			record("at %llx, for %p: ", ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP], info->si_addr);
			exit_with("a fault of its own");
		}
		first = (int64_t)info->si_addr;
	} else if (info->si_code == SI_USER || info->si_code == SI_TKILL)
		first = info->si_pid, second = info->si_uid;
	else if (info->si_code == SI_QUEUE)
		first = info->si_pid, second = info->si_value.sival_int;
	else if (info->si_code == SI_TIMER)
		second = info->si_value.sival_int;
	else if (signal == SIGCHLD)
		first = info->si_pid, second = info->si_status;
	else if (info->si_code > 0 && info->si_code <= POLL_HUP)
		first = info->si_band, second = info->si_fd;
	notes[at] = (struct note){me, signal, info->si_code, first, second};
	if (is_storing && (signal == SIGSEGV || signal == SIGBUS))
		siglongjmp(stored, 1);
}

static void record_notes(int thread)
{
	unsigned end = notes_count;
	for (unsigned i = notes_recorded[thread & 3]; i < end; i++) {
		struct note *n = &notes[i % 256];
		if (n->thread != thread)
			continue;
		record(" !%d,%d,", n->signal, n->code);
		if (name_of(n->first))
			record("@%c,%lx", name_of(n->first), n->second);
		else
			record("%lx,%lx", n->first, n->second);
	}
	notes_recorded[thread & 3] = end;
}

static void handle(int signal)
{
	struct {
		uint64_t handler, flags, restorer, mask;
	} action = {HANDLER, SA_SIGINFO | SA_RESTART | 0x4000000, RESTORER, 0};
	call(SYS_rt_sigaction, signal, (uint64_t)&action, 0, 8, 0, 0);
}

static void store(uint64_t at, uint64_t byte)
{
	if (at < GROUND || at >= GROUND + GROUND_PAGES * 4096)
		return;
	is_storing = 1;
	if (!sigsetjmp(stored, 1))
		*(volatile unsigned char *)at = byte;
	is_storing = 0;
}

/* ---- memory and descriptors ---- */

static void map(uint64_t at, uint64_t size, int rights)
{
	if (mmap((void *)at, size, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		exit_with("memory cannot be mapped");
}

static void lay_out_memory(void)
{
	map(DATA, DATA_SIZE, PROT_READ | PROT_WRITE);
	map(READ_ONLY, 4096, PROT_READ | PROT_WRITE);
	memset((void *)READ_ONLY, 0x11, 4096);
	strcpy((char *)READ_ONLY, "data");
	mprotect((void *)READ_ONLY, 4096, PROT_READ);
	map(NOTHING, 4096, PROT_NONE);
	map(GROUND, GROUND_PAGES / 2 * 4096, PROT_READ | PROT_WRITE);
	map(CODE, 4096, PROT_READ | PROT_WRITE | PROT_EXEC);
	unsigned char jump[] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0}, back[] = {0xb8, 15, 0, 0, 0, 0x0f, 0x05};
	void (*to)(int, siginfo_t *, void *) = note;
	memcpy(jump + 2, &to, 8);
	memcpy((void *)HANDLER, jump, sizeof jump);
	memcpy((void *)RESTORER, back, sizeof back);
}

/* The descriptor gets that number. */
static void place(int fd, int number)
{
	if (fd < 0 || dup3(fd, number, 0) < 0)
		record("no descriptor %d: %s\n", number, strerrorname_np(errno));
	if (fd >= 0 && fd != number)
		close(fd);
}

static int file(const char *name, int flags, const char *text)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		record("no file %s\n", name);
	if ((flags & O_ACCMODE) == O_RDWR)
		return lseek(fd, 0, SEEK_SET), fd;
	close(fd);
	return open(name, flags);
}

static void place_sockets(void)
{
	int pair[2];
	struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof here;
	socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair);
	place(pair[0], 25), place(pair[1], 26);
	socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, pair);
	place(pair[0], 27), place(pair[1], 28);
	place(socket(AF_INET, SOCK_STREAM, 0), 29);
	if (bind(29, (void *)&here, sizeof here) || listen(29, 4) || getsockname(29, (void *)&here, &length))
		record("no listener\n");
	place(socket(AF_INET, SOCK_STREAM, 0), 30);
	if (connect(30, (void *)&here, sizeof here))
		record("no connection\n");
	place(accept(29, NULL, NULL), 31);
	for (int i = 29; i < 32; i++)
		fcntl(i, F_SETFL, O_NONBLOCK);
	place(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), 32);
}

static void place_descriptors(void)
{
	int pair[2];
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x2323};
	place(open("/dev/null", O_RDWR), 0);
	place(file("said", O_RDWR, ""), 1);
	dup2(1, 2);
	mkdir("sub", 0755);
	place(file("data", O_RDWR, "what is in a file, of which some is read, some is not and some is written anew\n"), 20);
	place(file("fixed", O_RDONLY, "what nobody has open for writing, so that it can be mapped\n"), 21);
	close(file("sub/one", O_RDONLY, "one\n"));
	symlink("data", "link");
	symlink("nowhere", "dangling");
	symlink("loop", "loop");
	mkfifo("fifo", 0600);
	place(open(".", O_RDONLY | O_DIRECTORY), 22);
	if (pipe2(pair, O_NONBLOCK) || write(pair[1], "some bytes in a pipe", 20) < 0)
		record("no pipe\n");
	place(pair[0], 23), place(pair[1], 24);
	place_sockets();
	place(eventfd(3, EFD_NONBLOCK), 33);
	place(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), 34);
	place(epoll_create1(0), 35);
	epoll_ctl(35, EPOLL_CTL_ADD, 23, &event);
	event.data.u64 = 0x3333;
	epoll_ctl(35, EPOLL_CTL_ADD, 33, &event);
	place(inotify_init1(IN_NONBLOCK), 36);
	place(memfd_create("memory", 0), 37);
	place(posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK), 38);
	unlockpt(38);
	place(open(ptsname(38) ?: "", O_RDWR | O_NOCTTY | O_NONBLOCK), 39);
	place(open("/dev/zero", O_RDWR), 40);
	place(open("data", O_PATH), 41);
	place(open("sub", O_RDONLY | O_DIRECTORY), 42);
}

static void prepare_objects(void)
{
	char name[40];
	struct mq_attr attributes = {.mq_maxmsg = 4, .mq_msgsize = 64};
	snprintf(name, sizeof name, "/referee.%d", getpid());
	place(mq_open(name, O_RDWR | O_CREAT | O_NONBLOCK, 0600, &attributes), 43);
	mq_unlink(name);
}

/* Those of the kernel that outlive a process belong to the one that begins the episodes. */
static int queue = -1, semaphores = -1, segment = -1;

static void make_objects(void)
{
	know('q', queue = msgget(IPC_PRIVATE, 0600));
	know('e', semaphores = semget(IPC_PRIVATE, 3, 0600));
	know('m', segment = shmget(IPC_PRIVATE, 4096, 0600));
}

static void remove_objects(void)
{
	msgctl(queue, IPC_RMID, NULL);
	semctl(semaphores, 0, IPC_RMID);
	shmctl(segment, IPC_RMID, NULL);
}

/* ---- begin and end ---- */

static char *whole_file(const char *path)
{
	struct stat about;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &about))
		exit(66);
	char *text = mmap(NULL, about.st_size + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (off_t done = 0, n; done < about.st_size; done += n)
		if (text == MAP_FAILED || (n = read(fd, text + done, about.st_size - done)) <= 0)
			exit(66);
	close(fd);
	return text;
}

static void open_record(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644);
	if (fd < 0 || dup3(fd, RECORD_FD, O_CLOEXEC) < 0)
		exit(66);
	close(fd);
}

static pid_t begin(unsigned number, unsigned flags)
{
	char name[20];
	names_count = 0;
	if (flags & OBJECTS)
		make_objects();
	snprintf(name, sizeof name, "%u", number);
	record("episode %u\n", number);
	flush_log();
	if (mkdir(name, 0755))
		exit_with("an episode has no directory");
	pid_t child = fork();
	if (child < 0)
		exit_with("an episode cannot be born");
	if (!child && (setsid() < 0 || chdir(name)))
		exit_with("an episode cannot begin");
	return child;
}

/* Bounded: a child that does not end in time is ended, and the record says so. */
static void finish(unsigned flags, pid_t child)
{
	int status = 0, fd = syscall(SYS_pidfd_open, child, 0);
	struct pollfd ended = {.fd = fd, .events = POLLIN};
	if (poll(&ended, 1, 60000) != 1) {
		record("it hangs\n");
		kill(child, SIGKILL);
	}
	close(fd);
	waitpid(child, &status, 0);
	kill(-child, SIGKILL);
	if (flags & OBJECTS)
		remove_objects();
	record("ended %x\n", status);
}

/* A process that signals are sent to. However early they come it dies by them: they wait until it handles them no more. */
static void add_helper(void)
{
	uint64_t all = ~0ul, was = 0;
	call(SYS_rt_sigprocmask, SIG_SETMASK, (uint64_t)&all, (uint64_t)&was, 8, 0, 0);
	pid_t helper = fork();
	if (!helper)
		for (int signal_number = 1; signal_number < TICK; signal_number++)
			signal(signal_number, SIG_DFL);
	call(SYS_rt_sigprocmask, SIG_SETMASK, (uint64_t)&was, 0, 8, 0, 0);
	while (!helper)
		pause();
	know('h', helper);
}

static void prepare(unsigned threads, unsigned flags)
{
	know('s', getpid());
	know('p', getppid());
	lay_out_memory();
	place_descriptors();
	if (flags & OBJECTS)
		prepare_objects();
	for (int signal = 1; flags & HANDLERS && signal < TICK; signal++)
		handle(signal);
	handle(SIGSEGV);
	handle(SIGBUS);
	if (flags & HELPER)
		add_helper();
	for (unsigned i = 1; i <= threads && i < 3; i++)
		add_thread(i);
	watch();
	memcpy(before, (void *)DATA, DATA_SIZE);
}

/* ---- children ---- */

/* It has ended, and can still be waited for. */
static void await(pid_t pid)
{
	siginfo_t info;
	while (call(SYS_waitid, P_PID, pid, (uint64_t)&info, WEXITED | WNOWAIT, 0, 0) == -EINTR)
		;
}

static int64_t give_birth(uint64_t kind)
{
	char *const arguments[] = {(char *)program, "inner", "inner", NULL}, *const environment[] = {"ONE=1", NULL};
	int64_t child = kind == 2 || kind == 5 ? vfork()
	                : kind == 3            ? call(SYS_clone, SIGCHLD | 0x01000000, 0, 0, (uint64_t)(DATA + 64), 0, 0)
	                                       : fork();
	if (!child) {
		if (kind == 1 || kind == 6)
			call(SYS_kill, call(SYS_getpid, 0, 0, 0, 0, 0, 0), kind == 1 ? SIGTERM : SIGKILL, 0, 0, 0, 0);
		if (kind == 4 || kind == 5)
			call(SYS_execve, (uint64_t)program, (uint64_t)arguments, (uint64_t)environment, 0, 0, 0);
		call(SYS_exit_group, kind + 16, 0, 0, 0, 0, 0);
	}
	if (child < 0)
		return child == -1 ? -errno : child;
	know('k', child);
	await(child);
	int fd = call(SYS_open, (uint64_t)"inner", O_RDONLY, 0, 0, 0, 0), n = 0;
	char text[3000];
	if (fd >= 0 && (n = call(SYS_read, fd, (uint64_t)text, sizeof text, 0, 0, 0)) > 0)
		record("%.*s ", n, text);
	if (fd >= 0) {
		call(SYS_close, fd, 0, 0, 0, 0, 0);
		call(SYS_unlink, (uint64_t)"inner", 0, 0, 0, 0, 0);
	}
	return child;
}

/* What a program finds that has just been executed, as one line. */
static int look_around(const char *path)
{
	FILE *out = fopen(path, "a");
	uint64_t set = 0;
	if (!out)
		return 66;
	call(SYS_rt_sigprocmask, SIG_BLOCK, 0, (uint64_t)&set, 8, 0, 0);
	fprintf(out, "mask %lx", set);
	call(SYS_rt_sigpending, (uint64_t)&set, 8, 0, 0, 0, 0);
	fprintf(out, " pending %lx ignored", set);
	for (int i = 1; i < TICK; i++) {
		struct {
			uint64_t handler, flags, restorer, mask;
		} action = {0};
		call(SYS_rt_sigaction, i, 0, (uint64_t)&action, 8, 0, 0);
		if (action.handler)
			fprintf(out, " %d:%ld", i, action.handler);
	}
	fprintf(out, " open");
	for (int i = 0; i < 64; i++)
		if (fcntl(i, F_GETFD) >= 0 && i != fileno(out))
			fprintf(out, " %d:%x", i, fcntl(i, F_GETFL));
	for (int i = 0; i < 16; i++) {
		struct rlimit limit = {0};
		getrlimit(i, &limit);
		fprintf(out, "%s%lx/%lx", i ? " " : " limits ", limit.rlim_cur, limit.rlim_max);
	}
	struct itimerval timer = {0};
	char name[17] = "";
	getitimer(ITIMER_REAL, &timer);
	prctl(PR_GET_NAME, name);
	errno = 0;
	fprintf(out, " timer %d nice %d umask %o name %s dumpable %d nnp %d keep %d slack %d secure %d bound %d", timer.it_value.tv_sec > 0,
	        getpriority(PRIO_PROCESS, 0), umask(0), name[0] ? "yes" : "no", prctl(PR_GET_DUMPABLE),
	        prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), prctl(PR_GET_KEEPCAPS), prctl(PR_GET_TIMERSLACK), prctl(PR_GET_SECUREBITS),
	        prctl(PR_CAPBSET_READ, 21));
	fprintf(out, " ids %d %d %d %d groups %d persona %lx", getuid(), geteuid(), getgid(), getegid(), getgroups(0, NULL),
	        call(SYS_personality, 0xffffffff, 0, 0, 0, 0, 0));
	return fclose(out) != 0;
}
#endif
