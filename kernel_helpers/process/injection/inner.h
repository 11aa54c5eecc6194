/* What the files of this folder have from one another: one is in each of them what it is named after. */
#ifndef FARHOME_INJECTION_INNER_H
#define FARHOME_INJECTION_INNER_H
#include "process/injection/inject.h"
#include <stdint.h>
#include <sys/ptrace.h>

#ifndef PTRACE_GET_RSEQ_CONFIGURATION
#define PTRACE_GET_RSEQ_CONFIGURATION 0x420f
#endif
#ifndef PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG
#define PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG 0x4211
#endif
#ifndef PTRACE_SECCOMP_GET_FILTER
#define PTRACE_SECCOMP_GET_FILTER 0x420c
#endif
#define EVENT_STOP 128 /* PTRACE_EVENT_STOP: INTERRUPT, group stop, or the first stop of a new tracee */
#define FIRST_YIELDS 40
#define NOT_MADE INT64_MIN

struct rseq_configuration {
	uint64_t pointer;
	uint32_t size, signature, flags, pad;
};

/* wait.c */
int64_t inject_now_us(void);
void inject_give_way(long tries);
int inject_has_stopped(int tid, int *status);
int inject_wait(int tid, int64_t timeout_us, int *status);

/* requests.c */
int inject_interrupt(int tid);
int inject_continue(int tid, long signal);
int inject_get_registers(int tid, struct user_regs_struct *registers);
int inject_set_registers(int tid, const struct user_regs_struct *registers);
int inject_set_signal_mask(int tid, uint64_t mask);
int inject_get_signal_info(int tid, siginfo_t *info);

/* memory.c */
long inject_read(int pid, uint64_t address, void *buffer, long size);

#endif
