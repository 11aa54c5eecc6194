/* The receiving half of a session: numbered frames, control frames, acknowledgements, as a hostile other side may send them, over a real
 * connection. */
#define _GNU_SOURCE
#include "input.h"
#include "link/link.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* Ends with the line that says what does not hold. */
#define require(holds) ((holds) ? (void)0 : (fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #holds, strerror(errno)), abort()))

/* Reads the body, as any handler. */
static int take(void *owner, struct session *session, const struct frame *frame)
{
	(void)owner;
	if (session_skip(session, frame->length))
		return -1;
	session_accept(session, frame);
	return 0;
}

/* Reads until the receiver has closed the connection. The numbers of control frames must be new ones. */
static void hear(struct session *session, int event_fd)
{
	static unsigned char room[CONTROL_LIMIT + 1];
	struct event event = {0};
	uint64_t last = 0;
	while (event.kind != EVENT_CONNECTION_LOST) {
		struct pollfd watched = {event_fd, POLLIN, 0};
		int ready;
		do
			ready = poll(&watched, 1, 60000);
		while (ready < 0 && errno == EINTR);    /* libFuzzer checks the time by SIGALRM */
		require(ready == 1);
		while (event.kind != EVENT_CONNECTION_LOST && session_next_event(session, &event, room, sizeof room) == 1) {
			if (event.kind != EVENT_CONTROL)
				continue;
			require(event.number > last);
			last = event.number;
			if (event.flags & FRAME_BARRIER)
				session_release(session);
		}
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static char sent[1 << 16];
	struct input input = {data, size};
	int ends[2], event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	struct session *session = session_new(take, NULL, event_fd);
	require(session && event_fd >= 0);
	for (int connection = 0; connection < 2 && input.left; connection++) {
		uint64_t number = 0;
		size_t have = 0;
		for (int i = 0; i < 32 && input.left && have < sizeof sent - 8192; i++) {
			uint8_t what = input_number(&input, 1);
			struct frame frame = {.kind = i ? what & 1 ? FRAME_CONTROL + input_number(&input, 1) : FRAME_CALL : FRAME_RESUME};
			size_t body = i ? input_number(&input, 1) * (what & 2 ? 16 : 1) : 0;
			frame.length = what & 4 ? input_number(&input, 4) : body;
			frame.number = what & 8 ? input_number(&input, 8) : i ? ++number : 0;
			frame.acknowledged = what & 16 ? input_number(&input, 8) : 0;
			frame.flags = what & 32 ? FRAME_BARRIER : 0;
			if (what & 64)
				frame.kind = input_number(&input, 2);
			memcpy(sent + have, &frame, sizeof frame);
			input_take(&input, sent + have + sizeof frame, body);
			have += sizeof frame + body;
			if (what & 128)
				session_control(session, FRAME_CONTROL + 1, 0, 1, sent, body);
		}
		require(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
		int room = 1 << 20;
		setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
		struct stream *stream = stream_plain(ends[0]);
		require(stream && !session_attach(session, stream));
		require(send(ends[1], sent, have, MSG_NOSIGNAL) >= 0 || errno == EPIPE || errno == ECONNRESET);
		shutdown(ends[1], SHUT_WR);
		hear(session, event_fd);
		close(ends[1]);
	}
	session_free(session);
	close(event_fd);
	return 0;
}
