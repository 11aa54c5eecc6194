/* A process hands its filter on to its children, and all of them have one listener: a thread takes what it tells, and gives it to the member
 * whose thread it is about. The members change only while that thread stands. */
#ifndef FARHOME_HUB_H
#define FARHOME_HUB_H
#include <linux/seccomp.h>

struct hub;

/* What the thread asks of members. */
struct hub_uses {
	int (*has)(void *member, int tid); /* whether it has that thread */
	void (*take)(void *member, const struct seccomp_notif *n);
	void (*ended)(void *member); /* nobody has the filter any more */
};

/* With one member; the listener is copied. NULL: no memory. */
struct hub *hub_new(int listener, const struct hub_uses *uses, void *member);
/* 0, or a negative errno: then it is gone. */
int hub_start(struct hub *h);
int hub_listener(const struct hub *h);
/* 0, or -ENOMEM. */
int hub_join(struct hub *h, void *member);
/* The last one to go takes the hub with it. */
void hub_leave(struct hub *h, void *member);
/* Returns when the thread stands. */
void hub_pause(struct hub *h);
void hub_unpause(struct hub *h);
#endif
