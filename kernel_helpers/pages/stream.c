/* The stream of pages: its checksum, and its socket. */
#define _GNU_SOURCE
#include "pages/pages.h"
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nmmintrin.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define WAKE_AT (128 << 10) /* bytes */

__attribute__((target("sse4.2"))) void checksum_add(struct checksum *sum, const void *data, size_t size)
{
	const uint64_t *word = data;
	uint64_t a = sum->lane[0], b = sum->lane[1], c = sum->lane[2], d = sum->lane[3];

	for (; size >= 32; size -= 32, word += 4) {
		a = _mm_crc32_u64(a, word[0]);
		b = _mm_crc32_u64(b, word[1]);
		c = _mm_crc32_u64(c, word[2]);
		d = _mm_crc32_u64(d, word[3]);
	}
	for (; size >= 8; size -= 8, word++)
		a = _mm_crc32_u64(a, word[0]);
	sum->lane[0] = a;
	sum->lane[1] = b;
	sum->lane[2] = c;
	sum->lane[3] = d;
}

__attribute__((target("sse4.2"))) uint64_t checksum_value(const struct checksum *sum)
{
	uint64_t value = ~0u;

	for (int i = 0; i < 4; i++)
		value = _mm_crc32_u64(value, sum->lane[i]);
	return value;
}

int begin_splicing(const struct stream *stream)
{
	int cork = 1, socket = stream_socket(stream), flags = fcntl(socket, F_GETFL);

	setsockopt(socket, IPPROTO_TCP, TCP_CORK, &cork, sizeof cork); /* another kind of socket has no packets */
	fcntl(socket, F_SETFL, flags | O_NONBLOCK);
	return flags;
}

void end_splicing(const struct stream *stream, int before)
{
	int cork = 0, socket = stream_socket(stream);

	setsockopt(socket, IPPROTO_TCP, TCP_CORK, &cork, sizeof cork);
	fcntl(socket, F_SETFL, before);
}

int splice_all(int pipe, const struct stream *stream, size_t size, int timeout_ms)
{
	while (size) {
		ssize_t moved = splice(pipe, NULL, stream_socket(stream), NULL, size, SPLICE_F_MORE);
		if (moved == 0)
			return -EPIPE;
		if (moved < 0 && errno == EINTR)
			continue;
		if (moved < 0 && errno != EAGAIN)
			return -errno;
		if (moved < 0) {
			int result = stream_await(stream, POLLOUT, timeout_ms);
			if (result)
				return result;
			continue;
		}
		size -= moved;
	}
	return 0;
}

/* Who waits for much is not woken for every packet. */
static void wake_at(int socket, size_t size)
{
	int least = size < WAKE_AT ? (int)size : WAKE_AT;
	setsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least);
}

int receive_slowly(struct stream *stream, void *buffer, size_t size, int timeout_ms, int pause_us)
{
	char *next = buffer;
	bool much = size >= WAKE_AT, rested = false;

	while (size) {
		ssize_t received = stream_receive(stream, next, size, false);
		if (received == 0)
			return -ECONNRESET;
		if (received < 0) {
			if (received != -EAGAIN)
				return (int)received;
			if (much && pause_us && next != (char *)buffer && !rested) {
				struct timespec pause = {0, pause_us * 1000l};
				nanosleep(&pause, NULL);
				rested = true;
				continue;
			}
			if (much)
				wake_at(stream_socket(stream), stream_least(stream, size));
			int result = stream_await(stream, POLLIN, timeout_ms);
			if (much)
				wake_at(stream_socket(stream), 1);
			if (result)
				return result;
			continue;
		}
		next += received;
		size -= received;
		rested = false;
	}
	return 0;
}

int receive_all(struct stream *stream, void *buffer, size_t size, int timeout_ms)
{
	return receive_slowly(stream, buffer, size, timeout_ms, 0);
}
