/* toitself [children|limited]: the first of three threads, which other signals come to all the time, sends signals to its process, when
 * the file `go` is there; or it has children, which end (limited: one, being the only thread, and at its limit of descriptors). How many
 * signals has it handled itself when the call ended, and when waitid has returned? */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

static volatile int handled, elsewhere, never;

static void handler(int number)
{
	(void)number;
	if (syscall(SYS_gettid) == getpid())
		handled++;
	else
		elsewhere++;
}

static void on_tick(int number)
{
	(void)number;
}

static void *idle(void *nothing)
{
	while (!never)
		syscall(SYS_futex, &never, 0, 0, NULL, NULL, 0);
	return nothing;
}

/* Half of them have our memory until they end. */
static void have_child(int number)
{
	siginfo_t info;
	pid_t child = number % 2 ? vfork() : fork();
	if (!child)
		_exit(0);
	while (waitid(P_PID, child, &info, WEXITED | WNOWAIT))
		;
}

int main(int argc, char **argv)
{
	int is_limited = argc > 1 && !strcmp(argv[1], "limited"), has_children = is_limited || (argc > 1 && !strcmp(argv[1], "children"));
	int rounds = is_limited ? 1 : has_children ? 100 : 300;
	pthread_t threads[2];
	timer_t timer;
	struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN};
	struct itimerspec often = {{0, 500000}, {0, 500000}};
	int in_time = 0, lines = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0644);
	event.sigev_notify_thread_id = getpid();
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, tick = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGCHLD, &action, NULL);
	sigaction(SIGRTMIN, &tick, NULL);
	for (int i = 0; i < 2 && !is_limited; i++)
		pthread_create(&threads[i], NULL, idle, NULL);
	dprintf(lines, "ready\n");
	while (access("go", F_OK))
		usleep(20000);
	if (is_limited)
		setrlimit(RLIMIT_NOFILE, &(struct rlimit){4, 4});
	timer_create(CLOCK_MONOTONIC, &event, &timer);
	timer_settime(timer, 0, has_children ? &(struct itimerspec){0} : &often, NULL);
	for (int i = 0; i < rounds; i++) {
		int before = handled;
		if (has_children)
			have_child(i);
		else
			kill(getpid(), SIGUSR1);
		in_time += handled == before + 1;
		waitpid(-1, NULL, WNOHANG);
	}
	timer_delete(timer);
	if (in_time * 20 >= rounds * 19) /* at home it is all of them but one, now and then */
		printf("nearly all in time\n");
	else
		printf("%d in time, %d by other threads\n", in_time, elsewhere);
	return 0;
}
