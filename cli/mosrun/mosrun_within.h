/* mosrun, begun anew where directories are its own. */
#ifndef MOSRUN_WITHIN_H
#define MOSRUN_WITHIN_H

/* Becomes `mosrun-private`, which has this program begin anew, with these words, where the directories are its own. What the kernel takes
 * from anyone who becomes a program with capabilities goes along: environment, limit of the stack, personality, the signal at the parent's end. */
_Noreturn void begin_within(const char *const *directories, int directory_count, char **words);
/* What begin_within() has kept is so again. */
void go_on_within(const char *kept);

#endif
