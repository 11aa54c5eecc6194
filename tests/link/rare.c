/* The program under test for calls that are seldom made: `rare FAMILY`, natively or split as in guest.c. Good and bad
 * arguments; results, errors and buffers go to standard output. Meant for namespaces of its own (mount, UTS, IPC). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/kcmp.h>
#include <linux/keyctl.h>
#include <linux/landlock.h>
#include <linux/mount.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/fanotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/quota.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <sys/xattr.h>
#include <time.h>
#include "guest.h"

enum {
	STATMOUNT = 457,
	LISTMOUNT,
	LSM_GET_SELF_ATTR,
	LSM_SET_SELF_ATTR,
	LSM_LIST_MODULES,
	SETXATTRAT = 463,
	GETXATTRAT,
	OPEN_TREE_ATTR = 467
};

/* The last `size` bytes of readable memory. */
static void *edge(size_t size)
{
	char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(pages + 4096, 4096);
	return pages + 4096 - size;
}

/* The process as home knows it: a guest in these tests has another pid. */
static int home_pid(void)
{
	char text[20] = "";
	readlink("/proc/self", text, sizeof text - 1);
	return atoi(text);
}

struct attribute {
	uint64_t value;
	uint32_t size, flags;
};

static void attributes(void)
{
	char buffer[300] = "";
	struct attribute a = {(uint64_t)"some value", 10, 0};
	int fd = open("scratch", O_RDWR | O_CREAT, 0600), here = open(".", O_RDONLY);
	write(fd, "content", 7);
	TRY(syscall(SETXATTRAT, AT_FDCWD, "scratch", 0, "user.one", &a, sizeof a));
	TRY(syscall(SETXATTRAT, fd, "", AT_EMPTY_PATH, "user.two", &a, sizeof a));
	a.flags = XATTR_CREATE;
	TRY(syscall(SETXATTRAT, here, "scratch", 0, "user.one", &a, sizeof a));
	a.flags = 0;
	TRY(syscall(SETXATTRAT, AT_FDCWD, "missing", 0, "user.one", &a, sizeof a));
	TRY(syscall(SETXATTRAT, AT_FDCWD, "scratch", 0, "user.one", &a, 8));
	TRY(syscall(SETXATTRAT, AT_FDCWD, "scratch", 0, "user.one", NULL, sizeof a));
	TRY(syscall(SETXATTRAT, AT_FDCWD, "scratch", 0, "user.one", wild, sizeof a));
	TRY(syscall(SETXATTRAT, AT_FDCWD, "scratch", 0, "user.one", wild, 100000));
	TRY(syscall(SETXATTRAT, AT_FDCWD, "scratch", 0, wild, &a, sizeof a));
	a.value = (uint64_t)wild;
	TRY(syscall(SETXATTRAT, AT_FDCWD, "scratch", 0, "user.one", &a, sizeof a));
	a.value = (uint64_t)edge(5);
	TRY(syscall(SETXATTRAT, AT_FDCWD, "scratch", 0, "user.one", &a, sizeof a));
	a.size = 70000;
	TRY(syscall(SETXATTRAT, AT_FDCWD, "scratch", 0, "user.one", &a, sizeof a));
	memset(buffer, 'z', 100);
	a = (struct attribute){(uint64_t)buffer, 100, 0};
	TRY(syscall(GETXATTRAT, AT_FDCWD, "scratch", 0, "user.one", &a, sizeof a));
	say("%.12s\n", buffer);
	a.size = 4;
	TRY(syscall(GETXATTRAT, AT_FDCWD, "scratch", 0, "user.one", &a, sizeof a));
	a.size = 0;
	TRY(syscall(GETXATTRAT, fd, "", AT_EMPTY_PATH, "user.two", &a, sizeof a));
	a = (struct attribute){(uint64_t)edge(10), 1 << 20, 0};
	TRY(syscall(GETXATTRAT, AT_FDCWD, "scratch", 0, "user.one", &a, sizeof a));
	say("%.10s\n", (char *)a.value);
	a = (struct attribute){0, 10, 0};
	TRY(syscall(GETXATTRAT, AT_FDCWD, "scratch", 0, "user.one", &a, sizeof a));
	a.value = (uint64_t)wild;
	TRY(syscall(GETXATTRAT, AT_FDCWD, "scratch", 0, "user.one", &a, sizeof a));
	TRY(syscall(GETXATTRAT, AT_FDCWD, "scratch", 0, "user.none", &a, sizeof a));

	struct {
		struct file_handle head;
		char room[128];
	} h = {{128}};
	int mount = 0;
	uint64_t unique = 0;
	TRY(name_to_handle_at(AT_FDCWD, "scratch", &h.head, &mount, 0));
	say("%u %d on %d\n", h.head.handle_bytes, h.head.handle_type, mount > 0);
	int other = open_by_handle_at(here, &h.head, O_RDONLY);
	memset(buffer, 0, 10);
	TRY(read(other, buffer, 10));
	say("%s\n", buffer);
	TRY(open_by_handle_at(77, &h.head, O_RDONLY));
	TRY(open_by_handle_at(here, wild, O_RDONLY));
	h.head.handle_type = 12345;
	TRY(open_by_handle_at(here, &h.head, O_RDONLY));
	h.head.handle_bytes = 0;
	mount = 0;
	TRY(name_to_handle_at(here, "scratch", &h.head, &mount, 0));
	say("%u on %d\n", h.head.handle_bytes, mount > 0);
	TRY(syscall(SYS_name_to_handle_at, fd, "", &h, &unique, AT_EMPTY_PATH | 1));
	say("%u on %d\n", h.head.handle_bytes, unique >> 31 != 0);    /* each mount namespace has numbers of its own */
	h.head.handle_bytes = 129;
	TRY(name_to_handle_at(here, "scratch", &h.head, &mount, 0));
	TRY(name_to_handle_at(here, "missing", wild, &mount, 0));
	TRY(name_to_handle_at(here, "scratch", wild, &mount, 0));
	TRY(name_to_handle_at(here, "scratch", &h.head, &mount, 0x40000000));

	struct fanotify_event_metadata events[4];
	int watch = fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK | FAN_CLOEXEC, O_RDONLY);
	say("watch %d\n", watch);
	TRY(fanotify_mark(watch, FAN_MARK_ADD, FAN_CLOSE_WRITE, AT_FDCWD, "scratch"));
	TRY(fanotify_mark(watch, FAN_MARK_ADD, FAN_OPEN, here, "missing"));
	TRY(fanotify_mark(watch, FAN_MARK_ADD, 0, here, "scratch"));
	TRY(fanotify_mark(watch, FAN_MARK_ADD, FAN_OPEN, here, wild));
	TRY(fanotify_mark(here, FAN_MARK_ADD, FAN_OPEN, here, "scratch"));
	TRY(read(watch, events, sizeof events));
	close(open("scratch", O_WRONLY));
	TRY(read(watch, events, sizeof events) / sizeof *events);
	say("%llx by us %d, fd %d\n", events->mask, events->pid == home_pid(), events->fd);
	TRY(fanotify_mark(watch, FAN_MARK_FLUSH, 0, AT_FDCWD, NULL));
	TRY(fanotify_init(0x40000000, 0));

	struct stat st;
	struct {
		int blocks;
		unsigned long inodes;
		char name[6], pack[6];
	} us;
	fstat(fd, &st);
	memset(&us, 0x55, sizeof us);
	TRY(syscall(SYS_ustat, st.st_dev, &us));
	say("%d%d\n", us.name[0], us.pack[5]);
	TRY(syscall(SYS_ustat, makedev(250, 250), &us));
	TRY(syscall(SYS_ustat, st.st_dev, wild));
	TRY(syscall(SYS_sysfs, 1, "proc"));
	TRY(syscall(SYS_sysfs, 1, "nothing of the kind"));
	TRY(syscall(SYS_sysfs, 1, wild));
	TRY(syscall(SYS_sysfs, 3));
	TRY(syscall(SYS_sysfs, 9));
	struct dqblk q;
	int format = 0;
	TRY(quotactl(QCMD(Q_SYNC, USRQUOTA), NULL, 0, NULL));
	TRY(quotactl(QCMD(Q_GETQUOTA, USRQUOTA), "/dev/null", 0, (void *)&q));
	TRY(quotactl(QCMD(Q_GETQUOTA, USRQUOTA), "missing", 0, (void *)&q));
	TRY(quotactl(QCMD(Q_GETFMT, GRPQUOTA), wild, 0, (void *)&format));
	TRY(quotactl(QCMD(Q_QUOTAON, USRQUOTA), "/dev/null", 2, "aquota.user"));
	TRY(syscall(SYS_quotactl_fd, fd, QCMD(Q_GETQUOTA, USRQUOTA), 0, &q));
	TRY(syscall(SYS_quotactl_fd, fd, QCMD(Q_GETFMT, USRQUOTA), 0, wild));
	TRY(syscall(SYS_quotactl_fd, 77, QCMD(Q_GETFMT, USRQUOTA), 0, &format));
}

static volatile int notified;

static void on_signal(int number)
{
	notified = number;
}

static void objects(void)
{
	union {
		int value;
		void *pointer;
	} u;
	struct semid_ds set = {0};
	struct seminfo limits;
	int id = semget(IPC_PRIVATE, 3, 0640);
	TRY(semctl(id, 1, SETVAL, 7));
	TRY(semctl(id, 1, GETVAL));
	u.pointer = &set;
	TRY(semctl(id, 0, IPC_STAT, u));
	say("%lu %o\n", set.sem_nsems, set.sem_perm.mode);
	set.sem_perm.mode = 0600;
	TRY(semctl(id, 0, IPC_SET, u));
	memset(&set, 0, sizeof set);
	TRY(semctl(0, 0, SEM_STAT, u) == id);
	say("%lu %o\n", set.sem_nsems, set.sem_perm.mode);
	TRY(semctl(0, 0, 20, u) == id);
	u.pointer = &limits;
	TRY(semctl(0, 0, IPC_INFO, u));
	say("%d %d %d\n", limits.semmni, limits.semmsl, limits.semvmx);
	TRY(semctl(0, 0, SEM_INFO, u));
	say("%d sets, %d semaphores\n", limits.semusz, limits.semaem);
	u.pointer = wild;
	TRY(semctl(id, 0, IPC_STAT, u));
	TRY(semctl(id, 0, IPC_SET, u));
	TRY(semctl(id + 1, 0, IPC_STAT, u));
	TRY(semctl(id, 0, IPC_RMID));

	struct msqid_ds queue = {0};
	struct msginfo most;
	id = msgget(IPC_PRIVATE, 0600);
	struct {
		long type;
		char text[5];
	} m = {1, "abcd"};
	TRY(msgsnd(id, &m, 5, 0));
	TRY(msgctl(id, IPC_STAT, &queue));
	say("%lu messages, %lu bytes, by us %d\n", queue.msg_qnum, queue.__msg_cbytes, queue.msg_lspid == home_pid());
	queue.msg_qbytes = 100;
	TRY(msgctl(id, IPC_SET, &queue));
	memset(&queue, 0, sizeof queue);
	TRY(msgctl(0, MSG_STAT, &queue) == id);
	say("%lu\n", queue.msg_qbytes);
	TRY(msgctl(0, 13, &queue) == id);
	TRY(msgctl(0, IPC_INFO, (void *)&most));
	say("%d %d\n", most.msgmax, most.msgmni);
	TRY(msgctl(0, MSG_INFO, (void *)&most));
	say("%d %d %d\n", most.msgpool, most.msgmap, most.msgtql);
	TRY(msgctl(id, IPC_STAT, wild));
	TRY(msgctl(id, IPC_SET, wild));
	TRY(msgctl(id + 1, IPC_STAT, &queue));
	TRY(msgctl(id, IPC_RMID, NULL));

	struct shmid_ds memory = {0};
	struct shminfo all;
	struct shm_info used;
	id = shmget(IPC_PRIVATE, 10000, 0600);
	TRY(shmctl(id, IPC_STAT, &memory));
	say("%lu bytes, %lu attached, by us %d\n", memory.shm_segsz, memory.shm_nattch, memory.shm_cpid == home_pid());
	memory.shm_perm.mode = 0644;
	TRY(shmctl(id, IPC_SET, &memory));
	memset(&memory, 0, sizeof memory);
	TRY(shmctl(0, SHM_STAT, &memory) == id);
	say("%o\n", memory.shm_perm.mode);
	TRY(shmctl(0, 15, &memory) == id);
	TRY(shmctl(id, SHM_LOCK, NULL));
	TRY(shmctl(id, SHM_UNLOCK, NULL));
	TRY(shmctl(0, IPC_INFO, (void *)&all));
	say("%lu %lu\n", all.shmmin, all.shmmni);
	TRY(shmctl(0, SHM_INFO, (void *)&used));
	say("%d %lu\n", used.used_ids, used.shm_tot);
	TRY(shmctl(id, IPC_STAT, wild));
	TRY(shmctl(id + 1, IPC_STAT, &memory));
	TRY(shmget(IPC_PRIVATE, 0, 0600));
	TRY(shmget(0x1234567, 10, 0600));
	TRY(shmdt(NULL));
	TRY(shmdt(edge(4096)));
	TRY(shmctl(id, IPC_RMID, NULL));

	int q = syscall(SYS_mq_open, "farhome", O_RDWR | O_CREAT | O_NONBLOCK, 0600, NULL), n = socket(AF_NETLINK, SOCK_RAW, 0);
	char text[8192] = "", cookie[32] = "a cookie of thirty-two bytes";
	struct sigaction action = {.sa_handler = on_signal};
	sigaction(SIGUSR1, &action, NULL);
	struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
	TRY(syscall(SYS_mq_notify, q, &e));
	TRY(syscall(SYS_mq_notify, q, &e));
	syscall(SYS_mq_timedsend, q, "one", 3, 0, NULL);
	for (struct timespec t = {0, 5000000}; !notified; nanosleep(&t, NULL))
		;
	say("signal %d\n", notified);
	TRY(syscall(SYS_mq_timedreceive, q, text, sizeof text, NULL, NULL));
	e = (struct sigevent){.sigev_notify = SIGEV_THREAD, .sigev_signo = n, .sigev_value.sival_ptr = cookie};
	TRY(syscall(SYS_mq_notify, q, &e));
	syscall(SYS_mq_timedsend, q, "two", 3, 0, NULL);
	TRY(recv(n, text, sizeof text, 0));
	say("%.28s %d\n", text, text[31]);
	TRY(syscall(SYS_mq_timedreceive, q, text, sizeof text, NULL, NULL));
	e.sigev_value.sival_ptr = wild;
	TRY(syscall(SYS_mq_notify, q, &e));
	e.sigev_value.sival_ptr = NULL;
	TRY(syscall(SYS_mq_notify, q, &e));
	e.sigev_value.sival_ptr = cookie;
	e.sigev_signo = 77;
	TRY(syscall(SYS_mq_notify, q, &e));
	e.sigev_notify = SIGEV_THREAD_ID;
	TRY(syscall(SYS_mq_notify, q, &e));
	e.sigev_notify = SIGEV_NONE;
	TRY(syscall(SYS_mq_notify, q, &e));
	TRY(syscall(SYS_mq_notify, q, NULL));
	TRY(syscall(SYS_mq_notify, q, wild));
	TRY(syscall(SYS_mq_notify, 77, &e));
	TRY(syscall(SYS_mq_unlink, "farhome"));
}

static void filters(void)
{
	int u[2], six = socket(AF_INET6, SOCK_STREAM, 0), udp = socket(AF_INET, SOCK_DGRAM, 0), value = 1;
	char buffer[100] = "";
	struct sock_filter code[3] = {BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0), BPF_STMT(BPF_ALU | BPF_SUB | BPF_K, 2),
	                              BPF_STMT(BPF_RET | BPF_A, 0)},
			   back[8];
	struct sock_fprog program = {3, code};
	socklen_t length = 3;
	socketpair(AF_UNIX, SOCK_DGRAM, 0, u);
	TRY(setsockopt(u[0], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
	send(u[1], "hello", 5, 0);
	TRY(recv(u[0], buffer, sizeof buffer, 0));
	memset(back, 0x55, sizeof back);
	TRY(getsockopt(u[0], SOL_SOCKET, SO_GET_FILTER, back, &length));
	say("%d %d %x\n", (int)length, memcmp(code, back, sizeof code), back[3].k);
	length = 1;
	TRY(getsockopt(u[0], SOL_SOCKET, SO_GET_FILTER, back, &length));
	length = 0;
	TRY(getsockopt(u[0], SOL_SOCKET, SO_GET_FILTER, NULL, &length));
	say("%d\n", (int)length);
	TRY(setsockopt(udp, SOL_SOCKET, SO_REUSEPORT, &value, sizeof value));
	TRY(setsockopt(udp, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program));
	TRY(setsockopt(u[0], SOL_SOCKET, SO_ATTACH_FILTER, &program, 8));
	TRY(setsockopt(u[0], SOL_SOCKET, SO_ATTACH_FILTER, wild, sizeof program));
	program.len = 0;
	TRY(setsockopt(u[0], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
	program.len = 5000;
	TRY(setsockopt(u[0], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
	program = (struct sock_fprog){3, wild};
	TRY(setsockopt(u[0], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
	TRY(setsockopt(u[0], SOL_SOCKET, SO_DETACH_FILTER, &value, sizeof value));
	TRY(setsockopt(six, IPPROTO_IPV6, IPV6_V6ONLY, &value, sizeof value));
	value = 0, length = sizeof value;
	TRY(getsockopt(six, IPPROTO_IPV6, IPV6_V6ONLY, &value, &length));
	say("%d %d\n", value, (int)length);
	memset(buffer, 0, sizeof buffer);
	TRY(getsockopt(six, SOL_SOCKET, SO_TYPE, edge(4), &length));
}

static void mounts(void)
{
	struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY};
	struct {
		uint32_t size, fd;
		uint64_t id, parameter, ns;
	} request = {32};
	struct statx sx;
	uint64_t ids[200];
	char buffer[2000];
	mkdir("there", 0755);
	mkdir("bound", 0755);
	int fs = syscall(SYS_fsopen, "tmpfs", 0), count;
	say("fs %d\n", fs);
	TRY(syscall(SYS_fsopen, "nothing of the kind", 0));
	TRY(syscall(SYS_fsopen, wild, 0));
	TRY(syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "size", "1m", 0));
	TRY(syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "source", "ours", 0));
	TRY(syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "mode", "not a mode", 0));
	TRY(syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "mode", wild, 0));
	TRY(syscall(SYS_fsconfig, fs, FSCONFIG_SET_FLAG, "inode64", NULL, 0));
	TRY(syscall(SYS_fsconfig, fs, FSCONFIG_SET_FLAG, "inode64", "x", 0));
	TRY(syscall(SYS_fsconfig, fs, FSCONFIG_SET_BINARY, "size", "bytes", 5));
	TRY(syscall(SYS_fsconfig, fs, FSCONFIG_SET_FD, "size", NULL, 1));
	TRY(syscall(SYS_fsconfig, fs, FSCONFIG_SET_PATH, "size", "there", AT_FDCWD));
	TRY(syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0));
	int mount_fd = syscall(SYS_fsmount, fs, 1, MOUNT_ATTR_NODEV);
	say("mount %d\n", mount_fd);
	TRY(syscall(SYS_fsmount, 77, 1, 0));
	TRY(syscall(SYS_move_mount, mount_fd, "", AT_FDCWD, "missing", 4));
	TRY(syscall(SYS_move_mount, mount_fd, "", AT_FDCWD, "there", 4));
	TRY(close(open("there/file", O_CREAT | O_WRONLY, 0600)));
	TRY(syscall(SYS_mount_setattr, AT_FDCWD, "there", 0, &attr, sizeof attr));
	TRY(open("there/other", O_CREAT | O_WRONLY, 0600));
	TRY(syscall(SYS_mount_setattr, AT_FDCWD, "there", 0, wild, sizeof attr));
	TRY(syscall(SYS_mount_setattr, AT_FDCWD, "there", 0, &attr, 3));
	int tree = syscall(SYS_open_tree, AT_FDCWD, "there", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
	say("tree %d\n", tree);
	TRY(syscall(SYS_open_tree, AT_FDCWD, "missing", OPEN_TREE_CLONE));
	attr = (struct mount_attr){.attr_clr = MOUNT_ATTR_RDONLY};
	TRY(syscall(OPEN_TREE_ATTR, AT_FDCWD, "there", OPEN_TREE_CLONE, &attr, sizeof attr) > 0);
	TRY(syscall(SYS_fspick, AT_FDCWD, "there", 0) > 0);
	TRY(syscall(SYS_fspick, AT_FDCWD, ".", 0));
	statx(AT_FDCWD, "there", 0, 0x4000, &sx);
	memcpy(&request.id, (char *)&sx + 0x90, 8);
	request.parameter = 0x20;       /* STATMOUNT_FS_TYPE */
	memset(buffer, 'z', sizeof buffer);
	TRY(syscall(STATMOUNT, &request, buffer, sizeof buffer, 0));
	say("size %u mask %lu %lx\n", *(uint32_t *)buffer, *(uint64_t *)(buffer + 8), sum(buffer, sizeof buffer));
	TRY(syscall(STATMOUNT, &request, buffer, 520, 0));
	TRY(syscall(STATMOUNT, &request, wild, 2000, 0));
	TRY(syscall(STATMOUNT, wild, buffer, sizeof buffer, 0));
	request.size = 8;
	TRY(syscall(STATMOUNT, &request, buffer, sizeof buffer, 0));
	request = (typeof(request)){24, 0, -1ul, 0, 0};
	count = syscall(LISTMOUNT, &request, ids, 200, 0);
	say("%d listed, another one after it: %d\n", count > 1, (int)syscall(LISTMOUNT, &request, ids + 100, 1, 0));
	say("%d\n", ids[0] == ids[100]);
	TRY(syscall(LISTMOUNT, &request, wild, 2, 0));
	TRY(syscall(LISTMOUNT, NULL, ids, 2, 0));
	TRY(mount("there", "bound", NULL, MS_BIND, NULL));
	TRY(access("bound/file", F_OK));
	TRY(mount("none", "missing", "tmpfs", 0, NULL));
	TRY(mount(NULL, "bound", wild, 0, NULL));
	TRY(umount2("bound", UMOUNT_NOFOLLOW));
	TRY(umount2("bound", 0));
	TRY(umount2("there", MNT_DETACH));
	TRY(umount2(wild, 0));
}

static void keys(void)
{
	char buffer[100] = "";
	long ring = syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 1);
	long key = syscall(SYS_add_key, "user", "farhome:one", "a payload", 9, KEY_SPEC_PROCESS_KEYRING);
	long other = syscall(SYS_add_key, "keyring", "farhome:ring", NULL, 0, KEY_SPEC_PROCESS_KEYRING);
	say("%d %d %d\n", ring > 0, key > 0, other > 0);
	TRY(syscall(SYS_add_key, "user", "farhome:none", wild, 9, KEY_SPEC_PROCESS_KEYRING));
	TRY(syscall(SYS_add_key, "user", "farhome:none", NULL, 9, KEY_SPEC_PROCESS_KEYRING));
	TRY(syscall(SYS_add_key, "nothing of the kind", "farhome:none", "x", 1, KEY_SPEC_PROCESS_KEYRING));
	TRY(syscall(SYS_add_key, wild, "farhome:none", "x", 1, KEY_SPEC_PROCESS_KEYRING));
	TRY(syscall(SYS_add_key, "user", "farhome:none", "x", 1, 12345678));
	TRY(syscall(SYS_keyctl, KEYCTL_READ, key, buffer, sizeof buffer));
	say("%s\n", buffer);
	memset(buffer, 'z', 20);
	TRY(syscall(SYS_keyctl, KEYCTL_READ, key, buffer, 4));
	say("%.10s\n", buffer);
	TRY(syscall(SYS_keyctl, KEYCTL_READ, key, NULL, 0));
	TRY(syscall(SYS_keyctl, KEYCTL_READ, key, wild, 20));
	TRY(syscall(SYS_keyctl, KEYCTL_UPDATE, key, "another", 7));
	TRY(syscall(SYS_keyctl, KEYCTL_UPDATE, key, wild, 7));
	memset(buffer, 0, sizeof buffer);
	TRY(syscall(SYS_keyctl, KEYCTL_READ, key, buffer, sizeof buffer));
	say("%s\n", buffer);
	TRY(syscall(SYS_keyctl, KEYCTL_DESCRIBE, key, buffer, sizeof buffer));
	say("%s\n", buffer);
	memset(buffer, 'z', 20);
	TRY(syscall(SYS_keyctl, KEYCTL_DESCRIBE, key, buffer, 10));
	say("%.10s\n", buffer);
	TRY(syscall(SYS_keyctl, KEYCTL_SETPERM, key, 0x3f3f0000));
	TRY(syscall(SYS_keyctl, KEYCTL_CHOWN, key, -1, -1));
	TRY(syscall(SYS_keyctl, KEYCTL_LINK, key, other));
	TRY(syscall(SYS_keyctl, KEYCTL_SEARCH, other, "user", "farhome:one", 0) == key);
	TRY(syscall(SYS_keyctl, KEYCTL_SEARCH, other, "user", "farhome:two", 0));
	TRY(syscall(SYS_keyctl, KEYCTL_SEARCH, other, "user", wild, 0));
	TRY(syscall(SYS_request_key, "user", "farhome:one", NULL, 0) == key);
	TRY(syscall(SYS_request_key, "user", "farhome:none", NULL, 0));
	TRY(syscall(SYS_request_key, "user", wild, NULL, 0));
	TRY(syscall(SYS_keyctl, KEYCTL_UNLINK, key, other));
	TRY(syscall(SYS_keyctl, KEYCTL_MOVE, key, KEY_SPEC_PROCESS_KEYRING, other, 0));
	TRY(syscall(SYS_keyctl, KEYCTL_RESTRICT_KEYRING, other, NULL, NULL));
	TRY(syscall(SYS_keyctl, KEYCTL_SET_TIMEOUT, key, 1000));
	TRY(syscall(SYS_keyctl, KEYCTL_GET_SECURITY, key, buffer, sizeof buffer));
	memset(buffer, 'z', 20);
	TRY(syscall(SYS_keyctl, KEYCTL_CAPABILITIES, buffer, 20));
	say("%lx\n", sum(buffer, 20));
	TRY(syscall(SYS_keyctl, KEYCTL_SET_REQKEY_KEYRING, KEY_REQKEY_DEFL_NO_CHANGE));
	struct {
		void *base;
		size_t length;
	} v[2] = {{"ab", 2}, {"cd", 2}};
	TRY(syscall(SYS_keyctl, KEYCTL_INSTANTIATE_IOV, key, v, 2, 0));
	TRY(syscall(SYS_keyctl, KEYCTL_INSTANTIATE, key, "abcd", 4, 0));
	TRY(syscall(SYS_keyctl, KEYCTL_NEGATE, key, 10, 0));
	TRY(syscall(SYS_keyctl, KEYCTL_ASSUME_AUTHORITY, 0));
	TRY(syscall(SYS_keyctl, KEYCTL_CLEAR, other));
	TRY(syscall(SYS_keyctl, KEYCTL_REVOKE, other));
	TRY(syscall(SYS_keyctl, KEYCTL_LINK, key, other));
	TRY(syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, "farhome:session") > 0);
	TRY(syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, wild));
	TRY(syscall(SYS_keyctl, KEYCTL_INVALIDATE, 12345678));
}

static void machine(void)
{
	struct utsname u;
	struct timex x = {0};
	struct timespec t = {1, 0};
	char buffer[200] = "";
	TRY(sethostname("elsewhere", 9));
	TRY(sethostname("elsewhere", 65));
	TRY(sethostname(wild, 5));
	TRY(setdomainname("some.domain", 11));
	uname(&u);
	say("%s %s\n", u.nodename, u.domainname);
	TRY(adjtimex(&x) >= 0);
	say("%ld %ld %d\n", x.tick, x.freq, x.time.tv_sec > 1000000000);
	TRY(adjtimex(wild));
	TRY(clock_adjtime(CLOCK_REALTIME, &x) >= 0);
	TRY(clock_adjtime(CLOCK_MONOTONIC, &x));
	TRY(clock_adjtime(~77 << 3 | 3, &x));
	TRY(clock_settime(~77 << 3 | 3, &t));
	TRY(syscall(SYS_swapon, "missing", 0));
	TRY(syscall(SYS_swapoff, "missing"));
	TRY(syscall(SYS_swapon, wild, 0));
	TRY(syscall(SYS_reboot, 1, 2, 3, NULL));
	TRY(syscall(SYS_reboot, 1, 2, 0xa1b2c3d4, "x"));
	TRY(syscall(SYS_init_module, "not a module", 12, ""));
	TRY(syscall(SYS_finit_module, 77, "", 0));
	TRY(syscall(SYS_delete_module, "farhome-none", O_NONBLOCK));
	TRY(syscall(SYS_kexec_file_load, 77, 77, 4, "abc", 0));
	TRY(syscall(SYS_acct, "missing/file"));
	TRY(syscall(SYS_acct, wild));
	TRY(syscall(SYS_syslog, 3, buffer, sizeof buffer - 1) >= 0); /* 0: the newest line, of any program, is longer than the buffer */
	TRY(syscall(SYS_syslog, 3, wild, 16384)); /* no line is longer: with 100 the newest one decides */
	TRY(syscall(SYS_syslog, 3, NULL, 100));
	TRY(syscall(SYS_syslog, 10, NULL, 0) > 0);
	TRY(syscall(SYS_syslog, 99, NULL, 0));
	TRY(syscall(SYS_ioperm, 0, 10, 0));
	TRY(syscall(SYS_iopl, 0));
	TRY(syscall(SYS_memfd_secret, 0) >= -1);
	TRY(syscall(SYS_memfd_secret, 0x1000));
	TRY(syscall(SYS_process_mrelease, 77, 0));
	TRY(syscall(SYS_process_mrelease, 77, 1));
	unsigned long nodes[2] = {1, 0x55}, context[40] = {0};
	int mode = 7;
	TRY(syscall(SYS_set_mempolicy, 2 /* MPOL_BIND */, nodes, 64));
	nodes[0] = 0x77;
	TRY(syscall(SYS_get_mempolicy, &mode, nodes, 65, NULL, 0));
	say("%d %lx %lx\n", mode, nodes[0], nodes[1]);
	TRY(syscall(SYS_get_mempolicy, &mode, edge(8), 65, NULL, 4));
	TRY(syscall(SYS_get_mempolicy, NULL, nodes, 0, NULL, 0));
	TRY(syscall(SYS_get_mempolicy, wild, NULL, 0, NULL, 0));
	TRY(syscall(SYS_get_mempolicy, &mode, NULL, 0, nodes, 0));
	TRY(syscall(SYS_set_mempolicy, 2, wild, 64));
	TRY(syscall(SYS_set_mempolicy, 2, edge(1) + 1 - 8, 65));
	TRY(syscall(SYS_set_mempolicy, 99, NULL, 0));
	TRY(syscall(SYS_set_mempolicy, 0, NULL, 0));
	TRY(syscall(SYS_io_getevents, context, 1, 1, nodes, NULL));
	TRY(syscall(SYS_io_submit, wild, 1, NULL));
	TRY(syscall(SYS_io_destroy, 0));
	TRY(syscall(SYS_io_cancel, 0, nodes, nodes));
	TRY(syscall(SYS_io_pgetevents, 0, 1, 1, nodes, NULL, NULL));
	TRY(syscall(SYS_get_thread_area, nodes));
	TRY(syscall(SYS_set_thread_area, nodes));
	struct kcmp_epoll_slot slot = {.toff = 0};
	int pid = home_pid(), copy = dup(1), e = epoll_create1(0), p[2];
	struct epoll_event event = {EPOLLIN};
	pipe(p);
	slot.efd = e, slot.tfd = p[0];
	epoll_ctl(e, EPOLL_CTL_ADD, p[0], &event);
	TRY(syscall(SYS_kcmp, pid, pid, KCMP_FILE, 1, copy));
	TRY(syscall(SYS_kcmp, pid, pid, KCMP_FILE, 1, e) > 0);
	TRY(syscall(SYS_kcmp, pid, pid, KCMP_VM, 0, 0));
	TRY(syscall(SYS_kcmp, pid, pid, KCMP_EPOLL_TFD, p[0], &slot));
	TRY(syscall(SYS_kcmp, pid, pid, KCMP_EPOLL_TFD, p[0], wild));
	TRY(syscall(SYS_kcmp, pid, 1 << 22, KCMP_VM, 0, 0));
	TRY(syscall(SYS_kcmp, pid, pid, 99, 0, 0));
	struct landlock_ruleset_attr rules = {.handled_access_fs = LANDLOCK_ACCESS_FS_EXECUTE};
	struct landlock_path_beneath_attr beneath = {.allowed_access = LANDLOCK_ACCESS_FS_EXECUTE, .parent_fd = open(".", O_PATH)};
	int set = syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
	say("set %d\n", set);
	TRY(syscall(SYS_landlock_create_ruleset, NULL, 0, 1));
	TRY(syscall(SYS_landlock_create_ruleset, wild, 8, 0));
	TRY(syscall(SYS_landlock_create_ruleset, &rules, 3, 0));
	TRY(syscall(SYS_landlock_add_rule, set, 1, &beneath, 0));
	TRY(syscall(SYS_landlock_add_rule, set, 1, wild, 0));
	beneath.parent_fd = 77;
	TRY(syscall(SYS_landlock_add_rule, set, 1, &beneath, 0));
	uint32_t size = 4, more = sizeof context;
	TRY(syscall(LSM_LIST_MODULES, nodes, &size, 0));
	say("%u\n", size);
	TRY(syscall(LSM_LIST_MODULES, context, &more, 0) >= 0);
	say("%u %lx\n", more, sum(context, more));
	TRY(syscall(LSM_LIST_MODULES, wild, &size, 0));
	TRY(syscall(LSM_LIST_MODULES, context, wild, 0));
	more = sizeof context;
	TRY(syscall(LSM_GET_SELF_ATTR, 100, context, &more, 0));
	say("%u\n", more);
	TRY(syscall(LSM_GET_SELF_ATTR, 0, NULL, &more, 0));
	union bpf_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.start_id = 1 << 30;
	TRY(syscall(SYS_bpf, BPF_PROG_GET_NEXT_ID, &attr, sizeof attr));
	TRY(syscall(SYS_bpf, BPF_PROG_GET_NEXT_ID, wild, sizeof attr));
	TRY(syscall(SYS_bpf, BPF_MAP_GET_FD_BY_ID, &attr, sizeof attr));
	uint32_t known = SECCOMP_RET_LOG, unknown = 0x12340000;
	uint16_t sizes[4] = {0, 0, 0, 0x55};
	TRY(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &known));
	TRY(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &unknown));
	TRY(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 1, &known));
	TRY(syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, sizes));
	say("%d %d %d %x\n", sizes[0], sizes[1], sizes[2], sizes[3]);
	TRY(syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, wild));
}

static void persona(void)
{
	int value = 7;
	uint64_t auxv[100] = {0};
	say("%d\n", (int)syscall(SYS_personality, 0xffffffff));
	TRY(syscall(SYS_personality, 0x0040000));
	TRY(syscall(SYS_personality, 0xffffffff));
	TRY(syscall(SYS_personality, 0));
	TRY(syscall(SYS_arch_prctl, 0x1011, 0));
	TRY(prctl(PR_SET_DUMPABLE, 0));
	TRY(prctl(PR_GET_DUMPABLE));
	TRY(prctl(PR_SET_DUMPABLE, 2));
	TRY(prctl(PR_SET_DUMPABLE, 1));
	TRY(prctl(PR_GET_TIMING));
	TRY(prctl(PR_SET_TIMING, 1));
	TRY(prctl(PR_GET_SECCOMP));
	TRY(prctl(PR_GET_TSC, &value));
	say("%d\n", value);
	TRY(prctl(PR_GET_TSC, wild));
	TRY(prctl(PR_SET_TIMERSLACK, 12345));
	TRY(prctl(PR_GET_TIMERSLACK));
	TRY(prctl(PR_MCE_KILL_GET, 0, 0, 0, 0));
	TRY(prctl(PR_MCE_KILL_GET, 1, 0, 0, 0));
	TRY(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
	TRY(prctl(PR_GET_SPECULATION_CTRL, 99, 0, 0, 0));
	TRY(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 1));
	TRY(prctl(66, 0, 0, 0, 0));
	TRY(prctl(68, 0, 0, 0, 0));
	TRY(prctl(PR_SET_PTRACER, -1));
	TRY(prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0));
	TRY(prctl(PR_GET_IO_FLUSHER, 0, 0, 0, 0));
	TRY(prctl(PR_SET_IO_FLUSHER, 0, 0, 0, 0));
	TRY(prctl(0x41555856, auxv, sizeof auxv, 0, 0));
	say("%lu\n", auxv[0]);
	TRY(prctl(0x41555856, auxv, 8, 0, 1));
	TRY(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 1));
	TRY(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	TRY(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
}

static void credentials(void)
{
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0}, old = {0x19980330, 0}, wrong = {5, 0};
	struct __user_cap_data_struct data[2], one[2];
	gid_t groups[100] = {0};
	TRY(syscall(SYS_getgroups, 100, groups));
	gid_t wanted[3] = {5, 6, 4242};
	TRY(syscall(SYS_setgroups, 3, wanted));
	TRY(syscall(SYS_getgroups, 0, NULL));
	TRY(syscall(SYS_getgroups, 2, groups));
	TRY(syscall(SYS_getgroups, 100, groups));
	say("%d %d %d %d\n", groups[0], groups[1], groups[2], groups[3]);
	TRY(syscall(SYS_getgroups, 3, wild));
	TRY(syscall(SYS_setgroups, 3, wild));
	TRY(syscall(SYS_setgroups, 1 << 20, wild));
	chmod(".", 0777);
	TRY(syscall(SYS_setfsuid, 65534));
	TRY(syscall(SYS_setfsgid, 65534));
	TRY(open("foreign", O_CREAT | O_WRONLY, 0600) > 0);
	TRY(syscall(SYS_setfsuid, 0));
	TRY(syscall(SYS_setfsgid, 0));
	TRY(syscall(SYS_setfsuid, -1));
	struct stat st;
	say("owner %d\n", stat("foreign", &st) ? -1 : (int)st.st_uid);
	TRY(prctl(PR_SET_KEEPCAPS, 1));
	TRY(prctl(PR_GET_KEEPCAPS));
	TRY(prctl(PR_SET_SECUREBITS, 1 << 1));
	TRY(prctl(PR_GET_SECUREBITS));
	TRY(prctl(PR_CAPBSET_READ, CAP_SYS_TIME));
	TRY(prctl(PR_CAPBSET_DROP, CAP_SYS_TIME));
	TRY(prctl(PR_CAPBSET_READ, CAP_SYS_TIME));
	TRY(prctl(PR_CAPBSET_DROP, 99));
	TRY(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_KILL, 0, 0));
	TRY(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0));
	TRY(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, CAP_KILL, 0, 0));
	TRY(syscall(SYS_capget, &head, data));
	say("%x %x\n", data[0].permitted & 1 << CAP_SYS_ADMIN, data[0].inheritable);
	memset(one, 0x55, sizeof one);
	TRY(syscall(SYS_capget, &old, one));
	say("%x %x\n", one[1].effective, one[1].inheritable);
	TRY(syscall(SYS_capget, &wrong, one));
	say("version %x\n", wrong.version);
	wrong.version = 5;
	TRY(syscall(SYS_capget, &wrong, NULL));
	say("version %x\n", wrong.version);
	wrong.version = 5;
	TRY(syscall(SYS_capset, &wrong, data));
	say("version %x\n", wrong.version);
	TRY(syscall(SYS_capget, wild, data));
	TRY(syscall(SYS_capset, &head, wild));
	memset(data, 0, sizeof data);
	TRY(syscall(SYS_capset, &head, data));
	data[0].permitted = data[0].effective = 1 << CAP_SYS_ADMIN;
	TRY(syscall(SYS_capset, &head, data));
	/* From here on without any capability; with one, what follows would do harm. */
	if (syscall(SYS_capget, &head, data) || data[0].effective || data[1].effective)
		_exit(91);
	struct timex x = {.modes = 0};
	char buffer[100] = "";
	TRY(syscall(SYS_setgroups, 0, NULL));
	TRY(syscall(SYS_vhangup));
	TRY(syscall(SYS_acct, NULL));
	TRY(syscall(SYS_reboot, 0xfee1dead, 0x28121969, 0x89abcdef, 0));
	TRY(syscall(SYS_swapon, "/dev/null", 0));
	TRY(syscall(SYS_swapoff, "/dev/null"));
	TRY(sethostname("x", 1));
	TRY(setdomainname("x", 1));
	TRY(mount("none", ".", "tmpfs", 0, NULL));
	TRY(umount2(".", 0));
	TRY(syscall(SYS_fsopen, "tmpfs", 0));
	TRY(syscall(SYS_syslog, 5, NULL, 0));
	TRY(syscall(SYS_init_module, "not a module", 12, ""));
	TRY(syscall(SYS_open_by_handle_at, AT_FDCWD, buffer, 0));
	TRY(syscall(SYS_quotactl, QCMD(Q_QUOTAOFF, USRQUOTA), "/dev/null", 0, NULL));
	TRY(adjtimex(&x) >= 0);
	TRY(prctl(PR_CAPBSET_DROP, CAP_KILL));
	TRY(prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0));
}

/* `rare home CALL`: one call that only home can make. */
static void home(const char *what)
{
	static char text[8192];
	struct timex x = {.modes = ADJ_STATUS};
	struct {
		struct file_handle head;
	} *h = edge(sizeof *h);
	memset(text, 'x', sizeof text - 1);
	if (!strcmp(what, "beginning"))
		TRY(write(1, edge(10), 20));
	else if (!strcmp(what, "handle")) {
		h->head.handle_bytes = 1000;
		TRY(syscall(SYS_name_to_handle_at, AT_FDCWD, ".", h, text, 0));
	} else if (!strcmp(what, "text"))
		TRY(syscall(SYS_finit_module, 77, text, 0));
	else if (!strcmp(what, "timex"))
		TRY(syscall(SYS_adjtimex, &x));
	else if (!strcmp(what, "zerocopy"))
		TRY(send(77, "x", 1, MSG_ZEROCOPY));
	else if (!strcmp(what, "options"))
		TRY(mount("none", "missing", "tmpfs", 0, "size=1m"));
}

int main(int count, char **arguments)
{
	const char *what = arguments[1];
	if (getenv("FARHOME_SPLIT")) {
		int child = fork();
		do
			pause();
		while (child);
	}
	if (!strcmp(what, "attributes"))
		attributes();
	else if (!strcmp(what, "objects"))
		objects();
	else if (!strcmp(what, "filters"))
		filters();
	else if (!strcmp(what, "mounts"))
		mounts();
	else if (!strcmp(what, "keys"))
		keys();
	else if (!strcmp(what, "machine"))
		machine();
	else if (!strcmp(what, "persona"))
		persona();
	else if (!strcmp(what, "credentials"))
		credentials();
	else if (!strcmp(what, "home"))
		home(arguments[2]);
	_exit(7);
}
