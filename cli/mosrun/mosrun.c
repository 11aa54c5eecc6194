/* mosrun: starts a program that may move to other nodes; see mosrun.py for its options and its manual.
 *
 * It registers its own process with the node daemon over a unix socket and then becomes the program: the program is the shell's own child,
 * native and untraced until it moves, with the very argument and environment strings that mosrun was given. Without a daemon
 * it says so in one line and the program runs at home. The connection is closed by exec: so the daemon learns that mosrun has become
 * the program.
 *
 * With -X it becomes `mosrun-private`, which gives it directories of its own and has it begin anew there, as `mosrun --within`.
 *
 * With --restart the daemon makes the checkpointed process a child of mosrun, which stays, stops and goes on with it, and ends as it does.
 *
 * Exit status: the program's own; 64 bad usage, 69 and 75 no restart, 77 no private directory, 126 and 127 as a shell. `--help` is Python's: its text comes from the parser. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "mosrun_message.h"
#include "mosrun_options.h"
#include "mosrun_self.h"
#include "mosrun_within.h"

enum { PATIENCE = 5, NODE_PATIENCE = 40, RESTART_PATIENCE = 700 /* seconds */, ANSWER = 1 << 17 };

/* -- messages to the daemon, and its answers -- */

static void describe(struct message *message, char **program)
{
	char command[LONGEST] = "";
	for (size_t used = 0; *program && used < sizeof command - 1; program++) {
		int more = snprintf(command + used, sizeof command - used, "%s%s", used ? " " : "", *program);
		used += (size_t)more;
	}
	uint64_t memory = strtoull(options.memory, NULL, 10) << 20;
	unsigned char number[9] = {0xcf};
	for (int i = 0; i < 8; i++)
		number[1 + i] = (unsigned char)(memory >> (56 - 8 * i));
	message->size = 4;
	put(message, "\x8c", 1);
	put_pair(message, "op", *options.restart ? "restart" : "register");
	put_pair(message, "every", options.every);
	put_pair(message, "checkpoint", options.checkpoint);
	put_pair(message, "directory", options.restart);
	put_pair(message, "job", options.job);
	put_truth(message, "home_only", options.home);
	put_truth(message, "locked", options.locked);
	put_text(message, "memory");
	put(message, number, sizeof number);
	put_pair(message, "node", options.best ? "best" : options.node);
	put_pair(message, "command", command);
	put_pair(message, "trace", options.trace);
	put_pair(message, "trust", options.trust);
	size_t body = message->size - 4;
	memcpy(message->bytes, (unsigned char[]){0, 0, (unsigned char)(body >> 8), (unsigned char)body}, 4);
}

/* How long the daemon may take to answer: with -r it makes a place on that node first. */
static int seconds_to_wait(void)
{
	return *options.restart ? RESTART_PATIENCE : *options.node ? NODE_PATIENCE : PATIENCE;
}

/* The connection to the daemon, out of the way of the standard descriptors. Errors: -1 and errno. */
static int call(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval patience = {.tv_sec = seconds_to_wait()};
	if (strlen(path) >= sizeof address.sun_path)
		return errno = ENAMETOOLONG, -1;
	strcpy(address.sun_path, path);
	int low = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int connection = low < 0 || low > STDERR_FILENO ? low : fcntl(low, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	if (low >= 0 && connection != low)
		close(low);
	if (connection < 0)
		return -1;
	setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
	return connect(connection, (struct sockaddr *)&address, sizeof address) ? -1 : connection;
}

/* Where the daemon listens. */
static const char *daemon_path(void)
{
	static char path[PATH_MAX];
	const char *run = getenv("FARHOME_RUN");
	snprintf(path, sizeof path, "%s/mosd.sock", run && *run ? run : "/run/farhome");
	return path;
}

/* Registers this process with the daemon. An objection of the daemon is printed; it ends mosrun if the request made no sense. */
static void register_with_daemon(char **program)
{
	static const unsigned char accepted[] = {0x81, 0xa2, 'o', 'k', 0xc3};
	static struct message message;
	unsigned char answer[4096];
	char sentence[LONGEST] = "the mosd of this node went away before it answered";
	const char *path = daemon_path();
	int code = 0;
	int connection = call(path);
	if (connection < 0) {
		say("no mosd answers on this node (%s: %s); %s runs at home", path, strerror(errno), *program);
		return;
	}
	describe(&message, program);
	size_t size = 0;
	if (send(connection, message.bytes, message.size, MSG_NOSIGNAL) == (ssize_t)message.size)
		size = receive(connection, answer, sizeof answer);
	if (size == 4 + sizeof accepted && !memcmp(answer + 4, accepted, sizeof accepted))
		return; /* exec closes it */
	if (size > 4)
		understand(answer + 4, answer + size, "error", sentence, sizeof sentence, "code", &code);
	if (code == USAGE)
		bad_usage("%s", sentence);
	say("%s; %s runs at home", sentence, *program);
}

static volatile pid_t child;

/* What somebody sends to mosrun is for its child; what the terminal sends has come to both. */
static void pass_on(int number, siginfo_t *info, void *context)
{
	(void)context;
	if (info->si_code <= 0 && info->si_pid != child)
		kill(child, number);
}

/* Stops and goes on with the child, and ends as it does. */
static _Noreturn void accompany(void)
{
	static const int passed[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGTSTP, SIGTTIN, SIGTTOU, SIGWINCH};
	struct sigaction action = {.sa_sigaction = pass_on, .sa_flags = SA_SIGINFO | SA_RESTART};
	int status = 0;
	for (size_t i = 0; i < sizeof passed / sizeof passed[0]; i++)
		sigaction(passed[i], &action, NULL);
	for (;;) {
		if (waitpid(child, &status, WUNTRACED) < 0) {
			if (errno == EINTR)
				continue;
			say("the end of process %d is not known: %s", child, strerror(errno));
			_exit(REFUSED);
		}
		if (!WIFSTOPPED(status))
			break;
		kill(getpid(), SIGSTOP);
		kill(child, SIGCONT);
	}
	if (WIFEXITED(status))
		_exit(WEXITSTATUS(status));
	setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
	signal(WTERMSIG(status), SIG_DFL);
	sigset_t all;
	sigfillset(&all);
	sigprocmask(SIG_UNBLOCK, &all, NULL);
	kill(getpid(), WTERMSIG(status));
	_exit(SIGNALLED + WTERMSIG(status));
}

/* Has the daemon make the checkpointed process our child. */
static _Noreturn void restart(void)
{
	static struct message message;
	static unsigned char answer[ANSWER];
	static char text[ANSWER];
	int number = 0;
	char *none[] = {NULL};
	int connection = call(daemon_path());
	if (connection < 0) {
		say("no mosd answers on this node (%s: %s)", daemon_path(), strerror(errno));
		_exit(UNAVAILABLE);
	}
	describe(&message, none);
	size_t size = 0;
	if (send(connection, message.bytes, message.size, MSG_NOSIGNAL) == (ssize_t)message.size)
		size = receive(connection, answer, sizeof answer);
	close(connection);
	if (size > 4 && understand(answer + 4, answer + size, "error", text, sizeof text, "code", &number)) {
		say("%s", text);
		_exit(number & 0xff);
	}
	if (size <= 4 || !understand(answer + 4, answer + size, "notes", text, sizeof text, "pid", &number) || number <= 0) {
		say("the mosd of this node went away before it answered");
		_exit(UNAVAILABLE);
	}
	child = number;
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
		say("%s", line);
	accompany();
}

int main(int argc, char **argv)
{
	int is_within = argc > 2 && !strcmp(argv[1], "--within");
	char **words = argv + (argc > 0) + 2 * is_within;
	char **program = read_options(words);
	if (options.private_count && !is_within)
		begin_within(options.privates, options.private_count, words);
	if (is_within)
		go_on_within(argv[2]);
	name_checkpoints();
	if (*options.trace && strcmp(options.trace, "-"))
		make_trace();
	if (*options.restart)
		restart();
	register_with_daemon(program);
	execvp(program[0], program);
	int error = errno;
	if (error == ENOENT)
		say("%s: not found", *program[0] ? program[0] : "''");
	else
		say("%s: %s", program[0], strerror(error));
	return error == ENOENT ? NOT_FOUND : NOT_EXECUTABLE;
}
