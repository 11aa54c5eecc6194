/* Makes the system calls that a script names, each with its memory laid out in several ways, and reports what each gave: result, error,
 * which bytes of that memory have changed, and what is left in what it was about.
 *
 *   results SCRIPT [MANNER]     SCRIPT: a line for each call, `NAME NUMBER ARGUMENT...` (tests/moves/results.py writes it)
 *
 * An argument: n:VALUE a number; f:KIND a descriptor; b:SIZE[:HEX] memory, which begins with these bytes; s:TEXT a string;
 * v:COUNT:LENGTH a struct iovec array; m:LENGTH a struct msghdr; M:COUNT:LENGTH an array of struct mmsghdr.
 * Each way of laying memory out is tried in a process of its own: what it does stays with it. Twice, with other bytes in the memory, so
 * that a byte has changed though it was what it is by chance. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum manner { PLAIN, READ_ONLY, EDGE, CUT, NOWHERE, OVERLAPPING, BESIDE, MANNERS };
static const char *const names[MANNERS] = {"plain", "read-only", "edge", "cut", "nowhere", "overlapping", "beside"};

#define PIECES 24
#define AT ((void *)0x100000000000)     /* the same each time: where memory overlaps, addresses are read as something else */
#define PIECE_ROOM 8192u        /* of which the second page is not there */

struct piece {
	unsigned char *at;
	size_t size, given;
	unsigned char before[4096], changed[4096];
};
static struct piece pieces[PIECES];
static unsigned char *arena;
static unsigned count, filler;
static enum manner manner;
static int descriptor = -1, other = -1, queue = -1;
static uint64_t volatile *ticking;
static int volatile lost, enough;
static int written; /* the call writes into the end of its last piece: another thread cannot count there */

/* Memory of the call, laid out as the manner says. */
static void *piece(size_t size, const unsigned char *bytes, size_t given)
{
	if (count == PIECES || size > 4096)
		exit(3);
	struct piece *p = &pieces[count];
	unsigned char *page = arena + count++ * PIECE_ROOM;
	p->size = size;
	p->given = given;
	p->at = page + 512;
	if (manner == EDGE)
		p->at = page + 4096 - size;
	else if (manner == CUT)
		p->at = page + 4096 - size / 2;
	else if (manner == NOWHERE)
		p->at = page + 4096 + 512;
	else if (manner == OVERLAPPING)
		p->at = arena + 512 + (count - 1) * 4;
	return memcpy(memset(p->before, filler, size), bytes, given), p->at;
}

/* How much of it is there. */
static size_t present(const struct piece *p)
{
	return manner == NOWHERE ? 0 : manner == CUT ? p->size / 2 : p->size;
}

static int listener(void)
{
	struct sockaddr_storage address = {.ss_family = AF_UNIX};
	socklen_t length = sizeof address;
	int s = socket(AF_UNIX, SOCK_STREAM, 0);
	bind(s, (void *)&address, 2);
	listen(s, 5);
	getsockname(s, (void *)&address, &length);
	other = socket(AF_UNIX, SOCK_STREAM, 0);
	connect(other, (void *)&address, length);
	return s;
}

static int of_kind(const char *kind)
{
	int pair[2] = {-1, -1};
	if (!strcmp(kind, "file")) {
		pair[0] = open("data", O_RDWR | O_CREAT | O_TRUNC, 0600);
		if (pwrite(pair[0], "what is in a file, of which some is read", 40, 0) != 40)
			exit(4);
	} else if (!strcmp(kind, "pipe") || !strcmp(kind, "writing")) {
		if (pipe2(pair, O_NONBLOCK) || write(pair[1], "what is in a pipe", 17) != 17)
			exit(4);
		if (!strcmp(kind, "writing"))
			return other = pair[0], pair[1];
	} else if (!strcmp(kind, "stream") || !strcmp(kind, "datagram")) {
		socketpair(AF_UNIX, (*kind == 's' ? SOCK_STREAM : SOCK_DGRAM) | SOCK_NONBLOCK, 0, pair);
		send(pair[1], "what was sent", 13, 0);
		send(pair[1], "and more", 8, 0);
	} else if (!strcmp(kind, "directory")) {
		mkdir("directory", 0700);
		close(creat("directory/one", 0600));
		close(creat("directory/a.longer.name", 0600));
		pair[0] = open("directory", O_RDONLY | O_DIRECTORY);
	} else if (!strcmp(kind, "event"))
		pair[0] = eventfd(7, EFD_NONBLOCK);
	else if (!strcmp(kind, "timer"))
		pair[0] = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
	else if (!strcmp(kind, "epoll")) {
		struct epoll_event event = {.events = EPOLLOUT | EPOLLONESHOT, .data.u64 = 77};
		pair[0] = epoll_create1(0);
		other = eventfd(1, 0);
		epoll_ctl(pair[0], EPOLL_CTL_ADD, other, &event);
	} else if (!strcmp(kind, "listener"))
		pair[0] = listener();
	else if (!strcmp(kind, "internet"))
		pair[0] = socket(AF_INET, SOCK_STREAM, 0);
	else if (!strcmp(kind, "terminal"))
		pair[0] = posix_openpt(O_RDWR | O_NOCTTY);
	else if (!strcmp(kind, "queue")) {
		struct {
			long type;
			char text[24];
		} message = {5, "a message of a queue"};
		pair[0] = queue = msgget(IPC_PRIVATE, 0600);
		msgsnd(queue, &message, 20, 0);
	}
	other = other >= 0 ? other : pair[1];
	return pair[0];
}

static unsigned hex(const char *text, unsigned char *bytes, unsigned room)
{
	unsigned n = 0, byte;
	while (n < room && sscanf(text + 2 * n, "%2x", &byte) == 1)
		bytes[n++] = byte;
	return n;
}

/* An array of struct iovec as a piece, each with a piece of its own. */
static struct iovec *vector(unsigned n, unsigned length)
{
	struct iovec there[8];
	for (unsigned i = 0; i < n && i < 8; i++)
		there[i] = (struct iovec){piece(length, NULL, 0), length};
	return piece(n * sizeof *there, (void *)there, n * sizeof *there);
}

static struct msghdr message(unsigned length)
{
	struct msghdr h = {.msg_iov = vector(2, length), .msg_iovlen = 2, .msg_namelen = 16, .msg_controllen = 64};
	h.msg_name = piece(16, NULL, 0);
	h.msg_control = piece(64, (unsigned char[64]){0}, 64);
	return h;
}

static uint64_t argument(char *word)
{
	unsigned char bytes[4096];
	unsigned size = 0, length = 0;
	char *colon = strchr(word + 2, ':');
	switch (*word) {
	case 'n':
		return strtoull(word + 2, NULL, 0);
	case 'f':
		return descriptor = of_kind(word + 2);
	case 's':
		return (uint64_t)piece(strlen(word + 2) + 1, (unsigned char *)word + 2, strlen(word + 2) + 1);
	case 'b':
		size = atoi(word + 2);
		return (uint64_t)piece(size, bytes, colon ? hex(colon + 1, bytes, size) : 0);
	}
	sscanf(word + 2, "%u:%u", &size, &length);
	if (*word == 'v')
		return (uint64_t)vector(size, length);
	struct mmsghdr headers[4] = {{.msg_hdr = message(*word == 'm' ? size : length)}};
	if (*word == 'm')
		return (uint64_t)piece(sizeof(struct msghdr), (void *)headers, sizeof(struct msghdr));
	for (unsigned i = 1; i < size && i < 4; i++)
		headers[i].msg_hdr = message(length);
	return (uint64_t)piece(size * sizeof *headers, (void *)headers, size * sizeof *headers);
}

/* Counts in the last bytes of memory that the call was given, and does not write, as was seen before: a count is lost if it does. */
static void *beside(void *unused)
{
	for (uint64_t expected = *ticking; !enough; *ticking = ++expected)
		lost |= *ticking != expected;
	return unused;
}

static void lay_out(void)
{
	for (unsigned i = 0; i < count; i++)
		memcpy(pieces[i].at, pieces[i].before, present(&pieces[i]));
	if (manner == OVERLAPPING)
		for (unsigned i = 0; i < count; i++)
			memcpy(pieces[i].before, pieces[i].at, pieces[i].size);
	for (unsigned i = 0; i < PIECES && manner == READ_ONLY; i++)
		mprotect(arena + i * PIECE_ROOM, 4096, PROT_READ);
}

static unsigned descriptors(void)
{
	unsigned n = 0;
	for (int i = 0; i < 64; i++)
		n += fcntl(i, F_GETFD) >= 0;
	return n;
}

/* One call; what has changed is added to what is known. */
static void make(char *line, unsigned with, char *report)
{
	char *words[9], *rest = NULL;
	unsigned n = 0;
	uint64_t a[6] = {0};
	count = 0;
	filler = with;
	lost = enough = 0;
	descriptor = other = queue = -1;
	for (char *word = strtok_r(line, " \n", &rest); word && n < 9; word = strtok_r(NULL, " \n", &rest))
		words[n++] = word;
	arena = mmap(AT, PIECES * PIECE_ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	for (unsigned i = 0; i < PIECES; i++)
		munmap(arena + i * PIECE_ROOM + 4096, 4096);
	for (unsigned i = 2; i < n && i < 8; i++)
		a[i - 2] = argument(words[i]);
	lay_out();
	pthread_t thread;
	struct piece *last = count ? &pieces[count - 1] : NULL;
	int ticks = manner == BESIDE && !written && last && last->size >= last->given + 8;
	if (ticks) {
		ticking = (void *)(last->at + last->size - 8);
		pthread_create(&thread, NULL, beside, NULL);
	}
	unsigned open_before = descriptors();
	long result = syscall(atol(words[1]), a[0], a[1], a[2], a[3], a[4], a[5]);
	int error = errno, left = -1;
	if (ticks) {
		enough = 1;
		pthread_join(thread, NULL);
		memcpy(last->at + last->size - 8, last->before + last->size - 8, 8);
	}
	ioctl(descriptor, FIONREAD, &left);
	int at = sprintf(report, "%s, descriptors %+d, place %ld, left %d%s,", result < 0 ? strerrorname_np(error) : "ok",
	                 (int)(descriptors() - open_before), (long)lseek(descriptor, 0, SEEK_CUR), left, lost ? ", LOST" : "");
	if (result >= 0)
		at += sprintf(report + at, " gave %ld,", result);
	for (unsigned i = 0; i < count; i++) {
		struct piece *p = &pieces[i];
		for (size_t j = 0; j < present(p); j++)
			p->changed[j] |= p->at[j] != p->before[j];
		for (size_t j = 0, from = 0; j <= present(p); j++)
			if (j == present(p) || !p->changed[j]) {
				if (from < j && at < 3800)
					at += sprintf(report + at, " %u:%zu-%zu", i, from, j - 1);
				from = j + 1;
			}
	}
	sprintf(report + at, "\n");
	if (queue >= 0)
		msgctl(queue, IPC_RMID, NULL);
}

/* Whether the call has changed the last bytes of its last piece. */
static int writes_at_the_end(void)
{
	const struct piece *last = count ? &pieces[count - 1] : NULL;
	return last && last->size >= 8 && memchr(last->changed + last->size - 8, 1, 8);
}

/* A child to wait for. */
static void have_a_child_that_has_ended(void)
{
	siginfo_t ended;
	pid_t child = fork();

	if (!child)
		_exit(3);
	waitid(P_PID, child, &ended, WEXITED | WNOWAIT);
}

static void in_a_child(const char *line, enum manner how, int silent)
{
	char report[4200];
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		char copy[1024];
		manner = how;
		alarm(20);
		/* Twice, each time on other bytes: one that is written may be what was there before. */
		have_a_child_that_has_ended();
		make(strcpy(copy, line), 0xa5, report);
		while (waitpid(-1, NULL, 0) > 0)
			; /* whom the call has not waited for */
		have_a_child_that_has_ended();
		make(strcpy(copy, line), 0x5a, report);
		if (!silent)
			printf("%.*s %s: %s", (int)strcspn(line, " "), line, names[how], report);
		fflush(stdout);
		_exit(how == PLAIN && writes_at_the_end());
	}
	int status;
	waitpid(child, &status, 0);
	int writes = how == PLAIN && WIFEXITED(status) && WEXITSTATUS(status) == 1;
	if (how == PLAIN)
		written = writes;
	if (status && !writes && !silent)
		printf("%.*s %s: ended with %d\n", (int)strcspn(line, " "), line, names[how], status);
}

int main(int argc, char **argv)
{
	FILE *script = argc > 1 ? fopen(argv[1], "r") : NULL;
	char line[1024];
	if (!script)
		return 2;
	while (fgets(line, sizeof line, script))
		for (enum manner how = 0; how < MANNERS; how++)
			if (argc < 3 || how == PLAIN || !strcmp(argv[2], names[how]))
				in_a_child(line, how, argc > 2 && strcmp(argv[2], names[how]));
	puts("all reported");
	return 0;
}
