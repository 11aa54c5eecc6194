/* What mosrun was asked for. */
#ifndef FARHOME_MOSRUN_OPTIONS_H
#define FARHOME_MOSRUN_OPTIONS_H
#include <stdbool.h>

enum { PRIVATE_MOST = 10 /* directories of -X */ };

struct options {
	bool home, best, locked;
	const char *node, *memory, *job, *trace, *every, *checkpoint, *restart, *private, *trust;
	const char *privates[PRIVATE_MOST];
	int private_count;
};
extern struct options options;

/* Says what is wrong, and ends mosrun. */
_Noreturn void bad_usage(const char *format, const char *word);

/* Fills `options`; returns the words of the program. */
char **read_options(char **words);

/* Makes the file for the trace, or empties it, by the user's own rights; from here on it has its whole path. */
void make_trace(void);

/* Checkpoints have whole paths from here on, and those of -A the usual name if none was given. */
void name_checkpoints(void);

#endif
