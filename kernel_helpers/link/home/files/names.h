/* What there is to know of the path of a call that home has made, so that the guest's node may remember it. */
#ifndef FARHOME_NAMES_H
#define FARHOME_NAMES_H
#include "link/home/files/watch.h"
#include "link/link.h"

#pragma GCC visibility push(hidden)
/* The path of a call, if what is known of it can be sent; NULL: it cannot. `follows`: whether a link at its end is followed. `image`: what was sent of the
 * call. */
const char *names_path(const struct call *call, const unsigned char *image, int *follows);
/* For whom what is sent about names is so: those of equal credentials, root and mounts. 0: for nobody. */
uint64_t names_scope(int pid);
/* What there is to know after the call of process `pid`, which has come to `value`; for the caller to free, and its size. NULL: nothing. */
struct name_answer *names_take(struct hearer *h, int pid, uint64_t scope, const char *path, int follows, int64_t value, size_t *size);
#pragma GCC visibility pop
#endif
