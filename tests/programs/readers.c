/* readers THREADS RECORDS [ROUNDS]: threads read one file by one descriptor, so that each record comes to exactly one of them in each round, while another
 * does to the descriptor what ends that it is read where the process is, and children read on where the threads are. A round writes a line
 * into the file `lines`; it ends when there is a file `enough`, or after ROUNDS. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 64 /* records of one read */
#define OF_CHILD 3

static unsigned long records, threads;
static atomic_uchar *seen;
static atomic_int is_over;
static pthread_barrier_t together;
static pthread_mutex_t child_reads = PTHREAD_MUTEX_INITIALIZER; /* what it has read, we do not know yet */
static int fd;

static void fail(const char *what, long got, long wanted)
{
	printf("%s: %ld, not %ld (errno %d)\n", what, got, wanted, errno);
	fflush(stdout);
	_exit(1);
}

static void mark(const unsigned long *found, long bytes)
{
	for (long i = 0; i < bytes / 8; i++)
		if (found[i] >= records || (i && found[i] != found[i - 1] + 1) || atomic_fetch_add(&seen[found[i]], 1))
			fail("a record", found[i], i ? (long)found[i - 1] + 1 : -1);
}

/* Takes its part of the file; what is left of a read at its end is of a whole number of records. */
static void read_all(unsigned *chance)
{
	unsigned long found[MOST];
	long count;

	while ((count = read(fd, found, 8 * (1 + rand_r(chance) % MOST))) > 0)
		mark(found, count);
	if (count)
		fail("read", count, 0);
}

static void begin_round(long round)
{
	pthread_mutex_lock(&child_reads);
	for (unsigned long i = 0; i < records; i++)
		if (atomic_exchange(&seen[i], 0) != 1)
			fail("times that a record was read", i, 1);
	FILE *lines = fopen("lines", "a");
	fprintf(lines, "%ld\n", round);
	fclose(lines);
	if (lseek(fd, 0, SEEK_CUR) != (long)records * 8 || lseek(fd, 0, SEEK_SET))
		fail("position", lseek(fd, 0, SEEK_CUR), records * 8);
	pthread_mutex_unlock(&child_reads);
}

static void *reads(void *argument)
{
	unsigned chance = (unsigned)(long)argument + 1;
	long rounds = atol(getenv("ROUNDS"));

	for (long round = 0;; round++) {
		read_all(&chance);
		if (pthread_barrier_wait(&together) == PTHREAD_BARRIER_SERIAL_THREAD) {
			begin_round(round);
			is_over = rounds ? round + 1 >= rounds : !access("enough", F_OK);
		}
		pthread_barrier_wait(&together);
		if (is_over)
			return NULL;
	}
}

/* A child reads some, and says which. */
static void with_a_child(void)
{
	unsigned long found[OF_CHILD];
	int ends[2], status;

	pthread_mutex_lock(&child_reads);
	if (pipe(ends))
		fail("pipe", -1, 0);
	pid_t child = fork();
	if (!child) {
		long count = read(fd, found, sizeof found);
		_exit(count < 0 || write(ends[1], found, count) != count);
	}
	close(ends[1]);
	long count = read(ends[0], found, sizeof found);
	if (waitpid(child, &status, 0) != child || status || count < 0)
		fail("child", status, 0);
	mark(found, count);
	close(ends[0]);
	pthread_mutex_unlock(&child_reads);
}

static void *disturbs(void *unused)
{
	unsigned chance = 7;
	unsigned long one, which;
	int other;
	void *map;

	(void)unused;
	while (!is_over) {
		usleep(rand_r(&chance) % 20000);
		switch (rand_r(&chance) % 8) {
		case 0:
			other = dup(fd);
			if (lseek(other, 0, SEEK_CUR) % 8)
				fail("position of the same", other, 0);
			close(other);
			break;
		case 1:
			with_a_child();
			break;
		case 2:
			other = fcntl(fd, F_DUPFD_CLOEXEC, 100);
			if (other < 100 || close(other))
				fail("F_DUPFD", other, 100);
			break;
		case 3:
			map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
			if (map == MAP_FAILED || *(unsigned long *)((char *)map + 80) != 10)
				fail("map", -1, 10);
			munmap(map, 4096);
			break;
		case 4: /* a number that is used again and again, also for files that are read directly */
			other = open("blocks", O_RDONLY);
			for (which = 0; which < 40; which++)
				if (read(other, &one, 8) != 8 || one != which)
					fail("another description", one, which);
			close(other);
			break;
		default:
			which = rand_r(&chance) % records;
			if (pread(fd, &one, 8, which * 8) != 8 || one != which)
				fail("pread", one, which);
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread, other;

	threads = argc > 1 ? strtoul(argv[1], NULL, 10) : 3;
	records = argc > 2 ? strtoul(argv[2], NULL, 10) : 20000;
	setenv("ROUNDS", argc > 3 ? argv[3] : "0", 1);
	seen = calloc(records, 1);
	fd = open("blocks", O_RDWR | O_CREAT | O_TRUNC, 0600);
	for (unsigned long i = 0; i < records; i++)
		if (write(fd, &i, 8) != 8)
			fail("write", -1, 8);
	close(fd);
	fd = open("blocks", O_RDONLY);
	pthread_barrier_init(&together, NULL, threads);
	pthread_create(&other, NULL, disturbs, NULL);
	for (unsigned long i = 1; i < threads; i++)
		pthread_create(&thread, NULL, reads, (void *)i);
	reads(NULL);
	pthread_join(other, NULL);
	printf("all as it should be\n");
	return 0;
}
