/* home_take_call(): CALLs as a hostile remote may send them. The stub is a process that does nothing but have memory; its resident loops are
 * threads here that answer each request with the next value of the input. */
#define _GNU_SOURCE
#include "link/home/threads/parts.h"
#include "link_session.h"
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct home *home_new(const int *tids, unsigned count, int memory, int event_fd, int follows);
struct session *home_session(struct home *h);
void home_set_stub(struct home *h, int pid, uint64_t address, uint32_t spin);
void home_signals_arrived(struct home *h, int tid);
int home_suspend(struct home *h, int tid, int64_t code);
int home_renew(struct home *h);

#define THREADS 2
#define FIRST_TID 100
#define STUB 0x3b0000001000ull
#define VALUES 64

static struct home *home;
static pid_t stub;
static int64_t values[VALUES];
static unsigned next_value;

static void wake(uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, 1000, NULL, NULL, 0);
}

static void *answer(void *argument)
{
	struct slot *slot = argument;
	for (;;) {
		uint32_t request = __atomic_load_n(&slot->request, __ATOMIC_SEQ_CST);
		if (request == __atomic_load_n(&slot->done, __ATOMIC_SEQ_CST)) {
			__atomic_store_n(&slot->sleeping, 1, __ATOMIC_SEQ_CST);
			syscall(SYS_futex, &slot->request, FUTEX_WAIT, request, NULL, NULL, 0);
			continue;
		}
		slot->value = values[__atomic_add_fetch(&next_value, 1, __ATOMIC_SEQ_CST) % VALUES];
		__atomic_store_n(&slot->done, request, __ATOMIC_SEQ_CST);
		uint32_t watched = __atomic_load_n(&slot->watched, __ATOMIC_SEQ_CST);
		if (watched == WATCHED_HERE)
			wake(&slot->done);
		else if (watched) {
			__atomic_add_fetch(&home->control->completions, 1, __ATOMIC_SEQ_CST);
			wake(&home->control->completions);
		}
	}
	return NULL;
}

/* No call is under way: reports that the signals of each thread have arrived. */
static void settle(void)
{
	for (unsigned i = 0; i < THREADS; i++) {
		struct home_thread *t = home->threads[i];
		for (;;) {
			pthread_mutex_lock(&home->lock);
			int busy = t->state == BUSY;
			pthread_mutex_unlock(&home->lock);
			if (!busy)
				break;
			home_signals_arrived(home, t->tid);
			sched_yield();
		}
	}
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static int tids[THREADS] = {FIRST_TID, FIRST_TID + 1};
	pthread_t thread;
	(void)argc, (void)argv;
	stub = fork();
	if (!stub) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		mmap((void *)(STUB - (64 << 10)), 32 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		for (;;)
			pause();
	}
	home = home_new(tids, THREADS, memfd_create("slots", MFD_CLOEXEC), eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), 0);
	if (!home)
		abort();
	home_set_stub(home, stub, STUB, 0);
	for (unsigned i = 0; i < THREADS; i++)
		if (pthread_create(&thread, NULL, answer, home->threads[i]->slot))
			abort();
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input input = {data, size};
	struct frame frame = {0};
	/* Some values that mean something to the caller of make_reply(): errors, lengths, restart codes. */
	for (unsigned i = 0; i < VALUES; i++)
		values[i] = (int64_t)(i % 4 == 0 ? -(int64_t)i * 9 : i % 4 == 1 ? 1ll << i : i % 4 == 2 ? i : -(1ll << (i % 63)));
	next_value = input_number(&input, 1);
	struct session *session = home_session(home);
	session->input = input;
	for (int i = 0; i < 32 && session->input.left; i++) {
		uint8_t what = input_number(&session->input, 1);
		frame.kind = what & 0x80 ? input_number(&session->input, 2) : what & 0x40 ? FRAME_ABANDON : FRAME_CALL;
		frame.tid = what & 0x20 ? input_number(&session->input, 4) : FIRST_TID + (what & 1);
		if (what & 0x10 || frame.kind != FRAME_CALL)
			frame.length = input_number(&session->input, 4);
		else {
			/* The length that goes with the call, so that most inputs pass the first check. */
			struct input ahead = session->input;
			struct call call;
			input_take(&ahead, &call, sizeof call);
			frame.length = sizeof call + call.relocations * 4 + call.outs * sizeof(struct out) + call.image;
		}
		frame.number++;
		if (!link_session_take(session, &frame))
			break;
		if (what & 8)
			home_suspend(home, FIRST_TID + (what & 1), what & 4 ? -516 : -512);
	}
	settle();
	if (home_renew(home))
		abort();
	return 0;
}
