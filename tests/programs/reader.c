/* reader FILES SIZE [ROUNDS]: reads files in every way there is, does to their descriptors whatever ends that a file is read where the process is, and
 * knows of each byte what it has to be. A round writes a line into the file `lines`; it ends when there is a file `enough`, or after ROUNDS.
 * Where FARHOME_SPLIT is set, it is a guest of bench/calls/link_pair.py, which cannot have children. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 65536
#define FILES 64

static unsigned char buffer[MOST];
static char pages[2 * 4096] __attribute__((aligned(4096)));
static unsigned long long state = 88172645463325252ull;
static long size;
static int is_split;
static void *volatile nowhere = (void *)16;

static unsigned long chance(unsigned long below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % below;
}

static void fail(const char *what, long got, long wanted)
{
	printf("%s: %ld, not %ld (errno %d)\n", what, got, wanted, errno);
	fflush(stdout);
	_exit(1);
}

static unsigned char byte_of(int seed, long at)
{
	unsigned long x = (unsigned long)at * 2654435761u + (unsigned long)seed * 40503u;
	return (unsigned char)(x >> 13 ^ x >> 5);
}

static void name_of(int number, char *name)
{
	sprintf(name, "data%d", number);
}

static void put(int fd, int seed, long from, long to)
{
	while (from < to) {
		long count = to - from < MOST ? to - from : MOST;
		for (long i = 0; i < count; i++)
			buffer[i] = byte_of(seed, from + i);
		if (write(fd, buffer, count) != count)
			fail("write", -1, count);
		from += count;
	}
}

static void make(int number, int seed, long length)
{
	char name[32];
	name_of(number, name);
	unlink(name);
	int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0600);
	if (fd < 0)
		fail("create", fd, 3);
	put(fd, seed, 0, length);
	close(fd);
}

static void check(const char *what, int seed, long at, const unsigned char *bytes, long got, long wanted)
{
	if (got != wanted)
		fail(what, got, wanted);
	for (long i = 0; i < got; i++)
		if (bytes[i] != byte_of(seed, at + i))
			fail(what, at + i, -1);
}

static long expect(long at, long count, long length)
{
	return at >= length ? 0 : at + count > length ? length - at : count;
}

/* One read in some way at position *at, which it leaves where it then has to be. */
static void read_once(int fd, int seed, long *at, long length)
{
	long count = 1 + chance(MOST), half = count / 2, other = chance(length);
	struct iovec parts[2] = {{buffer, half}, {buffer + half, count - half}};
	switch (chance(6)) {
	case 0:
	case 1:
		check("read", seed, *at, buffer, read(fd, buffer, count), expect(*at, count, length));
		*at += expect(*at, count, length);
		break;
	case 2:
		check("readv", seed, *at, buffer, readv(fd, parts, 2), expect(*at, count, length));
		*at += expect(*at, count, length);
		break;
	case 3:
		check("pread", seed, other, buffer, pread(fd, buffer, count, other), expect(other, count, length));
		break;
	case 4:
		check("preadv", seed, other, buffer, preadv(fd, parts, 2, other), expect(other, count, length));
		break;
	case 5:
		if (chance(2))
			*at = other;
		if (lseek(fd, *at, SEEK_SET) != *at || lseek(fd, 0, SEEK_CUR) != *at)
			fail("lseek", lseek(fd, 0, SEEK_CUR), *at);
		if (lseek(fd, 0, SEEK_END) != length || lseek(fd, *at - length, SEEK_CUR) != *at)
			fail("end", lseek(fd, 0, SEEK_CUR), *at);
	}
	if (lseek(fd, 0, SEEK_CUR) != *at)
		fail("position", lseek(fd, 0, SEEK_CUR), *at);
	if (*at >= length)
		*at = lseek(fd, 0, SEEK_SET);
}

static void reads(int fd, int seed, long *at, long length, int times)
{
	while (times--)
		read_once(fd, seed, at, length);
}

/* What others do with the same position. */
static void shared_with_a_child(int fd, int seed, long *at, long length)
{
	int status;
	long count = expect(*at, 1000, length);
	pid_t child = fork();
	if (!child) {
		for (int i = 0; i < 10; i++)
			check("read of a child", seed, *at + i * 100, buffer, read(fd, buffer, 100), expect(*at + i * 100, 100, length));
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || status)
		fail("child", status, 0);
	*at += count;
	reads(fd, seed, at, length, 8);
}

static void sent(int fd, int seed, long *at, long length)
{
	int ends[2];
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
	char one = 'x';
	struct iovec part = {&one, 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) || sendmsg(ends[0], &message, 0) != 1 || recvmsg(ends[1], &message, 0) != 1)
		fail("sendmsg", -1, 1);
	int other;
	memcpy(&other, CMSG_DATA(&control.header), sizeof other);
	reads(other, seed, at, length, 10);
	reads(fd, seed, at, length, 10);
	close(other);
	close(ends[0]);
	close(ends[1]);
}

static void something(int fd, int number, int seed, long *at, long *length)
{
	char name[32];
	long count;
	struct stat about, named;
	struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_CUR, .l_len = 1};
	int ends[2], other;
	name_of(number, name);
	unsigned long what = chance(13);
	switch (is_split && what == 2 ? 13 : what) {
	case 0:
		other = dup(fd);
		reads(other, seed, at, *length, 8);
		reads(fd, seed, at, *length, 3);
		close(other);
		break;
	case 1:
		if (dup2(fd, 200) != 200)
			fail("dup2", -1, 200);
		reads(200, seed, at, *length, 8);
		close(200);
		break;
	case 2:
		shared_with_a_child(fd, seed, at, *length);
		break;
	case 3:
		sent(fd, seed, at, *length);
		break;
	case 4:
		count = expect(*at, 5000, *length);
		if (pipe(ends) || sendfile(ends[1], fd, NULL, 5000) != count)
			fail("sendfile", -1, count);
		check("sendfile", seed, *at, buffer, count ? read(ends[0], buffer, 5000) : 0, count);
		*at += count;
		close(ends[0]);
		close(ends[1]);
		break;
	case 5:
		if (fcntl(fd, F_SETLK, &lock))
			fail("lock", -1, 0);
		break;
	case 6: /* the name goes, the file stays */
		unlink(name);
		reads(fd, seed, at, *length, 6);
		make(number, seed, *length);
		break;
	case 7: /* longer */
		other = open(name, O_WRONLY | O_APPEND);
		if (other < 0 || fstat(fd, &about) || fstat(other, &named))
			fail("append", other, 0);
		if (about.st_ino == named.st_ino && *length < 2 * size) {
			put(other, seed, *length, *length + 3000);
			*length += 3000;
		}
		close(other);
		reads(fd, seed, at, *length, 4);
		break;
	case 8: /* other bytes: they are seen by the next read */
		other = open(name, O_RDWR);
		if (other < 0 || fstat(fd, &about) || fstat(other, &named))
			fail("change", other, 0);
		if (about.st_ino == named.st_ino) {
			long place = chance(*length);
			unsigned char was = byte_of(seed, place), now = was ^ 1, got;
			if (pwrite(other, &now, 1, place) != 1 || pread(fd, &got, 1, place) != 1 || got != now)
				fail("changed byte", got, now);
			if (pwrite(other, &was, 1, place) != 1 || pread(fd, &got, 1, place) != 1 || got != was)
				fail("byte changed back", got, was);
		}
		close(other);
		break;
	case 9:
		if (fstat(fd, &about) || about.st_size != *length)
			fail("fstat", about.st_size, *length);
		/* by a name of which a part may lie in another page */
		char *path = pages + sizeof pages / 2 - chance(40);
		if (chance(2))
			sprintf(path, "/proc/self/fdinfo/%d", fd);
		else
			sprintf(path, "/proc/self/task/../../self/task/../fdinfo/%d", fd);
		FILE *info = fopen(path, "r");
		if (!info || fscanf(info, "pos: %ld", &count) != 1 || count != *at)
			fail("position in /proc", count, *at);
		fclose(info);
		break;
	case 10:
		if (pread(fd, nowhere, 10, 0) != -1 || errno != EFAULT || write(fd, "x", 1) != -1 || errno != EBADF)
			fail("errors", errno, EBADF);
		break;
	case 11:
		if (preadv2(fd, &(struct iovec){buffer, 10}, 1, -1, 0) != expect(*at, 10, *length))
			fail("preadv2", -1, 10);
		*at += expect(*at, 10, *length);
		break;
	default:
		reads(fd, seed, at, *length, 30);
	}
}

/* A file is read in several rounds, for only of what is some seconds old pages are remembered. */
static void round_of(int number)
{
	static int seeds[FILES];
	static long lengths[FILES];
	char name[32];
	int fd;
	if (!lengths[number] || !chance(4)) {
		seeds[number] = (int)chance(1000);
		lengths[number] = size + (long)chance(5000);
		make(number, seeds[number], lengths[number]);
	}
	int seed = seeds[number];
	long at = 0, length = lengths[number];
	name_of(number, name);
	fd = open(name, O_RDONLY);
	if (fd < 0)
		fail("open", fd, 3);
	for (int i = 0; i < 6; i++) {
		reads(fd, seed, &at, length, 4 + (int)chance(12));
		something(fd, number, seed, &at, &length);
	}
	reads(fd, seed, &at, length, 4);
	lengths[number] = length;
	if (close(fd) || read(fd, buffer, 1) != -1 || errno != EBADF)
		fail("a closed descriptor", errno, EBADF);
}

int main(int argc, char **argv)
{
	int files = argc > 1 && atoi(argv[1]) <= FILES ? atoi(argv[1]) : 4;
	size = argc > 2 ? atol(argv[2]) : 300000;
	long rounds = argc > 3 ? atol(argv[3]) : 0;
	is_split = getenv("FARHOME_SPLIT") != NULL;
	if (is_split && fork())
		for (;;)
			pause();
	if (is_split)
		pause();
	for (int round = 0; rounds ? round < rounds : access("enough", F_OK); round++) {
		round_of(round % files);
		FILE *lines = fopen("lines", "a");
		fprintf(lines, "%d\n", round);
		fclose(lines);
	}
	printf("all as it should be\n");
	return 0;
}
