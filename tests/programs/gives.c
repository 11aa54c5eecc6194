/* gives KIND: writes much at once into a pipe or socket, of KIND (write, writev, send, sendmsg, sendfile), that another thread empties when
 * there is a file `enough`. Says how much was written and whether the same was read. Makes the file `lines` before. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SIZE = 1 << 20, PARTS = 7, PART = SIZE / PARTS };

static char bytes[PART * PARTS], got[PART * PARTS];
static int ends[2];
static size_t taken;

static void *take(void *none)
{
	while (access("enough", F_OK))
		usleep(10000);
	for (ssize_t n; taken < sizeof got && (n = read(ends[0], got + taken, sizeof got - taken)) > 0;)
		taken += n;
	return none;
}

static long put(const char *kind, int file)
{
	struct iovec parts[PARTS];
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = PARTS};
	off_t from = 0;
	for (int i = 0; i < PARTS; i++)
		parts[i] = (struct iovec){bytes + i * PART, PART};
	if (!strcmp(kind, "write"))
		return write(ends[1], bytes, sizeof bytes);
	if (!strcmp(kind, "writev"))
		return writev(ends[1], parts, PARTS);
	if (!strcmp(kind, "send"))
		return send(ends[1], bytes, sizeof bytes, MSG_NOSIGNAL);
	if (!strcmp(kind, "sendmsg"))
		return sendmsg(ends[1], &message, 0);
	return sendfile(ends[1], file, &from, sizeof bytes) + (from != sizeof bytes);
}

int main(int count, char **words)
{
	pthread_t reader;
	int file = open("bytes", O_RDWR | O_CREAT | O_TRUNC, 0600);
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = i * 2654435761u >> 13;
	if (count < 2 || write(file, bytes, sizeof bytes) != sizeof bytes)
		return 2;
	int is_socket = !strncmp(words[1], "send", 4);
	if (is_socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : pipe(ends))
		return 3;
	pthread_create(&reader, NULL, take, NULL);
	FILE *lines = fopen("lines", "w");
	fputs("writes\n", lines);
	fclose(lines);
	long written = put(words[1], file);
	shutdown(ends[1], SHUT_WR);
	if (!is_socket)
		close(ends[1]);
	pthread_join(reader, NULL);
	printf("wrote %s, read %s\n", written == sizeof bytes ? "all" : "a part", memcmp(bytes, got, sizeof got) ? "another" : "the same");
	return 0;
}
