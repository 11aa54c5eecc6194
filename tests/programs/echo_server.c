/* echo_server poll|epoll PORT CONNECTIONS: answers on 127.0.0.1 until CONNECTIONS clients have come and gone.
 *
 * Byte number n of a connection is answered by byte ^ (n * 31 + 7), so a byte that is lost, doubled or out of its order, in either
 * direction, changes every answer after it. Prints for each connection, in order of arrival, how many bytes it brought.
 * The poll variant is level-triggered with blocking sockets; the epoll variant edge-triggered with non-blocking ones.
 * Exit status: 0; 3 and a line if a call failed that never fails. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 64, CHUNK = 16384 };

struct connection {
	int socket;                  /* -1 when over */
	uint64_t received, answered; /* bytes; what lies between is in `waiting` */
	unsigned char waiting[CHUNK];
};

static struct connection connections[MOST];
static int known, over;

static void must(int good, const char *what)
{
	if (!good) {
		printf("%s: %s\n", what, strerror(errno));
		exit(3);
	}
}

/* Sends what waits. Returns 1 if all of it went, 0 if the socket takes no more now. */
static int answer(struct connection *c)
{
	while (c->answered < c->received) {
		size_t from = c->answered % CHUNK, length = c->received - c->answered;
		if (length > CHUNK - from)
			length = CHUNK - from;
		ssize_t sent = send(c->socket, c->waiting + from, length, MSG_NOSIGNAL);
		if (sent < 0 && errno == EAGAIN)
			return 0;
		must(sent > 0, "send");
		c->answered += (uint64_t)sent;
	}
	return 1;
}

/* Reads once and answers. Returns 0 when there is nothing more to read now. */
static int serve(struct connection *c)
{
	unsigned char buffer[CHUNK];
	if (!answer(c))
		return 0;
	ssize_t got = recv(c->socket, buffer, sizeof buffer, 0);
	if (got < 0 && errno == EAGAIN)
		return 0;
	must(got >= 0, "recv");
	if (got == 0) {
		close(c->socket);
		c->socket = -1;
		over++;
		return 0;
	}
	for (ssize_t i = 0; i < got; i++, c->received++)
		c->waiting[c->received % CHUNK] = buffer[i] ^ (unsigned char)(c->received * 31 + 7);
	return answer(c);
}

static struct connection *welcome(int listener, int flags)
{
	int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC | flags);
	if (socket < 0 && errno == EAGAIN)
		return NULL;
	must(socket >= 0 && known < MOST, "accept");
	connections[known].socket = socket;
	return &connections[known++];
}

static void with_poll(int listener, int wanted)
{
	while (over < wanted) {
		struct pollfd set[MOST + 1] = {{.fd = listener, .events = POLLIN}};
		int count = known;
		for (int i = 0; i < count; i++)
			set[i + 1] = (struct pollfd){.fd = connections[i].socket, .events = POLLIN};
		must(poll(set, (nfds_t)count + 1, -1) > 0, "poll");
		for (int i = 0; i < count; i++)
			if (set[i + 1].revents & (POLLIN | POLLHUP))
				serve(&connections[i]);
		if (set[0].revents & POLLIN)
			welcome(listener, 0);
	}
}

static void with_epoll(int listener, int wanted)
{
	int set = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, ready[8];
	must(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0, "epoll_ctl");
	while (over < wanted) {
		int count = epoll_wait(set, ready, 8, -1);
		must(count > 0, "epoll_wait");
		for (int i = 0; i < count; i++) {
			struct connection *c = ready[i].data.ptr;
			if (!c && (c = welcome(listener, SOCK_NONBLOCK))) {
				event = (struct epoll_event){.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
				must(epoll_ctl(set, EPOLL_CTL_ADD, c->socket, &event) == 0, "epoll_ctl");
			}
			while (c && c->socket >= 0 && serve(c))
				;
		}
	}
	close(set);
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 64;
	int edge = !strcmp(argv[1], "epoll"), wanted = atoi(argv[3]), one = 1;
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	address.sin_port = htons((uint16_t)atoi(argv[2]));
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(listener >= 0, "socket");
	must(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0, "setsockopt");
	must(bind(listener, (struct sockaddr *)&address, sizeof address) == 0, "bind");
	must(listen(listener, 16) == 0, "listen");
	if (edge)
		with_epoll(listener, wanted);
	else
		with_poll(listener, wanted);
	for (int i = 0; i < known; i++)
		printf("connection %d: %llu bytes\n", i, (unsigned long long)connections[i].received);
	return 0;
}
