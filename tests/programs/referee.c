/* Makes the system calls that a script names and keeps a record: of each its result, the signals that were handled meanwhile and the
 * bytes of memory that have changed.
 *
 *   referee SCRIPT RECORD DIRECTORY     tests/referee/program.py writes the script, referee.h describes its words
 *   referee inner FILE                  what a program finds that one of the script's has executed: appended to FILE
 *
 * It does nothing as root. The script is made of episodes, each a process of its own, in a directory of its own, with the descriptors and the memory of
 * referee_world.h. Numbers are hexadecimal. What differs from run to run is named in the record, not shown: ids of processes as @ and a
 * letter; what the script says is a time, an address or a number of its own (M). It is put out of the memory as well, so that later calls
 * find the same there. */
#define _GNU_SOURCE
#include <stddef.h>
#include "referee.h"
#include "referee_world.h"

#define TICK_MS 2000            /* how long a call may take */

static char log_text[LOG_ROOM];
static unsigned log_size, line_number;
static struct mask {
	uint64_t at, size;
	char kind;
} masks[16];
static unsigned masks_count;
static int turn, ends;          /* which thread runs; futexes */
static struct job {
	uint64_t number, a[6];
	int64_t result;
} job;
static uint64_t calls_made, calls_seen;
static int is_calling;          /* a call of the script's is under way */
static int has_waited;          /* it has been interrupted, as it took too long */
static unsigned unwritten;      /* lines of the record */

void flush_log(void)
{
	for (unsigned done = 0; done < log_size;) {
		int64_t n = call(SYS_write, RECORD_FD, (uint64_t)log_text + done, log_size - done, 0, 0, 0);
		if (n <= 0)
			break;
		done += n;
	}
	log_size = unwritten = 0;
}

void record(const char *format, ...)
{
	va_list rest;
	va_start(rest, format);
	if (log_size > LOG_ROOM - 8192)
		flush_log();
	int n = vsnprintf(log_text + log_size, 4096, format, rest);
	log_size += n < 4096 ? n : 4095;
	va_end(rest);
}

static void record_value(int64_t value, int how)
{
	if (value < 0 && value >= -4095)
		record("%s", strerrorname_np(-value) ?: "E?");
	else if (how == 'r')
		record("ok");
	else if (how == 'b')
		record(value ? "some" : "0");
	else if (name_of(value))
		record("@%c", name_of(value));
	else
		record("%lx", value);
}

/* ---- what differs from run to run ---- */

static void entries(unsigned char *at, int64_t size, int old)
{
	while (size > 19) {
		uint16_t length;
		memcpy(&length, at + 16, 2);
		if (length < 19 || length > size)
			break;
		memset(at, 0, 16);      /* inode, and where the next one is in the directory */
		(void)old;
		at += length;
		size -= length;
	}
}

static void put_out(const struct mask *m, int64_t result)
{
	unsigned char *at = (void *)m->at;
	uint64_t seconds;
	uint16_t mode;
	if (m->at < DATA || m->at + m->size > DATA + DATA_SIZE || (m->kind != 'X' && m->kind != 'z' && m->kind != 't' && result < 0))
		return;
	switch (m->kind) {
	case 'x':
	case 'X':
		memset(at, 0, m->size);
		break;
	case 't':
		memcpy(&seconds, at, 8);
		if (seconds > 1000000000)
			memset(at, 0x77, m->size);
		break;
	case 'z':
		for (uint64_t i = 0; i < m->size; i++)
			if (at[i]) {
				memset(at, 0, m->size);
				at[0] = 1;
				break;
			}
		break;
	case 's':
	case 'S':         /* a socket's times are what was in that piece of the kernel's memory before */
		memcpy(&mode, at + (m->kind == 's' ? offsetof(struct stat, st_mode) : offsetof(struct statx, stx_mode)), sizeof mode);
		if (S_ISSOCK(mode))
			memset(at + (m->kind == 's' ? 72 : 64), 0, m->kind == 's' ? 48 : 64);
		break;
	case 'd':
	case 'D':
		entries(at, result, m->kind == 'D');
	}
}

/* The bytes that are not as they were; ids of processes get their names there, too. */
static void record_memory(void)
{
	unsigned char *now = (void *)DATA, *was = before;
	if (!memcmp(now, was, DATA_SIZE))
		return;
	for (uint64_t i = 0; i < DATA_SIZE; i += 4) {
		uint32_t value;
		memcpy(&value, now + i, 4);
		if (memcmp(now + i, was + i, 4) && name_of(value) && !strchr("qem", name_of(value))) {     /* not by objects' numbers */
			value = 0x70696400 + name_of(value);
			memcpy(now + i, &value, 4);
		}
	}
	for (uint64_t from = 0, to; from < DATA_SIZE; from = to) {
		to = from + 1;
		if (now[from] == was[from])
			continue;
		while (to < DATA_SIZE && now[to] != was[to])
			to++;
		record(" +%lx:", from);
		if (to - from > 64)
			record("%lx*%lx", to - from, hash(now + from, to - from));
		for (uint64_t i = from; i < to && to - from <= 64; i++)
			record("%02x", now[i]);
	}
	memcpy(was, now, DATA_SIZE);
}

static void end_line(int thread)
{
	if (has_waited)
		record(" WAITED");
	has_waited = 0;
	record_notes(thread);
	record_memory();
	record("\n");
	if (is_exact || ++unwritten == LINES_AT_ONCE)
		flush_log();
}

/* ---- threads take turns ---- */

static void hand_over(int to)
{
	__atomic_store_n(&turn, to, __ATOMIC_SEQ_CST);
	call(SYS_futex, (uint64_t)&turn, FUTEX_WAKE_PRIVATE, 1000, 0, 0, 0);
}

static void wait_for(int who)
{
	for (int now; (now = __atomic_load_n(&turn, __ATOMIC_SEQ_CST)) != who;)
		call(SYS_futex, (uint64_t)&turn, FUTEX_WAIT_PRIVATE, now, 0, 0, 0);
}

/* What may end the process. */
static int is_deadly(uint64_t number)
{
	return number == SYS_kill || number == SYS_tkill || number == SYS_tgkill || number == SYS_rt_sigqueueinfo ||
	       number == SYS_rt_tgsigqueueinfo || number == SYS_pidfd_send_signal;
}

static void make_it(void)
{
	uint64_t tick = 1ul << (TICK - 1);
	__atomic_store_n(&is_calling, 1, __ATOMIC_SEQ_CST);
	job.result = call(job.number, job.a[0], job.a[1], job.a[2], job.a[3], job.a[4], job.a[5]);
	__atomic_store_n(&is_calling, 0, __ATOMIC_SEQ_CST);
	if (job.number == SYS_rt_sigprocmask)       /* what bounds the calls that follow */
		call(SYS_rt_sigprocmask, SIG_UNBLOCK, (uint64_t)&tick, 0, 8, 0, 0);
	__atomic_add_fetch(&calls_made, 1, __ATOMIC_SEQ_CST);
}

static void *worker(void *number)
{
	me = (int)(uint64_t)number;
	know("0123"[me], call(SYS_gettid, 0, 0, 0, 0, 0, 0));
	hand_over(0);
	for (;;) {
		wait_for(me);
		if (ends)
			return NULL;
		make_it();
		hand_over(0);
	}
}

/* A call that has not come back since the last tick is interrupted: that of another thread by a tick for that. Ticks that come late come
 * closer to one another. That a call has waited is said of all that end with a tick: whether it is the first or the second one that
 * they meet, and how many calls came before, is a matter of time. */
static void tick(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)info, (void)context;
	static struct timespec seen;
	struct timespec now;
	int who = __atomic_load_n(&turn, __ATOMIC_SEQ_CST);
	if (me == who && is_calling)
		has_waited = 1;
	if (me)
		return;
	call(SYS_clock_gettime, CLOCK_MONOTONIC, (uint64_t)&now, 0, 0, 0, 0);
	int64_t passed = (now.tv_sec - seen.tv_sec) * 1000 + (now.tv_nsec - seen.tv_nsec) / 1000000;
	if (calls_made == calls_seen && passed < TICK_MS - TICK_MS / 20)
		return;
	if (calls_made == calls_seen && who > 0)
		call(SYS_tgkill, known('s'), known("0123"[who]), TICK, 0, 0, 0);
	calls_seen = calls_made;
	seen = now;
}

void watch(void)
{
	struct {
		void *handler;
		uint64_t flags;
		void *restorer;
		uint64_t mask;
	} action = {tick, SA_SIGINFO | 0x4000000, (void *)RESTORER, 0};
	struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = TICK};
	struct itimerspec often = {{TICK_MS / 1000, 0}, {TICK_MS / 1000, 0}};
	int timer = -1;
	event._sigev_un._tid = known('s');
	call(SYS_rt_sigaction, TICK, (uint64_t)&action, 0, 8, 0, 0);
	call(SYS_timer_create, CLOCK_MONOTONIC, (uint64_t)&event, (uint64_t)&timer, 0, 0, 0);
	call(SYS_timer_settime, timer, 0, (uint64_t)&often, 0, 0, 0);
}

void add_thread(int number)
{
	pthread_t thread;
	pthread_attr_t small;
	turn = -1;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 1 << 16);
	if (pthread_create(&thread, &small, worker, (void *)(uint64_t)number))
		record("a thread cannot be made\n");
	else
		wait_for(0);
}

/* ---- the words of a script ---- */

static uint64_t number(char **at)
{
	while (**at == ' ')
		++*at;
	if (**at == '@') {
		uint64_t value = known((*at)[1]);
		*at += 2;
		return value;
	}
	return strtoull(*at, at, 16);
}

/* What has just been asked for comes. */
static void doze(void)
{
	struct timespec rest = {0, 30000000};
	while (call(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, (uint64_t)&rest, (uint64_t)&rest, 0, 0) == -EINTR)
		;
}

static void do_call(char *rest, int thread)
{
	has_waited = 0;
	job.number = number(&rest);
	for (int i = 0; i < 6; i++)
		job.a[i] = number(&rest);
	const char *flags = rest + strspn(rest, " ");
	if (is_deadly(job.number))
		flush_log();
	if (thread) {
		hand_over(thread);
		wait_for(0);
	} else
		make_it();
	if (strchr(flags, 'w') && !job.result)
		await(known('h'));
	if (strchr(flags, 's'))
		doze();
	if (strchr(flags, 'n') && job.result >= 0)
		call(SYS_fcntl, job.result, F_SETFL, O_NONBLOCK, 0, 0, 0);
	for (int i = 0, *two = (int *)job.a[0]; strchr(flags, 'N') && !job.result && i < 2; i++)
		call(SYS_fcntl, two[i], F_SETFL, O_NONBLOCK, 0, 0, 0);
	has_waited &= job.result == -EINTR;
	for (unsigned i = 0; i < masks_count; i++)
		put_out(&masks[i], job.result);
	record("%u ", line_number);
	record_value(job.result, strchr(flags, 'r') ? 'r' : strchr(flags, 'b') ? 'b' : 0);
	end_line(thread);
	masks_count = 0;
}

static void record_ground(void)
{
	record("%u", line_number);
	for (uint64_t page = 0; page < GROUND_PAGES; page++) {
		uint64_t at = GROUND + page * 4096;
		/* Reads 8 bytes first, and then says EINVAL: so it is known whether they can be read. */
		if (call(SYS_rt_sigprocmask, 99, at, 0, 8, 0, 0) == -EFAULT)
			record(" -");
		else
			record(" %x", (unsigned)hash((void *)at, 4096) & 0xffff);
	}
	end_line(0);
}

static void do_poke(char word, char *rest)
{
	uint64_t at = number(&rest), size, byte;
	uint32_t id;
	if (at < DATA || at >= DATA + DATA_SIZE)
		exit_with("a script writes elsewhere");
	if (word == 'S') {
		size = number(&rest), byte = number(&rest);
		memset((void *)at, byte, size < DATA + DATA_SIZE - at ? size : DATA + DATA_SIZE - at);
	} else if (word == 'Q') {
		id = number(&rest);
		memcpy((void *)at, &id, 4);
	} else {
		unsigned value;
		for (rest += strspn(rest, " "); at < DATA + DATA_SIZE && sscanf(rest, "%2x", &value) == 1; rest += 2)
			*(unsigned char *)at++ = value;
	}
}

static void end_episode(char *rest)
{
	uint64_t how = number(&rest), value = number(&rest);
	int64_t result = 0;
	flush_log();
	if (how == 0)
		call(SYS_exit_group, value, 0, 0, 0, 0, 0);
	else if (how == 1)
		call(SYS_exit, value, 0, 0, 0, 0, 0);
	struct {
		uint64_t handler, flags, restorer, mask;
	} by_default = {0};
	uint64_t none = 0;
	call(SYS_rt_sigaction, value, (uint64_t)&by_default, 0, 8, 0, 0);
	call(SYS_rt_sigprocmask, SIG_SETMASK, (uint64_t)&none, 0, 8, 0, 0);
	result = call(SYS_kill, known('s'), value, 0, 0, 0, 0);
	call(SYS_exit_group, result < 0 ? 98 : 97, 0, 0, 0, 0, 0);
}

/* Runs the lines of an episode, up to the next one's. */
static void run(char *line)
{
	int thread = 0;
	for (char *next; *line && *line != 'E'; line = next) {
		next = line + strcspn(line, "\n");
		if (*next)
			*next++ = 0;
		char *rest = line + 1;
		line_number++;
		switch (*line) {
		case 'T':
			thread = number(&rest);
			break;
		case 'P':
		case 'S':
		case 'Q':
			do_poke(*line, rest);
			memcpy(before, (void *)DATA, DATA_SIZE);
			break;
		case 'M':
			if (masks_count < 16) {
				masks[masks_count].at = number(&rest);
				masks[masks_count].size = number(&rest);
				masks[masks_count++].kind = rest[1];
			}
			break;
		case 'C':
			do_call(rest, thread);
			break;
		case 'F':
			record("%u ", line_number);
			record_value(give_birth(number(&rest)), 0);
			end_line(0);
			break;
		case 'L':
			record_ground();
			break;
		case 'W': {
			uint64_t at = number(&rest);
			record("%u", line_number);
			store(at, number(&rest));
			end_line(0);
			break;
		}
		case 'X':
			end_episode(rest);
		}
	}
	flush_log();
	ends = 1;
	call(SYS_exit_group, 0, 0, 0, 0, 0, 0);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "inner"))
		return look_around(argv[2]);
	if (argc < 4)
		return 64;
	if (!geteuid() || !getuid()) {
		fputs("referee: what a script asks for could do harm with root's rights; run it as an ordinary user.\n", stderr);
		return 77;
	}
	is_exact = argc > 4;
	program = argv[0];
	char *script = whole_file(argv[1]), *at = script;
	open_record(argv[2]);
	if (chdir(argv[3]))
		return 66;
	for (unsigned n = 0; (at = strchr(at, 'E')); n++) {
		char *rest = at + 1, *lines = strchr(at, '\n');
		unsigned threads = number(&rest), flags = number(&rest);
		lines = lines ? lines + 1 : at + 1;
		pid_t child = begin(n, flags);
		if (!child) {
			prepare(threads, flags);
			run(lines);
		}
		finish(flags, child);
		at = lines - 1;
		while (*++at && !(*at == 'E' && at[-1] == '\n'))
			;
	}
	record("all recorded\n");
	flush_log();
	return 0;
}
