/* drops: a process of root, which waits for the file `go`, then gives up rights bit by bit and says what it may do then; `on` before the last
 * part, in which it locks memory. Says `half` before it waits for that. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
	char line[512];
	va_list list;
	va_start(list, format);
	int length = vsnprintf(line, sizeof line, format, list);
	va_end(list);
	if (write(1, line, length) != length)
		_exit(3);
}

static void wait_for(const char *name)
{
	while (access(name, F_OK))
		usleep(10000);
}

static void who(const char *when)
{
	uid_t u[3];
	gid_t g[3], groups[64];
	getresuid(&u[0], &u[1], &u[2]);
	getresgid(&g[0], &g[1], &g[2]);
	int count = getgroups(64, groups);
	say("%s: users %d %d %d, groups %d %d %d, and %d of them, first %d\n", when, u[0], u[1], u[2], g[0], g[1], g[2], count,
	    count > 0 ? (int)groups[0] : -1);
	char status[4096] = "", *at;
	int file = open("/proc/self/status", O_RDONLY);
	if (read(file, status, sizeof status - 1) > 0 && (at = strstr(status, "\nUid:")))
		say("%.*s\n", (int)strcspn(at + 1, "\n"), at + 1);
	if ((at = strstr(status, "\nCapEff:")))
		say("%.*s\n", (int)strcspn(at + 1, "\n"), at + 1);
	close(file);
	int secret = open("/etc/shadow", O_RDONLY);
	say("the secret: %s\n", secret < 0 ? strerror(errno) : "open");
	close(secret);
	char name[] = "made-XXXXXX";
	int made = mkstemp(name);
	struct stat s = {0};
	if (made < 0 || fstat(made, &s))
		say("no file: %s\n", strerror(errno));
	else
		say("a file of %d and %d\n", s.st_uid, s.st_gid);
	unlink(name);
	close(made);
	say("a signal to 1: %s\n", kill(1, 0) ? strerror(errno) : "may");
	say("dumpable %d, keeps %d\n", prctl(PR_GET_DUMPABLE), prctl(PR_GET_KEEPCAPS));
}

static void *other(void *unused)
{
	(void)unused;
	return (void *)(long)(getuid() * 100000 + getegid());
}

static int ends[2];

static void *all_along(void *unused)
{
	char byte;
	return read(ends[0], &byte, 1) == 1 ? other(unused) : NULL;
}

static void others(void)
{
	pthread_t thread;
	void *value;
	pthread_create(&thread, NULL, other, NULL);
	pthread_join(thread, &value);
	say("a thread is %ld\n", (long)value);
	pid_t child = fork();
	if (!child) {
		execl("/bin/sh", "sh", "-c", "id", NULL);
		_exit(4);
	}
	int status;
	waitpid(child, &status, 0);
}

int main(void)
{
	umask(022);
	gid_t two[] = {4, 7};
	pthread_t thread;
	void *value;
	if (pipe(ends) || pthread_create(&thread, NULL, all_along, NULL))
		return 2;
	say("ready\n");
	wait_for("go");
	who("at first");
	say("setgroups %d\n", setgroups(2, two));
	who("with other groups");
	say("seteuid %d\n", seteuid(65534));
	who("for a while");
	say("seteuid %d, setgid %d\n", seteuid(0), setegid(7));
	who("and back");
	say("setfsuid %d %d\n", setfsuid(65534), setfsuid(-1));
	who("for files");
	setfsuid(0);
	say("setresgid %d\n", setresgid(65534, 65534, 65534));
	say("setresuid %d\n", setresuid(65534, 65534, 65534));
	who("without rights");
	others();
	say("setuid %d %s\n", setuid(0), strerror(errno));
	say("setgroups %d %s\n", setgroups(0, NULL), strerror(errno));
	say("half\n");
	wait_for("on");
	who("further on");
	others();
	say("a byte %zd\n", write(ends[1], "x", 1));
	pthread_join(thread, &value);
	say("a thread that was there all along is %ld\n", (long)value);
	struct rlimit little = {65536, 65536};
	say("setrlimit %d\n", setrlimit(RLIMIT_MEMLOCK, &little));
	void *much = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int locked = mlock(much, 1 << 20);
	say("mlock %d %s\n", locked, locked ? strerror(errno) : "");
	return 0;
}
