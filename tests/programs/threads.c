/* threads ROUNDS: four threads, mutexes, condition variables, a barrier of our own and thread-specific data.
 *
 * Two producers put numbered items into a bounded queue, two consumers take them; every item is taken exactly once. At
 * the end of a round all four meet at a barrier. Thread ids, stacks and thread-specific data must stay the threads' own.
 * Exit status: 0; 3 an item was lost or doubled, or a thread is not itself any more. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { QUEUE = 16, ITEMS = 4000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t not_full = PTHREAD_COND_INITIALIZER, not_empty = PTHREAD_COND_INITIALIZER, all_met = PTHREAD_COND_INITIALIZER;
static uint32_t queue[QUEUE];
static unsigned head, count, produced, consumed, meeting, met;
static unsigned char seen[ITEMS];
static uint64_t sum;
static long rounds;
static pthread_key_t own;
static __thread pid_t own_tid;

static void fail(const char *what)
{
	printf("%s\n", what);
	fflush(stdout);
	_exit(3);
}

static uint64_t work(uint64_t value)
{
	for (int i = 0; i < 20000; i++)
		value = value * 6364136223846793005u + 1442695040888963407u;
	return value;
}

/* Waits with a timeout now and then, so that both kinds of futex wait occur. */
static void wait_for(pthread_cond_t *condition, unsigned turn)
{
	struct timespec until;
	if (turn % 4) {
		pthread_cond_wait(condition, &lock);
		return;
	}
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 1;
	pthread_cond_timedwait(condition, &lock, &until);
}

static void produce(void)
{
	for (;;) {
		pthread_mutex_lock(&lock);
		if (produced == ITEMS)
			break;
		uint32_t item = produced++;
		while (count == QUEUE)
			wait_for(&not_full, item);
		queue[(head + count++) % QUEUE] = item;
		pthread_cond_signal(&not_empty);
		pthread_mutex_unlock(&lock);
	}
	pthread_mutex_unlock(&lock);
}

static void consume(void)
{
	for (;;) {
		pthread_mutex_lock(&lock);
		while (count == 0 && consumed < ITEMS)
			wait_for(&not_empty, consumed);
		if (consumed == ITEMS)
			break;
		uint32_t item = queue[head];
		head = (head + 1) % QUEUE;
		count--;
		if (++consumed == ITEMS)
			pthread_cond_broadcast(&not_empty);
		if (seen[item]++)
			fail("an item was taken twice");
		pthread_cond_signal(&not_full);
		pthread_mutex_unlock(&lock);
		uint64_t value = work(item);
		__atomic_fetch_add(&sum, value, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&lock);
}

static void meet(long round)
{
	pthread_mutex_lock(&lock);
	unsigned this_meeting = meeting;
	if (++met == 4) {
		for (int item = 0; item < ITEMS; item++)
			if (seen[item] != 1)
				fail("an item was lost");
		for (int item = 0; item < ITEMS; item++)
			seen[item] = 0;
		produced = consumed = met = 0;
		meeting++;
		if (round % 10 == 9)
			printf("round %ld %016llx\n", round + 1, (unsigned long long)sum);
		pthread_cond_broadcast(&all_met);
	} else
		while (meeting == this_meeting)
			pthread_cond_wait(&all_met, &lock);
	pthread_mutex_unlock(&lock);
}

static void *run(void *argument)
{
	long number = (long)argument;
	volatile long marks[64];
	own_tid = gettid();
	pthread_setspecific(own, argument);
	for (int i = 0; i < 64; i++)
		marks[i] = number * 1000 + i;
	for (long round = 0; round < rounds; round++) {
		if (number % 2)
			produce();
		else
			consume();
		meet(round);
		if (own_tid != syscall(SYS_gettid) || pthread_getspecific(own) != argument)
			fail("a thread is not itself any more");
		for (int i = 0; i < 64; i++)
			if (marks[i] != number * 1000 + i)
				fail("a thread's stack changed");
	}
	return (void *)(number * 10);
}

int main(int argc, char **argv)
{
	pthread_t thread[4];
	if (argc != 2)
		return 64;
	rounds = atol(argv[1]);
	pthread_key_create(&own, NULL);
	for (long number = 1; number < 4; number++)
		pthread_create(&thread[number], NULL, run, (void *)number);
	run((void *)0);
	for (long number = 1; number < 4; number++) {
		void *result;
		pthread_join(thread[number], &result);
		if (result != (void *)(number * 10))
			fail("a thread returned something else");
	}
	printf("%ld rounds of %d items, sum %016llx\n", rounds, ITEMS, (unsigned long long)sum);
	return 0;
}
