/* A process hands its filter on to its children, and all of them have one listener: a thread takes what it reports, and gives it to the member
 * whose thread it is about. The members change only while that thread stands. */
#ifndef FARHOME_LISTENER_H
#define FARHOME_LISTENER_H
#include <linux/seccomp.h>

struct listener;

/* What the thread asks of members. */
struct listener_uses {
	int (*has)(void *member, int tid); /* whether it has that thread */
	void (*take)(void *member, const struct seccomp_notif *n);
	void (*ended)(void *member); /* nobody has the filter any more */
};

/* With one member; the listener is copied. NULL: no memory. */
struct listener *listener_new(int listener, const struct listener_uses *uses, void *member);
/* 0, or a negative errno: then it is gone. */
int listener_start(struct listener *h);
int listener_descriptor(const struct listener *h);
/* 0, or -ENOMEM. */
int listener_join(struct listener *h, void *member);
/* The last one to go takes the listener with it. */
void listener_leave(struct listener *h, void *member);
/* Returns when the thread stands. */
void listener_pause(struct listener *h);
void listener_unpause(struct listener *h);
#endif
