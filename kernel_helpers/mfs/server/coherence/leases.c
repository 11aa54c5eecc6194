/* Leases: as long as one is held, nobody can open the file for writing, here or through us, before its peer has been asked to forget what it
 * remembers of the file; or, while the peer itself has it open for writing, and nobody else has it open, nobody can open it at all. The
 * kernel holds anyone who tries up and sends a signal; the lease is given up as soon as the peer has answered, or its memory has run out by
 * itself (MFS_TERM): a dead peer delays nobody for longer. */
#define _GNU_SOURCE
#include "mfs/server/coherence/coherence.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define DESCRIPTORS (1u << 20)
#define TICK 20 /* ms between two looks at leases that are wanted back; as long as there are none: */
#define CALM 250

struct mfs_lease {
	int fd;
	struct mfs_session *session;
	struct mfs_node *node;
	uint64_t id, fence;
	long long until; /* the peer remembers nothing after that, */
	long long given_up; /* and when it is wanted back, it is not waited for longer than that; ms */
	bool breaking, notified;
	bool whole; /* a write lease, on the file that the peer has open */
	struct mfs_lease *next, **from;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mfs_lease *all, **of_descriptor;
static pid_t breaker;

/* Under `lock`. */
static void release(struct mfs_lease *lease)
{
	*lease->from = lease->next;
	if (lease->next)
		lease->next->from = lease->from;
	if (lease->node->lease == lease)
		lease->node->lease = NULL;
	of_descriptor[lease->fd] = NULL;
	if (lease->whole)
		mfs_give_up_lease(lease->fd); /* the file itself stays open */
	close(lease->fd); /* processes that wait go on */
	mfs_place_give(lease->session->owner, MFS_LEASES, 1);
	atomic_fetch_sub(&lease->session->counters->leases, 1);
	free(lease);
}

/* A descriptor by which it may be had; -1: none. */
static int lease_on(struct mfs_session *session, struct mfs_node *node, bool whole)
{
	struct f_owner_ex owner = {.type = F_OWNER_TID, .pid = breaker};
	int fd = -1;

	mfs_be_self();
	if (whole) {
		struct mfs_file *file = node->opened == 1 ? mfs_handle_get(&session->handles, &session->table, node->writer) : NULL;
		if (file) {
			fd = fcntl(file->fd, F_DUPFD_CLOEXEC, 0);
			mfs_handle_put(file);
		}
	} else {
		fd = openat(mfs_own_files, mfs_number_of(node->fd).text, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOATIME);
	}
	if (fd < 0)
		return -1;
	if ((unsigned)fd >= DESCRIPTORS || fcntl(fd, F_SETSIG, MFS_BREAK) || fcntl(fd, F_SETOWN_EX, &owner)) {
		close(fd);
		return -1;
	}
	return fd;
}

bool mfs_lease_hold(struct mfs_session *session, struct mfs_node *node, uint64_t id)
{
	long long until = mfs_now() + MFS_TERM;

	if (!of_descriptor)
		return false;
	pthread_mutex_lock(&lock);
	struct mfs_lease *lease = node->lease;
	bool held = lease && !lease->breaking;
	if (held && until > lease->until)
		lease->until = until;
	pthread_mutex_unlock(&lock);
	if (lease || !mfs_place_take(session->owner, MFS_LEASES))
		return held;
	bool whole = node->writer;
	int fd = lease_on(session, node, whole);
	struct mfs_lease *fresh = fd >= 0 ? malloc(sizeof *fresh) : NULL;
	if (!fresh) {
		mfs_place_give(session->owner, MFS_LEASES, 1);
		if (fd >= 0)
			close(fd);
		return false;
	}
	*fresh = (struct mfs_lease){.fd = fd, .session = session, .node = node, .id = id, .until = until, .whole = whole};
	pthread_mutex_lock(&lock);
	/* Somebody else may have taken one meanwhile; and a lease may be broken as soon as it is there. */
	held = !node->lease && !fcntl(fd, F_SETLEASE, whole ? F_WRLCK : F_RDLCK);
	if (held) {
		fresh->next = all;
		fresh->from = &all;
		if (all)
			all->from = &fresh->next;
		node->lease = of_descriptor[fd] = fresh;
		all = fresh;
		atomic_fetch_add(&session->counters->leases, 1);
	}
	pthread_mutex_unlock(&lock);
	if (!held) {
		mfs_place_give(session->owner, MFS_LEASES, 1);
		close(fd);
		free(fresh);
	}
	return held;
}

void mfs_lease_drop(struct mfs_node *node, bool if_whole)
{
	pthread_mutex_lock(&lock);
	if (node->lease && (node->lease->whole || !if_whole)) {
		atomic_fetch_add(&node->lease->session->dropped, 1); /* what was promised with it and is not sent yet is not promised */
		release(node->lease);
	}
	pthread_mutex_unlock(&lock);
}

void mfs_leases_drop_all(struct mfs_session *session)
{
	pthread_mutex_lock(&lock);
	for (struct mfs_lease *lease = all, *next; lease; lease = next) {
		next = lease->next;
		if (lease->session == session)
			release(lease);
	}
	pthread_mutex_unlock(&lock);
}

void mfs_leases_settled(struct mfs_session *session)
{
	pthread_mutex_lock(&lock);
	for (struct mfs_lease *lease = all, *next; lease; lease = next) {
		next = lease->next;
		if (lease->session == session && lease->notified && lease->fence <= session->settled)
			release(lease);
	}
	pthread_mutex_unlock(&lock);
}

/* The kernel wants the lease on that descriptor back. */
static void give_back(int fd)
{
	struct mfs_session *session = NULL;
	uint64_t id = 0;

	pthread_mutex_lock(&lock);
	struct mfs_lease *lease = fd >= 0 && (unsigned)fd < DESCRIPTORS ? of_descriptor[fd] : NULL;
	if (lease && !lease->breaking) {
		lease->breaking = true;
		lease->given_up = mfs_now() + MFS_SETTLES_WITHIN;
		atomic_fetch_add(&lease->session->counters->recalls, 1);
		if (lease->until + MFS_LATE < mfs_now()) {
			release(lease);
		} else {
			session = lease->session;
			id = lease->id;
			mfs_node_recalled(lease->node);
			mfs_session_keep(session);
		}
	}
	pthread_mutex_unlock(&lock);
	if (!session)
		return;
	mfs_forget_node(session, id);
	uint64_t fence = mfs_fence(session);
	pthread_mutex_lock(&lock);
	lease = of_descriptor[fd];
	if (lease && lease->session == session && lease->id == id && lease->breaking) {
		lease->fence = fence;
		lease->notified = true;
		if (fence <= session->settled)
			release(lease);
	}
	pthread_mutex_unlock(&lock);
	mfs_session_let_go(session);
}

/* What has run out; `lost`: signals were lost, the kernel is asked which leases it wants back. Whether any is wanted back. */
static bool look(bool lost)
{
	bool breaking = false;
	long long now = mfs_now();
	int wanted[64];
	unsigned found = 0;

	pthread_mutex_lock(&lock);
	for (struct mfs_lease *lease = all, *next; lease; lease = next) {
		next = lease->next;
		breaking |= lease->breaking;
		if (lease->breaking ? now > lease->given_up : now > lease->until + MFS_LATE)
			release(lease);
		else if (lost && !lease->breaking && found < sizeof wanted / sizeof *wanted &&
		         fcntl(lease->fd, F_GETLEASE) != (lease->whole ? F_WRLCK : F_RDLCK))
			wanted[found++] = lease->fd;
	}
	pthread_mutex_unlock(&lock);
	while (found)
		give_back(wanted[--found]);
	return breaking;
}

static void *wait_for_breaks(void *started)
{
	struct timespec tick = {.tv_nsec = CALM * 1000000};
	sigset_t signals;
	siginfo_t about;
	long long looked = 0;
	bool lost = false;

	breaker = (pid_t)syscall(SYS_gettid);
	__atomic_store_n((int *)started, 1, __ATOMIC_RELEASE);
	sigemptyset(&signals);
	sigaddset(&signals, MFS_BREAK);
	sigaddset(&signals, SIGIO);
	for (;;) {
		int number = sigtimedwait(&signals, &about, &tick);
		if (number == MFS_BREAK)
			give_back(about.si_fd);
		lost |= number == SIGIO;
		if (mfs_now() - looked >= TICK) {
			tick.tv_nsec = (look(lost) ? TICK : CALM) * 1000000;
			looked = mfs_now();
			lost = false;
		}
	}
	return NULL;
}

int mfs_leases_begin(void)
{
	static int started;
	pthread_t thread;
	struct mfs_lease **table = calloc(DESCRIPTORS, sizeof *table);

	if (!table || pthread_create(&thread, NULL, wait_for_breaks, &started))
		return -ENOMEM;
	while (!__atomic_load_n(&started, __ATOMIC_ACQUIRE))
		usleep(100);
	of_descriptor = table;
	return 0;
}
