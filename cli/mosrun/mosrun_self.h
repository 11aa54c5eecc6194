/* What the parts of mosrun share: its exit codes, what it says, where it is. */
#ifndef MOSRUN_SELF_H
#define MOSRUN_SELF_H

enum { USAGE = 64, UNAVAILABLE = 69, REFUSED = 75, NOT_PERMITTED = 77, NOT_EXECUTABLE = 126, NOT_FOUND = 127, SIGNALLED = 128 };

/* One line for the user. */
void say(const char *format, ...);
/* The directory that is so many levels above this program, ROOT/.build/mosrun; 0: the program. It holds until the next one is asked for. */
const char *above(int levels);

#endif
