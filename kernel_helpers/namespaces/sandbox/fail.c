/* How each command of sandbox ends that fails. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "namespaces/sandbox/sandbox.h"

void sandbox_fail(const char *what)
{
	fprintf(stderr, "sandbox: %s: %s\n", what, strerror(errno));
	exit(125);
}
