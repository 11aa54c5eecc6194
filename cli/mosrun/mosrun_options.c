/* The command line of mosrun, checked. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "mosrun_message.h"
#include "mosrun_options.h"
#include "mosrun_self.h"

struct options options = {
	.node = "", .memory = "0", .job = "", .trace = "", .every = "", .checkpoint = "", .restart = "", .private = "", .trust = ""};

static const struct {
	char letter;
	const char *name;
	bool *flag;
	const char **value;
} known[] = {
	{'h', "--home", &options.home, NULL},       {'b', "--best", &options.best, NULL},
	{'L', "--locked", &options.locked, NULL},   {'r', "--node", NULL, &options.node},
	{'m', "--memory", NULL, &options.memory},   {'J', "--job", NULL, &options.job},
	{'A', "--every", NULL, &options.every},     {'C', "--checkpoint", NULL, &options.checkpoint},
	{'R', "--restart", NULL, &options.restart}, {'X', "--private", NULL, &options.private},
	{'T', "--trust", NULL, &options.trust},
};
enum { KNOWN = sizeof known / sizeof known[0] };

_Noreturn void bad_usage(const char *format, const char *word)
{
	say(format, word);
	_exit(USAGE);
}

static void give(int option, const char *value)
{
	struct stat status;
	*known[option].value = value;
	if (known[option].value == &options.trust && !*value)
		bad_usage("--trust needs the names of nodes, with commas between them, not '%s' (-h keeps a program at home)", value);
	if (!*value)
		bad_usage("%s needs a value, and it is empty (mosrun --help shows how)", known[option].name);
	if (known[option].value != &options.private)
		return;
	if (*value != '/' || stat(value, &status) || !S_ISDIR(status.st_mode))
		bad_usage("-X needs a directory that is there, by its whole path, not '%s'", value);
	if (options.private_count == PRIVATE_MOST)
		bad_usage("-X may be given ten times at most, and %s is one more", value);
	options.privates[options.private_count++] = value;
}

/* Becomes Python, which prints the help that the parser makes. */
static _Noreturn void help(void)
{
	char python[PATH_MAX + 32];
	snprintf(python, sizeof python, "%s/.venv/bin/python", above(2));
	execl(python, python, "-I", "-m", "cli.mosrun.mosrun", "--help", (char *)NULL);
	say("%s: %s", python, strerror(errno));
	_exit(NOT_EXECUTABLE);
}

/* Takes --name, --name=value or --name value. Returns how many words that were. */
static int long_option(char **words)
{
	size_t length = strcspn(words[0], "=");
	for (int i = 0; i < KNOWN; i++) {
		if (strlen(known[i].name) != length || strncmp(words[0], known[i].name, length))
			continue;
		if (known[i].flag && words[0][length])
			break;
		if (known[i].flag)
			return *known[i].flag = true, 1;
		if (words[0][length])
			return give(i, words[0] + length + 1), 1;
		if (!words[1])
			bad_usage("%s needs a value (mosrun --help shows how)", words[0]);
		return give(i, words[1]), 2;
	}
	if (length == 7 && !strncmp(words[0], "--trace=", 9)) /* '' is no file */
		bad_usage("--trace= needs a file, and its name is empty (mosrun --help shows how)", "");
	if (length == 7 && !strncmp(words[0], "--trace", length)) /* its value, if any, is in the same word */
		return options.trace = words[0][length] ? words[0] + length + 1 : "-", 1;
	if (!strcmp(words[0], "--help"))
		help();
	bad_usage("%s is no option of mosrun (mosrun --help shows how)", words[0]);
}

/* Takes -Lb, -JNAME or -J NAME. Returns how many words that were. */
static int short_options(char **words)
{
	for (const char *letter = words[0] + 1; *letter; letter++) {
		int i = 0;
		while (i < KNOWN && known[i].letter != *letter)
			i++;
		if (i == KNOWN)
			bad_usage("%s is no option of mosrun (mosrun --help shows how)", words[0]);
		if (known[i].flag) {
			*known[i].flag = true;
			continue;
		}
		if (letter[1])
			return give(i, letter + 1), 1;
		if (!words[1])
			bad_usage("%s needs a value (mosrun --help shows how)", words[0]);
		return give(i, words[1]), 2;
	}
	return 1;
}

char **read_options(char **words)
{
	while (*words && words[0][0] == '-' && words[0][1]) {
		if (!strcmp(*words, "--")) {
			words++;
			break;
		}
		words += words[0][1] == '-' ? long_option(words) : short_options(words);
	}
	if (options.home + options.best + !!*options.node > 1)
		bad_usage("-h, -b and -r exclude one another", "");
	size_t digits = strspn(options.memory, "0123456789");
	if (!digits || options.memory[digits] || digits > 9)
		bad_usage("-m needs a number of MiB, not '%s'", options.memory);
	if (*options.checkpoint && !*options.every)
		bad_usage("-C says where the checkpoints of -A go, and -A is missing", "");
	if (options.private_count && (*options.every || *options.restart))
		bad_usage("what is in directories of -X is in no checkpoint: -X goes with neither -A nor --restart", "");
	if (*options.restart && *words)
		bad_usage("with --restart the checkpoint says what runs, not '%s'", *words);
	if (!*options.restart && !*words)
		bad_usage("a program is missing (mosrun --help shows how)", "");
	return words;
}

void make_trace(void)
{
	static char path[PATH_MAX];
	struct stat status;
	int file = open(options.trace, O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
	if (file < 0 || fstat(file, &status) || !realpath(options.trace, path)) {
		say("%s: %s", options.trace, strerror(errno));
		_exit(USAGE);
	}
	if (!S_ISREG(status.st_mode) || status.st_uid != getuid())
		bad_usage("--trace needs a plain file of your own, not %s", options.trace);
	if (strlen(path) > LONGEST)
		bad_usage("%s: the path is too long for a trace", options.trace);
	for (int i = 0; i < options.private_count; i++) {
		struct stat directory;
		if (!stat(options.privates[i], &directory) && directory.st_dev == status.st_dev)
			bad_usage("--trace=%s lies in a directory of -X, where nobody would find it", options.trace);
	}
	if (ftruncate(file, 0)) {
		say("%s: %s", options.trace, strerror(errno));
		_exit(USAGE);
	}
	close(file);
	options.trace = path;
}

/* The whole path of a directory, whether it is there or not. */
static const char *whole(const char *path)
{
	char here[PATH_MAX];
	if (*path == '/' || !getcwd(here, sizeof here))
		return path;
	char *found = malloc(2 * PATH_MAX);
	if (!found)
		return path;
	snprintf(found, 2 * PATH_MAX, "%s/%s", strcmp(here, "/") ? here : "", path);
	return found;
}

void name_checkpoints(void)
{
	static char usual[32];
	if (*options.every && !*options.checkpoint && !*options.restart) {
		snprintf(usual, sizeof usual, "ckpt.%d", getpid());
		options.checkpoint = usual;
	}
	if (*options.checkpoint)
		options.checkpoint = whole(options.checkpoint);
	if (*options.restart)
		options.restart = whole(options.restart);
	if (strlen(options.checkpoint) > LONGEST || strlen(options.restart) > LONGEST)
		bad_usage("the path of the checkpoint is too long", "");
}
