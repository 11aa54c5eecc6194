/* Scenarios about processes: see objects.h. */
#include "objects.h"

#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <sys/times.h>
#include <sys/utsname.h>

SCENARIO(child)
{
	int status, go[2];
	struct rusage usage;
	siginfo_t info = {0};
	CALL(pipe(go));
	pid_t child = CHILD((close(go[1]), read(go[0], &status, 1), 7));
	CALL(waitpid(child, &status, WNOHANG));
	CALL(close(go[1]));
	CALL(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT));
	show("  code %d, status %d", info.si_code, info.si_status);
	IS(info.si_pid == child && info.si_uid == getuid());
	IS(DONE(wait4(-1, &status, 0, &usage)) == child && WEXITSTATUS(status) == 7);
	CALL(wait(&status));
	child = CHILD((raise(SIGTERM), 1));
	reaped(child);
}

SCENARIO(child_that_steps)
{
	int own = 5, status = 0;
	pid_t parent = getpid(), child = fork();
	if (child == 0) {
		IS(DONE(getppid()) == parent);
		own++;
		int fd = CALL(open("of-the-child", O_CREAT | O_WRONLY, 0600));
		WRITE(fd, "written by the child");
		CALL(raise(0));
		_exit(own);
	}
	IS(waitpid(child, &status, 0) == child);
	step();
	show("  %d, %d here", WEXITSTATUS(status), own);
	CALL(open("of-the-child", O_RDONLY));
	READ(3, 32);
}

static volatile sig_atomic_t last_code;

static void child_changed(int number, siginfo_t *info, void *context)
{
	(void)number, (void)context;
	last_code = info->si_code;
}

SCENARIO(child_that_stops)
{
	int status = 0, go[2], back[2];
	sigaction(SIGCHLD, &(struct sigaction){.sa_sigaction = child_changed, .sa_flags = SA_SIGINFO | SA_RESTART}, NULL);
	CALL(pipe(go));
	CALL(pipe(back));
	pid_t child = CHILD((close(go[1]), raise(SIGSTOP), write(back[1], "on", 2), read(go[0], &status, 1), 4));
	CALL(waitpid(child, &status, WUNTRACED) == child);
	show("  stopped by %d, code %d", WSTOPSIG(status), (int)last_code);
	CALL(kill(child, SIGCONT));
	READ(back[0], 2);
	CALL(waitpid(child, &status, WCONTINUED) == child);
	show("  continues %d, code %d", WIFCONTINUED(status), (int)last_code);
	CALL(close(go[1]));
	CALL(waitpid(child, &status, 0) == child);
	show("  ended with %d, code %d", WEXITSTATUS(status), (int)last_code);
	CALL(kill(child, 0));
}

SCENARIO(children_nobody_waits_for)
{
	int status, ends[2];
	char text[2];
	CALL(sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL, .sa_flags = SA_NOCLDWAIT}, NULL));
	CALL(pipe(ends));
	CHILD(0);
	CALL(wait(&status));
	CALL(prctl(PR_SET_CHILD_SUBREAPER, 1));
	CALL(signal(SIGCHLD, SIG_DFL) == SIG_ERR);
	pid_t child = fork();
	if (child == 0) {
		if (fork() == 0)
			_exit(read(ends[0], text, 1) == 1 ? 8 : 9);
		_exit(3);
	}
	reaped(child);
	WRITE(ends[1], "x");
	CALL(wait(&status) > 0);
	show("  the orphan ended with %d", WEXITSTATUS(status));
}

static void nothing(int number)
{
	(void)number;
}

SCENARIO(exec)
{
	if (getenv("OBJECTS_AGAIN")) {
		sigset_t now;
		CALL(sigprocmask(SIG_BLOCK, NULL, &now));
		show("  %d blocked, %d waits", sigismember(&now, SIGUSR1), (sigpending(&now), sigismember(&now, SIGUSR1)));
		IS(signal(SIGUSR2, SIG_DFL) == SIG_IGN && signal(SIGALRM, SIG_DFL) == SIG_DFL);
		CALL(fcntl(20, F_GETFD));
		CALL(fcntl(21, F_GETFD));
		CALL(lseek(20, 0, SEEK_CUR));
		IS(alarm(0) > 100);
		return;
	}
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	signal(SIGALRM, nothing);
	CALL(sigprocmask(SIG_BLOCK, &set, NULL));
	raise(SIGUSR1);
	signal(SIGUSR2, SIG_IGN);
	int fd = CALL(open("kept", O_CREAT | O_RDWR, 0600));
	WRITE(fd, "abc");
	dup2(fd, 20);
	dup3(fd, 21, O_CLOEXEC);
	alarm(1000);
	setenv("OBJECTS_AGAIN", "1", 1);
	CALL(execl("/nonexistent", "x", NULL));
	execl("/proc/self/exe", program_invocation_name, "exec", NULL);
	show("not executed");
}

SCENARIO(vfork_and_spawn)
{
	int status = 0, ends[2];
	pid_t child = vfork();
	if (child == 0) {
		execl("/bin/sh", "sh", "-c", "exit 6", NULL);
		_exit(127);
	}
	reaped(child);
	CALL(pipe(ends));
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
	char *arguments[] = {"sh", "-c", "echo spawned", NULL};
	CALL(posix_spawn(&child, "/bin/sh", &actions, NULL, arguments, environ));
	READ(ends[0], 16);
	reaped(child);
	CALL(WEXITSTATUS(status = system("exit 9")));
}

SCENARIO(process_descriptor)
{
	int go[2];
	char text[2];
	siginfo_t info = {0};
	CALL(pipe(go));
	pid_t child = CHILD((close(go[1]), read(go[0], text, 1), pause(), 1));
	int fd = CALL(syscall(SYS_pidfd_open, child, 0));
	struct pollfd polled = {.fd = fd, .events = POLLIN};
	CALL(poll(&polled, 1, 0));
	CALL(syscall(SYS_pidfd_send_signal, fd, SIGTERM, NULL, 0));
	CALL(poll(&polled, 1, 5000));
	show("  %d", polled.revents);
	CALL(waitid(P_PIDFD, (id_t)fd, &info, WEXITED));
	show("  code %d, status %d", info.si_code, info.si_status);
	CALL(syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0));
}

SCENARIO(group_and_session)
{
	IS(DONE(getpgrp()) == getpgid(0));
	pid_t child = fork();
	if (child == 0) {
		CALL(setpgid(0, 0));
		IS(getpgrp() == getpid());
		CALL(setsid());
		_exit(0);
	}
	reaped(child);
	child = fork();
	if (child == 0) {
		IS(DONE(setsid()) == getpid());
		IS(getsid(0) == getpid() && getpgid(0) == getpid());
		CALL(open("/dev/tty", O_RDWR));
		_exit(0);
	}
	reaped(child);
	CALL(setpgid(0, 999999));
}

SCENARIO(name_and_other_numbers)
{
	char name[16] = "";
	int value = 0;
	CALL(prctl(PR_SET_NAME, "a new name"));
	CALL(prctl(PR_GET_NAME, name));
	show("  %s", name);
	CALL(prctl(PR_SET_PDEATHSIG, SIGUSR2));
	CALL(prctl(PR_GET_PDEATHSIG, &value));
	show("  %d", value);
	CALL(prctl(PR_SET_TIMERSLACK, 123456));
	CALL(prctl(PR_GET_TIMERSLACK));
	CALL(prctl(PR_SET_DUMPABLE, 0));
	CALL(prctl(PR_GET_DUMPABLE));
	CALL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	CALL(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
}

SCENARIO(priority_and_policy)
{
	struct sched_param parameter = {0};
	CALL(setpriority(PRIO_PROCESS, 0, 5));
	CALL(getpriority(PRIO_PROCESS, 0));
	CALL(nice(2));
	CALL(getpriority(PRIO_PROCESS, getpid()));
	CALL(sched_setscheduler(0, SCHED_BATCH, &parameter));
	CALL(sched_getscheduler(0));
	CALL(syscall(SYS_ioprio_set, 1, 0, 2 << 13 | 6));
	CALL(syscall(SYS_ioprio_get, 1, 0));
	CALL(sched_setparam(0, (&(struct sched_param){3})));
}

SCENARIO(identity)
{
	uid_t real, effective, saved;
	gid_t groups[64];
	CALL(getresuid(&real, &effective, &saved));
	IS(real == getuid() && effective == geteuid() && saved == real);
	IS(DONE(getgroups(64, groups)) >= 0);
	if (getuid() == 0) {
		CALL(setgroups(2, ((gid_t[]){7, 8})));
		CALL(getgroups(64, groups));
		CALL(setresgid(9, 10, 11));
		CALL(setresuid(1000, 1001, 0));
		show("  %d %d %d %d", (int)getuid(), (int)geteuid(), (int)getgid(), (int)getegid());
		CALL(setuid(0));
		CALL(seteuid(0));
	}
	show("  %d", getuid() == 1000);
	CALL(getresuid(&real, &effective, &saved));
}

SCENARIO(machine)
{
	struct utsname name, again;
	struct sysinfo info;
	char random[64] = {0};
	CALL(uname(&name));
	CALL(uname(&again));
	IS(!memcmp(&name, &again, sizeof name));
	CALL(sysinfo(&info));
	IS(info.totalram > 0 && info.procs > 0);
	CALL(getrandom(random, sizeof random, 0));
	CALL(getrandom(random, 8, GRND_NONBLOCK));
	int fd = CALL(open("/proc/sys/kernel/random/boot_id", O_RDONLY));
	CALL(read(fd, random, 64));
	IS(sysconf(_SC_NPROCESSORS_ONLN) > 0 && sysconf(_SC_CLK_TCK) == 100);
}

SCENARIO(time_used)
{
	struct rusage usage;
	struct tms ticks;
	long none = 0, much = 0;
	for (int round = 0; round < 6; round++) {
		for (volatile int i = 0; i < 3000000; i++)
			;
		CALL(getrusage(RUSAGE_SELF, &usage)); /* may be less than before: what was used away is missing at home */
		long now =
			usage.ru_utime.tv_sec * 1000000 + usage.ru_utime.tv_usec + usage.ru_stime.tv_sec * 1000000 + usage.ru_stime.tv_usec;
		none += now <= 0;
		much += now > 60000000;
	}
	show("  %ld times none, %ld times much", none, much);
	DONE(times(&ticks));
	IS(ticks.tms_cutime == 0);
}
