/* Who runs, or wants to, at a moment: runnable.c finds it out, sampler.c does so again and again. */
#ifndef FARHOME_RUNNABLE_H
#define FARHOME_RUNNABLE_H

#define MOST_RUNNING 128 /* processes of a sample that are known by their pids */

/* Threads that run or want to. `rest`: of no process that is known. */
struct runnable {
	int count, rest;
	struct {
		int pid, threads;
	} of[MOST_RUNNING];
};

/* All threads of the machine but the one that asks; 0, or -errno. */
int find_runnable_of_machine(struct runnable *found);

#define PROCESSES_KNOWN 1024
#define MOST_AWAKE 64

/* What is kept from one call to the next; all 0 at first. Who is asleep, by pid: of two processes for whom there is one place only the one that
 * was looked at last is known. And those that are looked at in each call, with their open `stat` and for how many calls on end they have been
 * asleep. */
struct proc {
	void *directory; /* open */
	long processes;  /* where they begin, with number 1, which is always there: much else comes before */
	unsigned calls;
	int asleep[PROCESSES_KNOWN];
	int count_awake;
	struct {
		int pid, stat;
		unsigned asleep;
	} awake[MOST_AWAKE];
};

/* Threads of the processes that /proc shows, but for the `count` ones `without` and the one that asks; 0, or -errno. A process that has
 * begun since, or that has been asleep for long, is looked at in every fourth call only, and what is found of the latter counts for the times
 * that it was not: on average it is right. */
int find_runnable_of_processes(struct proc *proc, struct runnable *found, const int *without, int count);

/* Closes all that is open. */
void forget_processes(struct proc *proc);

#endif
