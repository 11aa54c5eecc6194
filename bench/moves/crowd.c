/* crowd COUNT FILE KIND: has COUNT threads that wait (KIND 0), or COUNT mappings of a page each (KIND 1).
 *
 * FILE says "ready" once all are there. On SIGTERM each thread reports its own number, which it has kept on its stack and in a variable of
 * its own, or each page is looked at: FILE then says "intact COUNT" and the exit status is 0, or "damaged" and 3. No file is open in
 * between. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, STACK = 65536 };

static volatile sig_atomic_t ended;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;
static unsigned long here, counted;
static int is_over;
static _Thread_local unsigned long own;

static void on_end(int number)
{
	(void)number;
	ended = 1;
}

static void say(const char *path, const char *text)
{
	int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

	if (file < 0 || write(file, text, strlen(text)) != (ssize_t)strlen(text) || close(file))
		_exit(4);
}

static void *wait_in_crowd(void *argument)
{
	volatile unsigned long number = (uintptr_t)argument;

	own = number;
	pthread_mutex_lock(&lock);
	here++;
	while (!is_over)
		pthread_cond_wait(&turn, &lock);
	counted += own == number ? number : 0;
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* Whether each thread has reported its number. */
static int threads(unsigned long count, const char *path)
{
	pthread_t *all = calloc(count, sizeof *all);
	pthread_attr_t attributes;

	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK);
	for (unsigned long i = 0; i < count; i++)
		if (!all || pthread_create(&all[i], &attributes, wait_in_crowd, (void *)(uintptr_t)(i + 1)))
			_exit(4);
	for (unsigned long seen = 0; seen < count; usleep(1000)) {
		pthread_mutex_lock(&lock);
		seen = here;
		pthread_mutex_unlock(&lock);
	}
	say(path, "ready\n");
	while (!ended)
		usleep(1000);
	pthread_mutex_lock(&lock);
	is_over = 1;
	pthread_cond_broadcast(&turn);
	pthread_mutex_unlock(&lock);
	for (unsigned long i = 0; i < count; i++)
		pthread_join(all[i], NULL);
	return counted == count * (count + 1) / 2;
}

/* Whether each page is what it was. Neighbours differ in what may be done to them, so the kernel joins none. */
static int mappings(unsigned long count, const char *path)
{
	uint64_t *memory = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int intact = 1;

	if (memory == MAP_FAILED)
		_exit(4);
	for (unsigned long i = 0; i < count; i++)
		memory[i * PAGE / 8] = i + 1;
	for (unsigned long i = 1; i < count; i += 2)
		if (mprotect(memory + i * PAGE / 8, PAGE, PROT_READ))
			_exit(4);
	say(path, "ready\n");
	while (!ended)
		usleep(1000);
	for (unsigned long i = 0; i < count; i++)
		intact &= memory[i * PAGE / 8] == i + 1;
	return intact;
}

int main(int argc, char **argv)
{
	char text[64];

	if (argc != 4)
		return 64;
	unsigned long count = strtoul(argv[1], NULL, 10);
	signal(SIGTERM, on_end);
	int intact = (argv[3][0] == '0' ? threads : mappings)(count, argv[2]);
	snprintf(text, sizeof text, intact ? "intact %lu\n" : "damaged\n", count);
	say(argv[2], text);
	return intact ? 0 : 3;
}
