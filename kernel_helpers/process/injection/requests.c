/* Requests of ptrace to one thread, x86-64.
 *
 * Every function here returns a negative errno on failure. All of this folder must be called by the thread that seized the tracee:
 * ptrace belongs to a thread, not to a process. */
#define _GNU_SOURCE
#include "process/injection/inner.h"
#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

int inject_seize(int tid, long options)
{
	return ptrace(PTRACE_SEIZE, tid, 0, options) ? -errno : 0;
}
int inject_interrupt(int tid)
{
	return ptrace(PTRACE_INTERRUPT, tid, 0, 0) ? -errno : 0;
}
int inject_listen(int tid)
{
	return ptrace(PTRACE_LISTEN, tid, 0, 0) ? -errno : 0;
}
int inject_continue(int tid, long signal)
{
	return ptrace(PTRACE_CONT, tid, 0, signal) ? -errno : 0;
}
int inject_step(int tid)
{
	return ptrace(PTRACE_SINGLESTEP, tid, 0, 0) ? -errno : 0;
}
int inject_detach(int tid, long signal)
{
	return ptrace(PTRACE_DETACH, tid, 0, signal) ? -errno : 0;
}
int inject_set_options(int tid, long options)
{
	return ptrace(PTRACE_SETOPTIONS, tid, 0, options) ? -errno : 0;
}

int inject_get_registers(int tid, struct user_regs_struct *registers)
{
	struct iovec v = {registers, sizeof *registers};
	return ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &v) ? -errno : 0;
}

int inject_set_registers(int tid, const struct user_regs_struct *registers)
{
	struct iovec v = {(void *)registers, sizeof *registers};
	return ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &v) ? -errno : 0;
}

/* Bytes written to buffer. */
long inject_get_extended_state(int tid, void *buffer, long size)
{
	struct iovec v = {buffer, size};
	return ptrace(PTRACE_GETREGSET, tid, NT_X86_XSTATE, &v) ? -errno : (long)v.iov_len;
}

int inject_set_extended_state(int tid, const void *buffer, long size)
{
	struct iovec v = {(void *)buffer, size};
	return ptrace(PTRACE_SETREGSET, tid, NT_X86_XSTATE, &v) ? -errno : 0;
}

int inject_get_signal_mask(int tid, uint64_t *mask)
{
	return ptrace(PTRACE_GETSIGMASK, tid, 8, mask) ? -errno : 0;
}
int inject_set_signal_mask(int tid, uint64_t mask)
{
	return ptrace(PTRACE_SETSIGMASK, tid, 8, &mask) ? -errno : 0;
}
int inject_get_signal_info(int tid, siginfo_t *info)
{
	return ptrace(PTRACE_GETSIGINFO, tid, 0, info) ? -errno : 0;
}
int inject_set_signal_info(int tid, const siginfo_t *info)
{
	return ptrace(PTRACE_SETSIGINFO, tid, 0, info) ? -errno : 0;
}

int inject_rseq(int tid, struct rseq_configuration *configuration)
{
	memset(configuration, 0, sizeof *configuration);
	return ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tid, sizeof *configuration, configuration) < 0 ? -errno : 0;
}

/* Whether system calls of a stopped thread raise SIGSYS as long as it wants that (prctl, PR_SET_SYSCALL_USER_DISPATCH): then no call can be
 * made in it. Before Linux 6.4 nobody can know. */
int inject_dispatches(int tid)
{
	struct {
		uint64_t mode, selector, offset, length;
	} configuration = {0, 0, 0, 0};
	return !ptrace(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, sizeof configuration, &configuration) && configuration.mode;
}
