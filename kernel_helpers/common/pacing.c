/* Which congestion control a connection has: what pacing.h says. */
#define _GNU_SOURCE
#include "common/pacing.h"
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NEAR_US 1000 /* microseconds there and back */
#define NAME 16

/* The machine's own choice, in `name`; whether that one paces. */
static bool paces(int family, char name[NAME])
{
	int fresh = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t size = NAME - 1;

	memset(name, 0, NAME);
	if (fresh < 0)
		return false;
	int result = getsockopt(fresh, IPPROTO_TCP, TCP_CONGESTION, name, &size);
	close(fresh);
	return !result && !strncmp(name, "bbr", 3);
}

static int family_of(int socket)
{
	int family = AF_INET;
	socklen_t size = sizeof family;

	getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &size);
	return family;
}

void farhome_unpaced(int socket)
{
	static const char *const others[] = {"cubic", "reno"}; /* the second is allowed to everybody, everywhere */
	char name[NAME];

	if (!paces(family_of(socket), name))
		return;
	for (unsigned i = 0; i < sizeof others / sizeof *others; i++)
		if (!setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, others[i], strlen(others[i])))
			return;
}

void farhome_settle_pace(int socket)
{
	struct tcp_info info = {0};
	socklen_t size = sizeof info;
	char name[NAME];

	if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) || info.tcpi_min_rtt <= NEAR_US)
		return;
	if (paces(family_of(socket), name))
		setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, strlen(name));
}
