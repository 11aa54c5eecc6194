/* directed WHO WHAT ROUNDS: signals that the kernel directs at one thread: who gets them, with which si_code?
 * WHAT: timer (SIGEV_THREAD_ID), queue (pthread_sigqueue), owner (F_SETOWN_EX with F_OWNER_TID), pipe (SIGPIPE of a write), urgent (SIGIO
 * without F_SETSIG), thread (SIGEV_THREAD of glibc), shared (SIGEV_SIGNAL: any thread may take it), pidfd (PIDFD_SIGNAL_THREAD). Those for
 * the process, of which the kernel prefers the thread that they name: kill, sigqueue (rt_sigqueueinfo), group (PIDFD_SIGNAL_THREAD_GROUP)
 * and outside (kill of a child). By a thread's own call, with an si_code that the kernel lets only the thread itself choose: thread=CODE
 * (rt_tgsigqueueinfo), process=CODE (rt_sigqueueinfo).
 * WHO: leader or worker. Three threads have the signal unblocked all the time. Goes on for as many
 * tenths of a second, and until a file `enough` is there; writes a line into `lines` for each. Of those for the process it counts what comes
 * once a file `settled` is there. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif
#define PIDFD_THREAD_FLAG O_EXCL
#define SIGNAL_GROUP 2

static pid_t target;
static volatile pid_t tids[2];
static pthread_t threads[2];
static volatile int right, wrong, code, value, writes_now, failed;
static int ends[2], broken[2];

static void handler(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	code = info->si_code;
	value = info->si_value.sival_int;
	if (syscall(SYS_gettid) == target)
		right++;
	else
		wrong++;
}

static void compute(long milliseconds)
{
	struct timespec start, now;
	clock_gettime(CLOCK_MONOTONIC, &start);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < milliseconds);
}

static void rest(long milliseconds)
{
	struct timespec left = {0, milliseconds * 1000000};
	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

static int own_number, own_call, own_code;

/* What the thread itself does that it gets a signal of. */
static void act(void)
{
	siginfo_t info = {.si_signo = own_number, .si_code = own_code};
	if (own_call == SYS_rt_tgsigqueueinfo || own_call == SYS_rt_sigqueueinfo) {
		failed |= own_call == SYS_rt_sigqueueinfo ? !!syscall(own_call, target, own_number, &info)
		                                          : !!syscall(own_call, getpid(), target, own_number, &info);
		return;
	}
	if (write(broken[1], "x", 1) != -1 || errno != EPIPE)
		failed = 1;
}

static void *work(void *mine)
{
	*(volatile pid_t *)mine = syscall(SYS_gettid);
	for (;;) {
		compute(2);
		rest(3);
		if (writes_now && syscall(SYS_gettid) == target) {
			writes_now = 0;
			act();
		}
	}
	return NULL;
}

static volatile int ticks;

static void tick(union sigval sent)
{
	if (sent.sival_int == 77)
		ticks++;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 64;
	const char *what = argv[2];
	int number = !strcmp(what, "pipe")     ? SIGPIPE
	             : !strcmp(what, "urgent") ? SIGIO
	                                       : SIGRTMIN + 3,
	    is_leader = !strcmp(argv[1], "leader");
	int lines = open("lines", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644), bad = 0, some = 0;
	struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART};
	struct itimerspec every = {{0, 20000000}, {0, 20000000}};
	struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = number, .sigev_value.sival_int = 77};
	timer_t id;
	own_number = number;
	own_call = !strncmp(what, "thread=", 7) ? SYS_rt_tgsigqueueinfo : !strncmp(what, "process=", 8) ? SYS_rt_sigqueueinfo : 0;
	own_code = own_call ? atoi(strchr(what, '=') + 1) : 0;
	sigaction(number, &action, NULL);
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, work, (void *)&tids[i]);
	while (!tids[0] || !tids[1])
		rest(1);
	target = is_leader ? getpid() : tids[0];
	int outside = 0, to_child[2];
	if (!strcmp(what, "outside")) {
		char byte;
		if (pipe(to_child))
			return 2;
		if (!fork()) {
			for (close(to_child[1]); read(to_child[0], &byte, 1) == 1;)
				kill(target, number);
			_exit(0);
		}
		outside = to_child[1];
	}
	pthread_t target_thread = is_leader ? pthread_self() : threads[0];
	event.sigev_notify_thread_id = target;
	if (!strcmp(what, "thread")) {
		event.sigev_notify = SIGEV_THREAD;
		event.sigev_notify_function = tick;
		event.sigev_notify_attributes = NULL;
	} else if (!strcmp(what, "shared"))
		event.sigev_notify = SIGEV_SIGNAL;
	if (!strcmp(what, "timer") || !strcmp(what, "thread") || !strcmp(what, "shared")) {
		if (timer_create(CLOCK_MONOTONIC, &event, &id) || timer_settime(id, 0, &every, NULL))
			return 2;
	}
	int thread_fd = !strcmp(what, "pidfd") || !strcmp(what, "group") ? (int)syscall(SYS_pidfd_open, target, PIDFD_THREAD_FLAG) : -1;
	if (!strcmp(what, "owner") || !strcmp(what, "urgent")) {
		struct f_owner_ex owner = {F_OWNER_TID, target};
		if (pipe(ends) || fcntl(ends[0], F_SETOWN_EX, &owner) || (!strcmp(what, "owner") && fcntl(ends[0], F_SETSIG, number)) ||
		    fcntl(ends[0], F_SETFL, O_ASYNC | O_NONBLOCK))
			return 2;
	}
	int is_preferred =
		outside || own_call == SYS_rt_sigqueueinfo || !strcmp(what, "kill") || !strcmp(what, "sigqueue") || !strcmp(what, "group");
	int is_settled = !is_preferred;
	long k;
	if (pipe(broken) || close(broken[0]))
		return 2;
	for (k = 0; k < atol(argv[3]) || access("enough", F_OK); k++) {
		char buffer[64];
		if (!is_settled && !access("settled", F_OK)) {
			is_settled = 1;
			some = bad = k = 0;
		}
		rest(100);
		if (!strcmp(what, "queue") && pthread_sigqueue(target_thread, number, (union sigval){.sival_int = 77}))
			return 2;
		if (!strcmp(what, "pipe") || own_call) {
			if (is_leader)
				act();
			else
				writes_now = 1;
		}
		if (thread_fd >= 0 && syscall(SYS_pidfd_send_signal, thread_fd, number, NULL, !strcmp(what, "group") ? SIGNAL_GROUP : 0))
			return 2;
		if (!strcmp(what, "kill") && kill(target, number))
			return 2;
		siginfo_t info = {.si_signo = number, .si_code = SI_QUEUE};
		info.si_pid = getpid(), info.si_uid = getuid(), info.si_value.sival_int = 77;
		if (!strcmp(what, "sigqueue") && syscall(SYS_rt_sigqueueinfo, target, number, &info))
			return 2;
		if (outside && write(outside, "x", 1) != 1)
			return 2;
		/* The kernel prefers a thread that has not got a signal already. */
		for (int i = 0; is_preferred && !right && !wrong && i < 20000; i++)
			rest(1);
		if (ends[1] && (write(ends[1], "x", 1) != 1 || read(ends[0], buffer, sizeof buffer) < 0))
			return 2;
		dprintf(lines, "%ld\n", k);
		if (!strcmp(what, "shared")) {
			some += right + wrong > 0;
			wrong = 0;
		} else if (!strcmp(what, "thread")) {
			some += ticks > 0;
			ticks = 0;
		} else
			some += right > 0;
		right = 0;
		bad += wrong;
		wrong = 0;
	}
	printf("%s %s: %s, wrong %d, code %d, value %s, failed %d\n", argv[1], what, some * 2 > k ? "many" : "few", bad, code,
	       code == SI_QUEUE || code == SI_TIMER ? (value == 77 ? "right" : "wrong") : "none", failed);
	return 0;
}
