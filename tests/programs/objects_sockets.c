/* Scenarios about sockets and the queues and semaphores of POSIX and System V: see objects.h. */
#include "objects.h"

#include <arpa/inet.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/un.h>

SCENARIO(socketpair)
{
	int ends[2], type = 0;
	char peeked[16] = "";
	CALL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends));
	WRITE(ends[0], "hello there");
	CALL(recv(ends[1], peeked, 5, MSG_PEEK));
	show("  %s", peeked);
	READ(ends[1], 16);
	CALL(getsockopt(ends[1], SOL_SOCKET, SO_TYPE, &type, &(socklen_t){sizeof type}));
	IS(type == SOCK_STREAM);
	READ(ends[1], 16);
	CALL(shutdown(ends[0], SHUT_WR));
	READ(ends[1], 16);
	WRITE(ends[1], "back");
	READ(ends[0], 16);
}

SCENARIO(sequenced_packets)
{
	int ends[2];
	CALL(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
	CALL(setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, 20000}, sizeof(struct timeval)));
	WRITE(ends[0], "first packet");
	WRITE(ends[0], "second");
	READ(ends[1], 5);
	READ(ends[1], 16);
	READ(ends[1], 16);
	CALL(close(ends[0]));
	READ(ends[1], 16);
}

SCENARIO(unix_listener)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "listener"}, peer = {0};
	socklen_t size = sizeof peer;
	int listener = CALL(socket(AF_UNIX, SOCK_STREAM, 0));
	CALL(bind(listener, (void *)&address, sizeof address));
	CALL(listen(listener, 1));
	int client = CALL(socket(AF_UNIX, SOCK_STREAM, 0));
	CALL(connect(client, (void *)&address, sizeof address));
	WRITE(client, "before it is accepted");
	int server = CALL(accept(listener, NULL, NULL));
	READ(server, 32);
	CALL(getpeername(client, (void *)&peer, &size));
	show("  %s", peer.sun_path);
	CALL(close(server));
	READ(client, 4);
}

SCENARIO(tcp)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, peer;
	socklen_t size = sizeof address;
	int on = 0, mark = 0;
	int listener = CALL(socket(AF_INET, SOCK_STREAM, 0));
	CALL(bind(listener, (void *)&address, sizeof address));
	CALL(listen(listener, 4));
	CALL(getsockname(listener, (void *)&address, &size));
	IS(address.sin_port != 0 && address.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	int client = CALL(socket(AF_INET, SOCK_STREAM, 0));
	CALL(connect(client, (void *)&address, sizeof address));
	int server = CALL(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
	CALL(setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)));
	WRITE(client, "stream of bytes");
	READ(server, 6);
	CALL(getsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, &(socklen_t){sizeof on}));
	READ(server, 16);
	CALL(send(client, "!", 1, MSG_OOB));
	CALL(ioctl(server, SIOCATMARK, &mark));
	CALL(getpeername(client, (void *)&peer, &size));
	IS(on && mark && peer.sin_port == address.sin_port);
	CALL(shutdown(client, SHUT_WR));
	WRITE(server, "answer");
	READ(server, 4);
	READ(client, 16);
}

SCENARIO(tcp_connects_later)
{
	struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
	socklen_t size = sizeof address;
	int listener = CALL(socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0)), error = -1;
	CALL(bind(listener, (void *)&address, sizeof address));
	CALL(listen(listener, 4));
	CALL(accept(listener, NULL, NULL));
	getsockname(listener, (void *)&address, &size);
	int client = CALL(socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0));
	CALL(connect(client, (void *)&address, sizeof address));
	struct pollfd polled = {.fd = client, .events = POLLOUT};
	CALL(poll(&polled, 1, 5000));
	CALL(getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){sizeof error}));
	show("  %d %d", polled.revents, error);
	CALL(close(listener));
	polled.events = POLLIN;
	CALL(poll(&polled, 1, 5000));
	READ(client, 4);
}

SCENARIO(udp)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, from = {0};
	socklen_t size = sizeof address;
	char text[8] = "";
	int receiver = CALL(socket(AF_INET, SOCK_DGRAM, 0));
	CALL(bind(receiver, (void *)&address, sizeof address));
	getsockname(receiver, (void *)&address, &size);
	int sender = CALL(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0));
	CALL(sendto(sender, "datagram", 8, 0, (void *)&address, sizeof address));
	CALL(sendto(sender, "", 0, 0, (void *)&address, sizeof address));
	CALL(recvfrom(receiver, text, 4, MSG_TRUNC, (void *)&from, &size));
	show("  %s", text);
	IS(from.sin_addr.s_addr == htonl(INADDR_LOOPBACK) && from.sin_port);
	CALL(recv(receiver, text, 4, 0));
	CALL(recv(receiver, text, 4, MSG_DONTWAIT));
	CALL(connect(receiver, (void *)&from, size));
	WRITE(receiver, "back");
	READ(sender, 8);
}

SCENARIO(many_datagrams)
{
	int ends[2];
	char first[8] = "", second[8] = "";
	struct iovec out[3] = {{"one", 3}, {"and ", 4}, {"two", 3}}, in[2] = {{first, 7}, {second, 7}};
	struct mmsghdr sent[2] = {{.msg_hdr = {.msg_iov = out, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = out + 1, .msg_iovlen = 2}}};
	struct mmsghdr came[2] = {{.msg_hdr = {.msg_iov = in, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = in + 1, .msg_iovlen = 1}}};
	CALL(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
	CALL(sendmmsg(ends[0], sent, 2, 0));
	CALL(recvmmsg(ends[1], came, 2, 0, NULL));
	show("  %u %s, %u %s", came[0].msg_len, first, came[1].msg_len, second);
	CALL(sendmmsg(ends[1], sent + 1, 1, 0));
	CALL(recvmmsg(ends[0], came, 2, MSG_DONTWAIT, NULL));
	show("  %u %s", came[0].msg_len, first);
}

SCENARIO(descriptors_passed)
{
	int ends[2], pipe_ends[2], got[2] = {-1, -1};
	char text[4] = "", space[CMSG_SPACE(sizeof got)] = "";
	struct iovec piece = {"fds", 3};
	struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
	CALL(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
	CALL(pipe(pipe_ends));
	struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
	*rights = (struct cmsghdr){CMSG_LEN(sizeof got), SOL_SOCKET, SCM_RIGHTS};
	memcpy(CMSG_DATA(rights), pipe_ends, sizeof got);
	CALL(sendmsg(ends[0], &message, 0));
	CALL(close(pipe_ends[0]));
	CALL(close(pipe_ends[1]));
	memset(space, 0, sizeof space);
	piece = (struct iovec){text, 3};
	CALL(recvmsg(ends[1], &message, MSG_CMSG_CLOEXEC));
	memcpy(got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
	show("  %s: %d %d, %zu bytes of control", text, got[0], got[1], (size_t)message.msg_controllen);
	WRITE(got[1], "through what was passed");
	READ(got[0], 32);
	CALL(fcntl(got[0], F_GETFD));
}

SCENARIO(credentials)
{
	int ends[2];
	struct ucred peer = {0}, *received;
	char text[8] = "", space[CMSG_SPACE(sizeof peer)] = "";
	struct iovec piece = {text, 7};
	struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
	CALL(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	CALL(setsockopt(ends[1], SOL_SOCKET, SO_PASSCRED, &(int){1}, sizeof(int)));
	WRITE(ends[0], "who");
	CALL(recvmsg(ends[1], &message, 0));
	received = (void *)CMSG_DATA(CMSG_FIRSTHDR(&message));
	show("  %s", text);
	IS(received->pid == getpid() && received->uid == getuid() && received->gid == getgid());
	CALL(getsockopt(ends[0], SOL_SOCKET, SO_PEERCRED, &peer, &(socklen_t){sizeof peer}));
	IS(peer.pid == getpid() && peer.uid == getuid());
}

SCENARIO(posix_message_queue)
{
	char name[32], text[32] = "";
	unsigned priority = 0;
	struct mq_attr wanted = {.mq_maxmsg = 3, .mq_msgsize = 16}, is = {0};
	snprintf(name, sizeof name, "/objects-%d", (int)getpid());
	mqd_t queue = CALL(mq_open(name, O_RDWR | O_CREAT | O_EXCL | O_NONBLOCK, 0600, &wanted));
	CALL(mq_unlink(name));
	CALL(mq_send(queue, "low", 3, 1));
	CALL(mq_send(queue, "high", 4, 7));
	CALL(mq_send(queue, "high too", 8, 7));
	CALL(mq_send(queue, "full", 4, 7));
	CALL(mq_getattr(queue, &is));
	show("  %ld of %ld", is.mq_curmsgs, is.mq_maxmsg);
	for (int i = 0; i < 4; i++) {
		memset(text, 0, sizeof text);
		CALL(mq_receive(queue, text, sizeof text, &priority));
		show("  %s, priority %u", text, priority);
	}
}

SCENARIO(system_v_semaphore)
{
	int set = (int)DONE(semget(IPC_PRIVATE, 2, 0600));
	CALL(semctl(set, 1, SETVAL, 3));
	CALL(semop(set, (&(struct sembuf){1, -1, SEM_UNDO}), 1));
	pid_t child = CHILD(semop(set, (struct sembuf[]){{1, -1, SEM_UNDO}, {0, 2, 0}}, 2));
	reaped(child);
	CALL(semctl(set, 1, GETVAL));
	CALL(semctl(set, 0, GETVAL));
	IS(DONE(semctl(set, 1, GETPID)) != 0);
	CALL(semop(set, (&(struct sembuf){1, -3, IPC_NOWAIT}), 1));
	CALL(semctl(set, 0, IPC_RMID));
	CALL(semop(set, (&(struct sembuf){1, 1, 0}), 1));
}

SCENARIO(system_v_messages)
{
	struct {
		long type;
		char text[16];
	} message = {0};
	int queue = (int)DONE(msgget(IPC_PRIVATE, 0600));
	for (int i = 3; i; i--) {
		message.type = i;
		snprintf(message.text, sizeof message.text, "message %d", i);
		CALL(msgsnd(queue, &message, 10, 0));
	}
	long which[] = {2, -2, 2, 0};
	for (int i = 0; i < 4; i++) {
		CALL(msgrcv(queue, &message, i == 3 ? 4 : 16, which[i], IPC_NOWAIT | (i == 3 ? MSG_NOERROR : 0)));
		show("  %ld %.10s", message.type, message.text);
	}
	CALL(msgctl(queue, IPC_RMID, NULL));
	CALL(msgrcv(queue, &message, 16, 0, IPC_NOWAIT));
}
