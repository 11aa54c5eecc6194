/* A guest for the guest's side: a process that does nothing but have memory, a part of which is seen here, too. */
#ifndef FARHOME_FUZZ_GUEST_H
#define FARHOME_FUZZ_GUEST_H
#include <stdint.h>
#include <sys/types.h>

#define GUEST_MEMORY 0x200000000000ull  /* where it is, there and here */
#define GUEST_BYTES (256u << 10)        /* nothing is mapped before it, nor behind */

/* Its pid; ends with this process. */
pid_t guest_begin(void);

#endif
