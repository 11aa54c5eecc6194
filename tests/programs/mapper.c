/* mapper: until there is a file `stop`, four threads map files at all times, while signals come: whole ones and parts, the same and new ones, written into and
 * given back, and two of them kept from round to round. Checks what is in them; appends a line to `lines` in each round. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

enum { THREADS = 4, FILES = 6, PAGES = 40, PAGE = 4096 };

static pthread_barrier_t together;
static _Atomic int stopped;
static volatile sig_atomic_t signals;

static void must(int good, const char *what)
{
	if (!good) {
		printf("not so: %s (%s)\n", what, strerror(errno));
		exit(3);
	}
}

static void on_signal(int number)
{
	(void)number;
	signals++;
}

static unsigned char byte_of(int file, long at)
{
	return (unsigned char)(at * 13 + (at >> 12) * 7 + file * 31);
}

static void make(int file, const char *name)
{
	static __thread unsigned char content[PAGES * PAGE];
	char fresh[64];
	for (long i = 0; i < PAGES * PAGE; i++)
		content[i] = byte_of(file, i);
	snprintf(fresh, sizeof fresh, "%s.new", name);
	int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	must(fd >= 0 && write(fd, content, sizeof content) == sizeof content && !close(fd) && !rename(fresh, name), name);
}

static unsigned char *map(int file, long first, long pages)
{
	char name[32];
	snprintf(name, sizeof name, "file-%d", file);
	int fd = open(name, O_RDONLY);
	must(fd >= 0, "open");
	unsigned char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, first * PAGE);
	must(at != MAP_FAILED, "mmap");
	must(!close(fd), "close");
	return at;
}

static void check(const unsigned char *at, int file, long first, long pages, const char *what)
{
	for (long i = 0; i < pages * PAGE; i += 97)
		must(at[i] == byte_of(file, first * PAGE + i), what);
}

static void *work(void *argument)
{
	long index = (long)argument;
	unsigned char *kept = map(index, 0, PAGES);
	kept[5] = 'k';
	for (int round = 0; !stopped; round++) {
		for (int file = 0; file < FILES; file++) {
			long first = (round + file + index) % (PAGES - 3);
			unsigned char *part = map(file, first, 3);
			check(part, file, first, 3, "a part");
			memset(part + PAGE, 'w', PAGE);
			must(!munmap(part, PAGE), "munmap of its beginning");
			must(part[PAGE] == 'w' && part[2 * PAGE - 1] == 'w', "what was written");
			check(part + 2 * PAGE, file, first + 2, 1, "the rest");
			must(!munmap(part + PAGE, 2 * PAGE), "munmap of the rest");
		}
		char own[32];
		snprintf(own, sizeof own, "file-%ld", FILES + index);
		make(FILES + index, own);
		unsigned char *fresh = map(FILES + index, 0, PAGES);
		check(fresh, FILES + index, 0, PAGES, "a fresh file");
		must(!unlink(own) && !munmap(fresh, PAGES * PAGE), "its end");
		must(kept[5] == 'k' && kept[4] == byte_of(index, 4) && kept[PAGE] == byte_of(index, PAGE), "what is kept");
		if (pthread_barrier_wait(&together) == PTHREAD_BARRIER_SERIAL_THREAD) {
			int lines = open("lines", O_WRONLY | O_CREAT | O_APPEND, 0644);
			dprintf(lines, "round %d\n", round);
			close(lines);
			usleep(50000);
			stopped = !access("stop", F_OK);
		}
		pthread_barrier_wait(&together);
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	struct itimerval often = {{0, 30000}, {0, 30000}};
	for (int file = 0; file < FILES; file++) {
		char name[32];
		snprintf(name, sizeof name, "file-%d", file);
		make(file, name);
	}
	pthread_barrier_init(&together, NULL, THREADS);
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	for (long i = 0; i < THREADS; i++)
		must(!pthread_create(&threads[i], NULL, work, (void *)i), "pthread_create");
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	puts(signals ? "signals came" : "no signals");
	return 0;
}
