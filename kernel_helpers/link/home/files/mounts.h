/* Whether a file lies on a file system of this kernel's own: one that neither asks somebody else, who may not answer, nor changes without
 * this kernel's knowledge. */
#ifndef FARHOME_MOUNTS_H
#define FARHOME_MOUNTS_H
#include <stdint.h>

#pragma GCC visibility push(hidden)
/* Of an open file (or O_PATH) of process `pid`; `mode`: what it is, of struct stat. Nobody is asked. */
int mounts_are_local(int pid, int file, uint32_t *mode);
/* Mounts have changed. */
void mounts_forget(void);
#pragma GCC visibility pop
#endif
