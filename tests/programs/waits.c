/* waits KIND MILLISECONDS [profiled|blocking]: one call that waits so long, for nothing. Says how long it took. profiled: with a timer that
 * only its home has; blocking: all signals. */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000ll + t.tv_nsec / 1000000;
}

int main(int count, char **words)
{
	if (count != 3 && count != 4)
		return 2;
	sigset_t all, none;
	sigfillset(&all);
	sigemptyset(&none);
	if (count == 4 && !strcmp(words[3], "blocking"))
		sigprocmask(SIG_BLOCK, &all, NULL);
	else if (count == 4)
		setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_sec = 1000}, NULL);
	int milliseconds = atoi(words[2]);
	struct timespec limit = {milliseconds / 1000, milliseconds % 1000 * 1000000l};
	struct epoll_event event;
	int epoll = epoll_create1(0), set = semget(IPC_PRIVATE, 1, 0600);
	FILE *lines = fopen("lines", "w");
	fputs("ready\n", lines);
	fclose(lines);
	long long begun = now();
	if (!strcmp(words[1], "epoll_wait"))
		epoll_wait(epoll, &event, 1, milliseconds);
	else if (!strcmp(words[1], "epoll_pwait"))
		epoll_pwait(epoll, &event, 1, milliseconds, &(sigset_t){0});
	else if (!strcmp(words[1], "epoll_pwait2"))
		syscall(SYS_epoll_pwait2, epoll, &event, 1, &limit, NULL, 0);
	else if (!strcmp(words[1], "rt_sigtimedwait"))
		syscall(SYS_rt_sigtimedwait, &none, NULL, &limit, 8);
	else if (!strcmp(words[1], "semtimedop"))
		semtimedop(set, &(struct sembuf){0, -1, 0}, 1, &limit);
	else if (!strcmp(words[1], "poll"))
		poll(NULL, 0, milliseconds);
	long long took = now() - begun;
	semctl(set, 0, IPC_RMID);
	printf("took %lld\n", took);
	return 0;
}
