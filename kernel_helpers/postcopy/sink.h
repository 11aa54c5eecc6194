/* The process that pages follow: what sink.c and receive.c share. */
#ifndef FARHOME_SINK_H
#define FARHOME_SINK_H
#include "postcopy/address_space.h"
#include <pthread.h>

enum state { SERVING, ALL_CAME, CLOSED, GONE, FAILED };

/* The process that the pages follow, and the children that it has had since. */
struct sink {
	pthread_mutex_t lock;
	struct page_set *owed;  /* has not come */
	struct page_set *asked; /* is waited for, and the other side knows it */
	struct address_space **spaces; /* the process's first */
	size_t space_count;
	struct run *registered;
	size_t registered_count;
	struct stream *stream, *next_stream; /* NULL: none */
	int wake, changed;
	bool closing;
	enum state state;
	int error;
	uint64_t bytes, faults;
	char *buffer; /* a frame on its way in */
	size_t have;
};

#define FRAME_MOST (sizeof(struct late_frame) + LATE_RUNS * sizeof(struct run) + LATE_BYTES)

void sink_drop_spaces(struct sink *sink);
int sink_add_space(struct sink *sink, const struct address_space *parent, int pid, int userfaultfd);
void sink_signal(int event);

#endif
