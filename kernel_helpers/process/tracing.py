"""Following running threads by ptrace: what stopped, why, and how it goes on.

On python-ptrace's generic ``ptrace()``, which also carries the requests that it does not name. All of it belongs to
the one thread that seized the process: ptrace is per tracing thread.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import struct
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ptrace import PtraceError
from ptrace.binding.func import ptrace

from kernel_helpers.process.syscalls import Registers

PTRACE_CONT = 7
PTRACE_GETREGS = 12
PTRACE_SETREGS = 13
PTRACE_SYSCALL = 24
PTRACE_SETOPTIONS = 0x4200
PTRACE_GETEVENTMSG = 0x4201
PTRACE_GETSIGINFO = 0x4202
PTRACE_SETSIGINFO = 0x4203
PTRACE_INTERRUPT = 0x4207
PTRACE_LISTEN = 0x4208
PTRACE_GETSIGMASK = 0x420A
PTRACE_SETSIGMASK = 0x420B
PTRACE_O_TRACEEXEC = 1 << 4
PTRACE_O_TRACESECCOMP = 1 << 7
PTRACE_GET_SYSCALL_INFO = 0x420E
PTRACE_O_TRACESYSGOOD = 1
PTRACE_O_EXITKILL = 1 << 20
PTRACE_O_SUSPEND_SECCOMP = 1 << 21
PTRACE_EVENT_EXEC = 4
PTRACE_EVENT_STOP = 128

SIGINFO_SIZE = 128
SI_QUEUE = -1
SI_KERNEL = 0x80
SI_TKILL = -6

_SYS_RT_SIGQUEUEINFO = 129
_SYS_RT_TGSIGQUEUEINFO = 297
_WALL = 0x40000000
_CALL_STOP = signal.SIGTRAP | 0x80
_CALL_INFO_SIZE = 88
_libc = ctypes.CDLL(None, use_errno=True)
_followed: set[int] = set()

STOPPING = frozenset({signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
_SIGNAL_STATE = re.compile(rb"\nState:\t(.).*\nSigPnd:\t(\w+)\nShdPnd:\t(\w+)\nSigBlk:\t(\w+)\nSigIgn:\t(\w+)\nSigCgt:\t(\w+)\n", re.DOTALL)
IGNORED_BY_DEFAULT = frozenset({signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH})


class Cause(Enum):
    """Why a traced thread is reported."""

    SIGNAL = "signal"
    """signal-delivery-stop: the tracer decides what is delivered"""
    GROUP_STOP = "group stop"
    CALL = "call"
    """the begin or the end of a system call of a thread that is followed, see follow()"""
    TRAP = "trap"
    """what PTRACE_INTERRUPT, or the end of a group stop, causes"""
    EXECUTED = "executed"
    """it has another program; the thread has its process's id now, and the others have ended (PTRACE_O_TRACEEXEC)"""
    EXITED = "exited"
    KILLED = "killed"
    OTHER = "other"


@dataclass(frozen=True)
class Stop:
    """One report of waitpid about a traced thread."""

    tid: int
    cause: Cause
    number: int
    """the signal, or the exit status"""
    core: bool = False


def decode(tid: int, status: int) -> Stop:
    """Return a Stop out of waitpid's status word."""
    if os.WIFEXITED(status):
        return Stop(tid, Cause.EXITED, os.WEXITSTATUS(status))
    if os.WIFSIGNALED(status):
        return Stop(tid, Cause.KILLED, os.WTERMSIG(status), os.WCOREDUMP(status))
    number, event = os.WSTOPSIG(status), status >> 16
    if event == PTRACE_EVENT_STOP:
        return Stop(tid, Cause.GROUP_STOP if number in STOPPING else Cause.TRAP, number)
    if event == PTRACE_EVENT_EXEC:
        return Stop(tid, Cause.EXECUTED, number)
    if number == _CALL_STOP and not event:
        return Stop(tid, Cause.CALL, number)
    return Stop(tid, Cause.OTHER if event else Cause.SIGNAL, number)


def stops_for_signal(tid: int) -> bool:
    """Return whether a thread is about to report a stop for a signal that neither stops a process nor continues it. It still reports that
    afterwards (WNOWAIT)."""
    try:
        found = os.waitid(os.P_PID, tid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT | _WALL)
    except ChildProcessError:
        return False
    if found is None or found.si_code != os.CLD_TRAPPED:
        return False
    return found.si_status < 65 and found.si_status not in (*STOPPING, signal.SIGCONT)  # other stops have an event beside the number


def poll(tids: list[int]) -> list[Stop]:
    """Return what has happened to these threads since the last call; never blocks. A thread that is gone unseen is reported killed."""
    found = []
    for tid in tids:
        try:
            got, status = os.waitpid(tid, os.WNOHANG | _WALL)
        except ChildProcessError:
            found.append(Stop(tid, Cause.KILLED, signal.SIGKILL))
            continue
        if got == tid:
            found.append(decode(tid, status))
    return found


def signal_info(tid: int) -> bytes:
    """siginfo_t of a thread in signal-delivery-stop, SIGINFO_SIZE bytes."""
    buffer = ctypes.create_string_buffer(SIGINFO_SIZE)
    ptrace(PTRACE_GETSIGINFO, tid, 0, ctypes.addressof(buffer))
    return buffer.raw


def event_message(tid: int) -> int:
    """Return what the message of the event that a thread stands in; of EXECUTED, the thread's id before."""
    message = ctypes.c_ulong()
    ptrace(PTRACE_GETEVENTMSG, tid, 0, ctypes.addressof(message))
    return message.value


def set_signal_info(tid: int, info: bytes) -> None:
    """Replaces what the handler will see."""
    buffer = ctypes.create_string_buffer(info, SIGINFO_SIZE)
    ptrace(PTRACE_SETSIGINFO, tid, 0, ctypes.addressof(buffer))


def signal_mask(tid: int) -> int:
    """Return what a stopped thread blocks; bit n-1 is signal n."""
    mask = ctypes.c_uint64()
    ptrace(PTRACE_GETSIGMASK, tid, ctypes.sizeof(mask), ctypes.addressof(mask))
    return mask.value


def set_signal_mask(tid: int, mask: int) -> None:
    """Has a stopped thread block these."""
    value = ctypes.c_uint64(mask)
    ptrace(PTRACE_SETSIGMASK, tid, ctypes.sizeof(value), ctypes.addressof(value))


def is_void(number: int, pid: int, tid: int) -> bool:
    """SignalState.voids() of a thread; of other signals than stops nothing is read, so that it may have ended. Errors: OSError."""
    return number in STOPPING and signal_state(pid, tid).voids(number)


def signal_number(info: bytes) -> int:
    """Return which signal a siginfo reports."""
    return int.from_bytes(info[:4], "little")


def signal_code(info: bytes) -> int:
    """si_code."""
    return int(struct.unpack_from("<i", info, 8)[0])


def proceed(tid: int, number: int = 0) -> None:
    """Lets a stopped thread run, with a signal. A thread that died meanwhile is no error: waitpid will report it."""
    _quietly(PTRACE_SYSCALL if tid in _followed else PTRACE_CONT, tid, number)


def run(tid: int) -> None:
    """proceed(), without a stop at the next call even of a thread that is followed."""
    _quietly(PTRACE_CONT, tid, 0)


def run_to_call(tid: int) -> None:
    """Lets a stopped thread run to the begin, or the end, of its next call."""
    _quietly(PTRACE_SYSCALL, tid, 0)


def follow(tid: int) -> None:
    """From its next proceed() on the thread stops at the begin and the end of each system call, if it has PTRACE_O_TRACESYSGOOD."""
    _followed.add(tid)


def unfollow(tid: int) -> None:
    """No more."""
    _followed.discard(tid)


def call_info(tid: int) -> bytes:
    """struct ptrace_syscall_info of a thread that stands at the begin or the end of a call. Errors: PtraceError."""
    buffer = ctypes.create_string_buffer(_CALL_INFO_SIZE)
    ptrace(PTRACE_GET_SYSCALL_INFO, tid, _CALL_INFO_SIZE, ctypes.addressof(buffer))
    return buffer.raw


def listen(tid: int) -> None:
    """Leaves a thread in its group stop: state T for everybody, until SIGCONT."""
    _quietly(PTRACE_LISTEN, tid, 0)


def interrupt(tid: int) -> None:
    """Asks a running thread to stop (reported as TRAP)."""
    _quietly(PTRACE_INTERRUPT, tid, 0)


def set_options(tid: int, options: int) -> None:
    """PTRACE_SETOPTIONS on a stopped thread."""
    ptrace(PTRACE_SETOPTIONS, tid, 0, options)


def registers(tid: int) -> Registers:
    """Registers of a stopped thread, as they are now."""
    found = Registers()
    ptrace(PTRACE_GETREGS, tid, 0, ctypes.addressof(found))
    return found


def set_registers(tid: int, values: Registers) -> None:
    """Writes the registers of a stopped thread."""
    ptrace(PTRACE_SETREGS, tid, 0, ctypes.addressof(values))


def _quietly(request: int, tid: int, data: int) -> None:
    try:
        ptrace(request, tid, 0, data)
    except PtraceError as error:
        if error.errno != 3:  # ESRCH: gone, or not stopped any more because it was killed
            raise


def queue_signal(pid: int, tid: int | None, number: int, info: bytes) -> bool:
    """rt_sigqueueinfo(2) to a process, or rt_tgsigqueueinfo(2) to one thread. False if it is gone.

    The kernel takes only negative si_code other than SI_TKILL from outside (signal.c, do_rt_sigqueueinfo).
    """
    buffer = ctypes.create_string_buffer(info, SIGINFO_SIZE)
    if tid is None:
        result = _libc.syscall(_SYS_RT_SIGQUEUEINFO, pid, number, buffer)
    else:
        result = _libc.syscall(_SYS_RT_TGSIGQUEUEINFO, pid, tid, number, buffer)
    if result == 0:
        return True
    code = ctypes.get_errno()
    if code == 3:
        return False
    raise OSError(code, os.strerror(code), "rt_sigqueueinfo")


@dataclass(frozen=True)
class SignalState:
    """The signal masks of /proc/PID/task/TID/status; bit n-1 is signal n. stands: the thread is in a stop of its tracer's; runs: it has a
    processor, or waits for one."""

    pending: int
    shared_pending: int
    blocked: int
    ignored: int
    caught: int
    stands: bool = False
    runs: bool = False

    def is_blocked(self, number: int) -> bool:
        """Return whether the thread blocks it."""
        return bool(self.blocked >> (number - 1) & 1)

    def is_caught(self, number: int) -> bool:
        """Return whether a handler is installed."""
        return bool(self.caught >> (number - 1) & 1)

    def is_ignored(self, number: int) -> bool:
        """Return whether it would be dropped: ignored explicitly, or by default without a handler."""
        if self.ignored >> (number - 1) & 1:
            return True
        return number in IGNORED_BY_DEFAULT and not self.is_caught(number)

    def has(self, number: int) -> bool:
        """Return whether it is pending."""
        return bool((self.pending | self.shared_pending) >> (number - 1) & 1)

    def voids(self, number: int) -> bool:
        """Return whether SIGCONT waits, which ends what a stop signal of that number, taken before, would begin: the kernel drops those
        that wait still (signal.c, prepare_signal), of those in the hand of a tracer it does not know."""
        return number in STOPPING and self.has(signal.SIGCONT)

    def deliverable(self) -> bool:
        """Return whether something pending waits for this thread only because it is inside a call."""
        return bool((self.pending | self.shared_pending) & ~self.blocked)

    def let_in(self, mask: int) -> bool:
        """Return whether something pending is not blocked by this mask, which a call has in place of the thread's own (ppoll and its
        like)."""
        return bool((self.pending | self.shared_pending) & ~mask)

    def withheld(self, mask: int) -> bool:
        """Return whether something pending for the process is blocked by this mask, but not by the thread."""
        return bool(self.shared_pending & ~self.blocked & mask)


def is_dead(tid: int) -> bool:
    """Return whether a thread has ended. A main thread that has cannot be waited for before the other threads have been."""
    try:
        return Path(f"/proc/{tid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def processor_time(pid: int, tid: int) -> float:
    """Return seconds of processor time that a thread has used, as of its last turn or tick. Errors: ProcessLookupError if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/task/{tid}/schedstat").read_text().split()[0]) / 1e9  # sched_info; to the nanosecond
    except (FileNotFoundError, ProcessLookupError):
        pass
    try:
        fields = Path(f"/proc/{pid}/task/{tid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(3, "gone", str(tid)) from None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def signal_state(pid: int, tid: int) -> SignalState:
    """Errors: ProcessLookupError if it is gone."""
    try:
        with open(f"/proc/{pid}/task/{tid}/status", "rb", buffering=0) as status:
            text = status.read()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(3, "gone", str(tid)) from None
    found = _SIGNAL_STATE.search(text)
    if found is None:
        raise ProcessLookupError(3, "gone", str(tid))
    pending, shared, blocked, ignored, caught = (int(mask, 16) for mask in found.groups()[1:])
    return SignalState(pending, shared, blocked, ignored, caught, found[1] == b"t", found[1] == b"R")
