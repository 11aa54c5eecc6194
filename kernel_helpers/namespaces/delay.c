/* delay DEVICE DELAY JITTER: holds each packet that is sent to a tap device for a while and gives it back as received there, for the links
 * of a lab (sch_netem, which does that too, is not in every kernel). DELAY nanoseconds, JITTER as many more or less at most, by chance;
 * packets of one sender keep their order, as they do on a cable.
 * Runs in the network namespace of the device, which it makes, until it is killed. Exit status: 1, one sentence on stderr. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define PACKET (sizeof(struct virtio_net_hdr) + 65536 + ETH_HLEN + 4)
#define SENDER (sizeof(struct virtio_net_hdr) + 2 * ETH_ALEN - 1)       /* where the last byte of its address is: a lab's differ there */
#define MOST 16384                                                      /* packets; more are lost, as on a link that is too full */

#define WAKING_MOST 50000 /* nanoseconds: where it takes longer somebody else has the processor, and that is no part of the delay */

struct packet {
	int64_t due;
	size_t length;
	unsigned char bytes[];
};

static struct packet *packets[MOST]; /* a ring, by when they are due */
static unsigned first, held;
static int64_t latest[256]; /* by sender */
/* Nanoseconds that it takes to wake up, of late: a packet waits so long before it is seen, and again when it is due. That is a part of the
 * delay, and not added to it. */
static int64_t waking;

static void note_waking(int64_t late)
{
	waking += ((late < WAKING_MOST ? late : WAKING_MOST) - waking) / 16;
}

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Between 0 and 1, the same sequence each time (a linear congruential generator of Knuth's). */
static double chance(void)
{
	static uint64_t state = 1;
	state = state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (double)(state >> 11) / (double)(1ULL << 53);
}

static void hold(const unsigned char *bytes, size_t length, int64_t delay, int64_t jitter)
{
	struct packet *new = held < MOST ? malloc(sizeof *new + length) : NULL;
	if (!new)
		return;
	int64_t *last = &latest[bytes[SENDER]];
	int64_t due = now() + delay - 2 * waking + (int64_t)((2 * chance() - 1) * (double)jitter);
	*last = new->due = due > *last ? due : *last;
	new->length = length;
	memcpy(new->bytes, bytes, length);
	unsigned at = first + held++;
	for (; at != first && packets[(at - 1) % MOST]->due > new->due; at--)
		packets[at % MOST] = packets[(at - 1) % MOST];
	packets[at % MOST] = new;
}

static void give_back(int tap)
{
	struct packet *packet = packets[first++ % MOST];
	held--;
	if (write(tap, packet->bytes, packet->length) < 0 && errno != EIO && errno != EINVAL)
		perror("delay: a packet is lost"); /* EIO: the device is down */
	free(packet);
}

/* Returns its descriptor, or -1 with errno. Packets come whole, however large, and with what is known of their checksums. */
static int make_tap(const char *name)
{
	struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
	int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (tap < 0)
		return -1;
	snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
	if (ioctl(tap, TUNSETIFF, &request) || ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN)) {
		close(tap);
		return -1;
	}
	return tap;
}

/* It is to wake up when a packet is due, and not when others have had their turn. What is not allowed is done without. */
static void hurry(void)
{
	prctl(PR_SET_TIMERSLACK, 1UL);
	if (sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1}))
		setpriority(PRIO_PROCESS, 0, -20);
}

int main(int argc, char **argv)
{
	static unsigned char bytes[PACKET];
	if (argc != 4 || strlen(argv[1]) >= IFNAMSIZ) {
		fprintf(stderr, "delay: say DEVICE DELAY JITTER.\n");
		return 1;
	}
	int64_t delay = strtoll(argv[2], NULL, 10), jitter = strtoll(argv[3], NULL, 10);
	int tap = make_tap(argv[1]);
	if (tap < 0) {
		fprintf(stderr, "delay: %s: %s\n", argv[1], strerror(errno));
		return 1;
	}
	hurry();
	for (;;) {
		int64_t due = held ? packets[first % MOST]->due : 0, wait = due - now();
		if (held && wait <= 0) {
			give_back(tap);
			continue;
		}
		struct timespec limit = {wait / 1000000000, wait % 1000000000};
		struct pollfd waited = {.fd = tap, .events = POLLIN};
		int found = ppoll(&waited, 1, held ? &limit : NULL, NULL);
		if (!found)
			note_waking(now() - due);
		if (found <= 0)
			continue;
		ssize_t length = read(tap, bytes, sizeof bytes);
		if (length > (ssize_t)SENDER)
			hold(bytes, length, delay, jitter);
		else if (length < 0 && errno != EAGAIN && errno != EINTR) {
			perror("delay: the device has gone");
			return 1;
		}
	}
}
