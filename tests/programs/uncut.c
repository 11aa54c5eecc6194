/* uncut: one process writes much at once into a pipe or socket that another one reads slowly, and that sends it signals which it ignores
 * or blocks: so nothing is written in part, as nothing is natively, and a write that a handler interrupts is. A line into `lines` for
 * each round, until there is a file `enough`. Exit status: 0; 3 with one line about the first thing that was wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 400000, PARTS = 5 };
enum { WRITE, WRITEV, SEND, SENDMSG, SENDFILE, KINDS };

static const char *const names[] = {"write", "writev", "send", "sendmsg", "sendfile"};
static char bytes[SIZE], got[SIZE];
static int lines, file;
static volatile sig_atomic_t handled;

static void note(int number)
{
	(void)number;
	handled++;
}

static void wrong(const char *what, const char *how, long value)
{
	printf("%s, %s: %ld of %d (%s)\n", what, how, value, SIZE, strerror(errno));
	fflush(stdout);
	_exit(3);
}

static long put(int kind, int to)
{
	struct iovec parts[PARTS];
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = PARTS};
	for (int i = 0; i < PARTS; i++)
		parts[i] = (struct iovec){bytes + i * (SIZE / PARTS), SIZE / PARTS};
	off_t from = 0;
	switch (kind) {
	case WRITE:
		return write(to, bytes, SIZE);
	case WRITEV:
		return writev(to, parts, PARTS);
	case SEND:
		return send(to, bytes, SIZE, 0);
	case SENDMSG:
		return sendmsg(to, &message, 0);
	default:
		return sendfile(to, file, &from, SIZE);
	}
}

/* The reader, who sends a signal before each part: of `numbers` one after the other. Exit status: 0 if what it got is what was written. */
static void take(int from, pid_t writer, const int *numbers, int count)
{
	long all = 0, some;
	for (int i = 0; (some = read(from, got + all, all + 9000 < SIZE ? 9000 : (size_t)(SIZE - all))) > 0; i++) {
		all += some;
		kill(writer, numbers[i % count]);
		usleep(1500);
		if (all == SIZE)
			break;
	}
	while (read(from, &some, sizeof some) > 0)
		all++;
	_exit(all == SIZE && !memcmp(bytes, got, SIZE) ? 0 : 1);
}

static void round_of(int kind, const char *how, const int *numbers, int count, int is_cut)
{
	int ends[2], status;
	if (kind == SEND || kind == SENDMSG || kind == SENDFILE ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : pipe(ends))
		wrong(names[kind], "no pipe", 0);
	pid_t writer = getpid(), reader = fork();
	if (!reader) {
		close(ends[1]);
		take(ends[0], writer, numbers, count);
	}
	close(ends[0]);
	long written = put(kind, ends[1]);
	if (is_cut ? written <= 0 || written >= SIZE : written != SIZE)
		wrong(names[kind], how, written);
	close(ends[1]);
	kill(reader, is_cut ? SIGKILL : 0);
	if (waitpid(reader, &status, 0) != reader || (!is_cut && status))
		wrong(names[kind], "what came is not what was written", status);
}

int main(void)
{
	static const int ignored[] = {SIGUSR1, SIGCHLD, SIGWINCH, SIGURG}, blocked[] = {SIGUSR2, SIGHUP}, caught[] = {SIGALRM};
	sigset_t set;
	lines = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0666);
	file = open("bytes", O_RDWR | O_CREAT, 0666);
	for (int i = 0; i < SIZE; i++)
		bytes[i] = (char)(i * 7 + i / 251);
	if (lines < 0 || write(file, bytes, SIZE) != SIZE)
		return 2;
	signal(SIGUSR1, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
	sigaction(SIGALRM, &action, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	for (int i = 0; access("enough", F_OK); i++) {
		round_of(i % KINDS, "ignored", ignored, 4, 0);
		round_of(i % KINDS, "blocked", blocked, 2, 0);
		round_of(i % KINDS, "caught", caught, 1, 1);
		dprintf(lines, "%s\n", names[i % KINDS]);
	}
	puts("nothing was cut");
	return 0;
}
