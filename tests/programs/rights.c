/* rights HOW: what it may do is more or less than its user may, by how its file is set, or by HOW:
 *   stay        as it is
 *   undumpable  PR_SET_DUMPABLE 0, when there is a file `go`
 *   back        it gives up all that its file has given it, for good
 *   PROGRAM     it executes that (with `stay`) when there is a file `go`
 * It makes a file `up`, one `gone` when it has done so, and ends when there is one called `end`. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static void make(const char *name)
{
	close(open(name, O_CREAT | O_WRONLY, 0666));
}

static void await(const char *name)
{
	while (access(name, F_OK))
		usleep(10000);
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "stay";

	if (!strcmp(how, "back") && (setresgid(getgid(), getgid(), getgid()) || setresuid(getuid(), getuid(), getuid())))
		return 2;
	make("up");
	if (strcmp(how, "stay") && strcmp(how, "back")) {
		await("go");
		if (strcmp(how, "undumpable")) {
			execl(how, how, "stay", NULL);
			return 3;
		}
		if (prctl(PR_SET_DUMPABLE, 0))
			return 4;
	}
	make("gone");
	await("end");
	return 0;
}
