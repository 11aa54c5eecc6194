/* What a forwarded call is measured against: the same bytes to and fro over TCP, by blocking calls, and nothing else.
 * pingpong server ADDRESS REQUEST REPLY            prints its port, serves one connection
 * pingpong client ADDRESS PORT REQUEST REPLY COUNT ROUNDS    prints nanoseconds per exchange, a line per round */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static char data[1 << 20];

static int all(int descriptor, int out, size_t length)
{
	for (size_t done = 0; done < length;) {
		ssize_t n = out ? write(descriptor, data, length - done) : read(descriptor, data, length - done);
		if (n <= 0)
			return -1;
		done += n;
	}
	return 0;
}

int main(int count, char **arguments)
{
	if (count < 5)
		return 64;
	int server = !strcmp(arguments[1], "server"), on = 1, s = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(server ? 0 : atoi(arguments[3]))};
	inet_pton(AF_INET, arguments[2], &a.sin_addr);
	size_t request = atoi(arguments[server ? 3 : 4]), reply = atoi(arguments[server ? 4 : 5]);
	if (server) {
		socklen_t length = sizeof a;
		if (bind(s, (void *)&a, sizeof a) || listen(s, 1) || getsockname(s, (void *)&a, &length))
			return 1;
		printf("%d\n", ntohs(a.sin_port));
		fflush(stdout);
		int c = accept(s, NULL, NULL);
		setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		while (!all(c, 0, request) && !all(c, 1, reply))
			;
		return 0;
	}
	if (connect(s, (void *)&a, sizeof a))
		return 1;
	setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	int times = atoi(arguments[6]), rounds = atoi(arguments[7]);
	for (int round = 0; round < rounds; round++) {
		struct timespec begin, end;
		clock_gettime(CLOCK_MONOTONIC, &begin);
		for (int i = 0; i < times; i++)
			if (all(s, 1, request) || all(s, 0, reply))
				return 1;
		clock_gettime(CLOCK_MONOTONIC, &end);
		printf("%ld\n", ((end.tv_sec - begin.tv_sec) * 1000000000 + end.tv_nsec - begin.tv_nsec) / times);
	}
	return 0;
}
