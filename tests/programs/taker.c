/* taker COUNT wait|fd|ppoll|pselect: takes COUNT signals USR1, all blocked, by sigwaitinfo(), from a signalfd, or in a handler that runs while
 * ppoll() or pselect() waits without blocking it; computes before each, and writes a line for each into `lines`: number, si_code and
 * whether the sender is known. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

static void compute(long milliseconds)
{
	struct timespec start, now;
	clock_gettime(CLOCK_MONOTONIC, &start);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < milliseconds);
}

static siginfo_t handled;
static volatile sig_atomic_t handlers;

static void on_signal(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	handled = *info;
	handlers++;
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
	struct timespec long_enough = {60, 0};
	sigset_t none;
	sigset_t set;
	siginfo_t info;
	struct signalfd_siginfo read_info;
	if (argc != 3)
		return 64;
	int lines = open("lines", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644), from_descriptor = !strcmp(argv[2], "fd");
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigemptyset(&none);
	sigaction(SIGUSR1, &action, NULL);
	sigprocmask(SIG_BLOCK, &set, NULL);
	int signals = from_descriptor ? signalfd(-1, &set, SFD_CLOEXEC) : -1;
	for (long i = 0, count = atol(argv[1]); i < count; i++) {
		dprintf(lines, "ready\n");
		compute(400);
		if (from_descriptor) {
			if (read(signals, &read_info, sizeof read_info) != sizeof read_info)
				return 3;
			info.si_signo = (int)read_info.ssi_signo;
			info.si_code = read_info.ssi_code;
			info.si_pid = (pid_t)read_info.ssi_pid;
		} else if (argv[2][0] == 'p') {
			int result = !strcmp(argv[2], "ppoll") ? ppoll(NULL, 0, &long_enough, &none)
			                                       : pselect(0, NULL, NULL, NULL, &long_enough, &none);
			if (result != -1 || errno != EINTR || handlers != i + 1)
				return 4;
			info = handled;
		} else if (sigwaitinfo(&set, &info) != SIGUSR1)
			return 3;
		dprintf(lines, "signal %d code %d, sender %s\n", info.si_signo, info.si_code, info.si_pid > 1 ? "known" : "lost");
	}
	return 0;
}
