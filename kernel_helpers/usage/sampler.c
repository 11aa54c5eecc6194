/* Counts runnable threads at a steady pace in a thread of its own: a daemon that wakes up for each sample costs the node many times as much
 * as the sample. What it has counted waits until it is taken. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "usage/runnable.h"

#define MOST_LEFT_OUT 256 /* processes that are not looked at */
#define KEPT 64 /* samples; of those that are not taken the oldest are lost */
#define REST 5 /* times as long as a sample takes there is none: where very many processes are looked at one by one */

struct sample {
	double at; /* seconds of CLOCK_MONOTONIC */
	struct runnable found;
};

struct sampler {
	pthread_t thread;
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t stops;
	bool is_stopping;
	unsigned long made, taken;
	int left_out[MOST_LEFT_OUT], count_left_out;
	struct sample kept[KEPT];
	struct proc proc; /* the thread's */
	/* constant */
	bool is_machine;
	double period;
	int nice;
};

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static void make_sample(struct sampler *sampler)
{
	struct sample sample = {.at = seconds()};
	int left_out[MOST_LEFT_OUT], count;

	pthread_mutex_lock(&sampler->lock);
	count = sampler->count_left_out;
	memcpy(left_out, sampler->left_out, count * sizeof *left_out);
	pthread_mutex_unlock(&sampler->lock);
	int error = sampler->is_machine ? find_runnable_of_machine(&sample.found)
	                                : find_runnable_of_processes(&sampler->proc, &sample.found, left_out, count);
	if (error)
		return; /* no descriptor is free, as a rule: the next one has more luck */
	pthread_mutex_lock(&sampler->lock);
	sampler->kept[sampler->made++ % KEPT] = sample;
	if (sampler->made - sampler->taken > KEPT)
		sampler->taken = sampler->made - KEPT;
	pthread_mutex_unlock(&sampler->lock);
}

/* False: there is to be no further sample. */
static bool rest_until(struct sampler *sampler, double moment)
{
	struct timespec end = {.tv_sec = (time_t)moment, .tv_nsec = (long)((moment - (time_t)moment) * 1e9)};
	int waited = 0;

	pthread_mutex_lock(&sampler->lock);
	while (!sampler->is_stopping && waited != ETIMEDOUT)
		waited = pthread_cond_timedwait(&sampler->stops, &sampler->lock, &end);
	bool goes_on = !sampler->is_stopping;
	pthread_mutex_unlock(&sampler->lock);
	return goes_on;
}

static void *work(void *argument)
{
	struct sampler *sampler = argument;
	double due = seconds(), begun, took = 0;

	setpriority(PRIO_PROCESS, gettid(), sampler->nice); /* which new threads do not always inherit */
	do {
		begun = seconds();
		due += sampler->period;
		if (due < begun + REST * took)
			due = begun + REST * took;
		if (!rest_until(sampler, due))
			break;
		begun = seconds();
		make_sample(sampler);
		took = seconds() - begun;
	} while (true);
	return NULL;
}

/* Makes a sample now, and one in each period (seconds) from then on: of the whole machine, or of the processes that /proc shows. NULL, and
 * errno. */
struct sampler *farhome_sampler_start(int is_machine, double period)
{
	struct sampler *sampler = calloc(1, sizeof *sampler);
	pthread_condattr_t monotonic;
	sigset_t all, before;

	if (!sampler)
		return NULL;
	sampler->is_machine = is_machine;
	sampler->period = period;
	sampler->nice = getpriority(PRIO_PROCESS, 0);
	pthread_mutex_init(&sampler->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&sampler->stops, &monotonic);
	pthread_condattr_destroy(&monotonic);
	make_sample(sampler);
	sigfillset(&all); /* signals are the main thread's */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&sampler->thread, NULL, work, sampler);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error) {
		forget_processes(&sampler->proc);
		free(sampler);
		errno = error;
		return NULL;
	}
	return sampler;
}

/* Threads of a sample, those of the `count` processes `without` not among them. */
static int counted(const struct runnable *found, const int *without, int count)
{
	int threads = found->rest;

	for (int i = 0; i < found->count; i++) {
		int j = 0;
		while (j < count && without[j] != found->of[i].pid)
			j++;
		threads += j == count ? found->of[i].threads : 0;
	}
	return threads > 0 ? threads : 0;
}

/* Takes up to `most` samples, the oldest first: when they were made, and the threads, without those of some processes, which are not even
 * looked at from now on. How many. */
int farhome_sampler_take(struct sampler *sampler, const int *without, int count, double *at, int *threads, int most)
{
	int found = 0;

	pthread_mutex_lock(&sampler->lock);
	for (; found < most && sampler->taken < sampler->made; found++) {
		const struct sample *sample = &sampler->kept[sampler->taken++ % KEPT];
		at[found] = sample->at;
		threads[found] = counted(&sample->found, without, count);
	}
	sampler->count_left_out = count < MOST_LEFT_OUT ? count : MOST_LEFT_OUT;
	memcpy(sampler->left_out, without, sampler->count_left_out * sizeof *without);
	pthread_mutex_unlock(&sampler->lock);
	return found;
}

/* Ends it; it is no more. */
void farhome_sampler_stop(struct sampler *sampler)
{
	pthread_mutex_lock(&sampler->lock);
	sampler->is_stopping = true;
	pthread_cond_signal(&sampler->stops);
	pthread_mutex_unlock(&sampler->lock);
	pthread_join(sampler->thread, NULL);
	forget_processes(&sampler->proc);
	pthread_cond_destroy(&sampler->stops);
	pthread_mutex_destroy(&sampler->lock);
	free(sampler);
}
