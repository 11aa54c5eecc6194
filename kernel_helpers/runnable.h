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

/* That directory, open from one call to the next; NULL at first. */
struct proc {
	void *directory;
	long processes; /* where they begin, with number 1, which is always there: much else comes before */
};

/* Threads of the processes that /proc shows, but for the `count` ones `without` and the one that asks; 0, or -errno. */
int find_runnable_of_processes(struct proc *proc, struct runnable *found, const int *without, int count);

#endif
