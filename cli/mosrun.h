/* What the parts of mosrun share. */
#ifndef MOSRUN_H
#define MOSRUN_H

enum { USAGE = 64, UNAVAILABLE = 69, REFUSED = 75, NOT_PERMITTED = 77, NOT_EXECUTABLE = 126, NOT_FOUND = 127, SIGNALLED = 128 };

/* One line for the user. */
void say(const char *format, ...);
/* The directory that is so many levels above this program, ROOT/.build/mosrun; 0: the program. It holds until the next one is asked for. */
const char *above(int levels);

/* Becomes `mosrun-private`, which has this program begin anew, with these words, where the directories are its own. What the kernel takes
 * from whoever becomes a program with capabilities goes along: environment, limit of the stack, personality, the signal at the parent's end. */
_Noreturn void begin_within(const char *const *directories, int directory_count, char **words);
/* What begin_within() has kept is so again. */
void go_on_within(const char *kept);

#endif
