"""System calls as a thread's registers show them: their numbers, arguments and results, and those that a stop has interrupted."""

from __future__ import annotations

import ctypes
import errno

from kernel_helpers.calls.numbers import NUMBERS

U64 = (1 << 64) - 1

ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK = -512, -513, -514, -516
"""What a call that is not over gives to its kernel, and never to the program (linux/errno.h)."""
RESTART_CODES = (ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK)


class _Numbers(dict[str, int]):
    """System-call numbers: SYS["mmap"] or SYS.mmap."""

    def __init__(self, numbers: dict[str, int]) -> None:
        super().__init__(numbers)
        self.__dict__.update(numbers)  # what is asked for thousands of times in a move

    def __getattr__(self, name: str) -> int:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


SYS = _Numbers(NUMBERS)

# Calls that a ptrace stop ends with EINTR, restart or not (signal(7), "interrupted even with SA_RESTART", less those
# that the kernel restarts when no handler runs).
_INTERRUPTED_BY_STOP = frozenset(
    SYS[name]
    for name in (
        "epoll_wait", "epoll_pwait", "epoll_pwait2", "rt_sigtimedwait", "semop", "semtimedop", "msgsnd", "msgrcv",
        "io_getevents", "io_pgetevents",
    )
)  # fmt: skip


_WAITING = _INTERRUPTED_BY_STOP | {
    SYS[name]
    for name in (
        "futex", "poll", "ppoll", "select", "pselect6", "nanosleep", "clock_nanosleep", "wait4", "waitid", "pause", "rt_sigsuspend",
        "readv", "recvfrom", "recvmsg", "accept", "accept4", "restart_syscall",
    )
}  # fmt: skip
"""In which threads stand that have nothing to do. Without read(2): its number is 0, as that of much else is."""

_ENDED_BY_SIGNALS = _WAITING | {
    SYS[name]
    for name in (
        "read", "write", "writev", "preadv", "pwritev", "preadv2", "pwritev2", "sendto", "sendmsg", "recvmmsg", "sendmmsg", "connect",
        "mq_timedsend", "mq_timedreceive", "flock", "fcntl", "open", "openat", "openat2", "getrandom", "splice", "tee", "vmsplice",
        "copy_file_range", "sendfile", "io_uring_enter",
    )
}  # fmt: skip
"""Calls that a signal ends when it comes while they wait (signal(7))."""

SYSCALL = b"\x0f\x05"
"""The instruction."""

_NEVER_BLOCKED = 1 << 8 | 1 << 18  # SIGKILL, SIGSTOP


class Registers(ctypes.Structure):
    """struct user_regs_struct: every field an unsigned 64-bit number; signed() for results."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "r15",
            "r14",
            "r13",
            "r12",
            "rbp",
            "rbx",
            "r11",
            "r10",
            "r9",
            "r8",
            "rax",
            "rcx",
            "rdx",
            "rsi",
            "rdi",
            "orig_rax",
            "rip",
            "cs",
            "eflags",
            "rsp",
            "ss",
            "fs_base",
            "gs_base",
            "ds",
            "es",
            "fs",
            "gs",
        )
    ]

    def copy(self) -> Registers:
        return Registers.from_buffer_copy(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Registers) and bytes(self) == bytes(other)

    __hash__ = None  # type: ignore[assignment]


def signed(value: int) -> int:
    """Return a register's 64 bits as a signed number."""
    if 0 <= value < 1 << 63:
        return value
    value &= U64
    return value - (1 << 64) if value >> 63 else value


def is_ended_by_stop(registers: Registers) -> bool:
    """Return whether they are those of a call that a mere ptrace stop has ended with EINTR."""
    return signed(registers.rax) == -errno.EINTR and signed(registers.orig_rax) in _INTERRUPTED_BY_STOP


def normalise_restart(registers: Registers) -> int:
    """Turns, in place, the registers of an interrupted call into plain user mode at its `syscall` instruction, so that
    the call is simply made (again) wherever they are loaded.

    Returns the restart code that was found (-512 .. -516, or -EINTR for the calls that a ptrace stop ends with EINTR),
    or 0. A relative FUTEX_WAIT (-516: its remaining time lives in the kernel) becomes a spurious wake-up with result 0,
    which futex(2) allows and every user of it has to expect; being waited for anew it would wait its whole time again.
    """
    code = signed(registers.rax)
    number = signed(registers.orig_rax)
    if number < 0:
        return 0
    found = 0
    if code == ERESTART_RESTARTBLOCK and number == SYS.futex:
        registers.rax = 0
        found = code
    elif code in RESTART_CODES or (code == -errno.EINTR and number in _INTERRUPTED_BY_STOP):
        registers.rax = registers.orig_rax
        registers.rip -= 2
        found = code
    registers.orig_rax = U64
    return found


def carry_restart(registers: Registers) -> None:
    """Turns, in place, the registers of an interrupted call into a form in which any kernel decides, as the one that interrupted it
    would have: with a signal's handler to run the call ends with EINTR (or is made again, by SA_RESTART), without one it is made
    again. They have to be loaded at a stop in get_signal(), which every ptrace stop but those of a call is.

    What only the kernel that interrupted it could go on with (-516, and EINTR by the mere stop) is carried as ERESTARTNOHAND.
    """
    code, number = signed(registers.rax), signed(registers.orig_rax)
    if number >= 0 and code in RESTART_CODES[:3]:
        return
    if number >= 0 and number != SYS.futex and (code in RESTART_CODES or (code == -errno.EINTR and number in _INTERRUPTED_BY_STOP)):
        registers.rax = ERESTARTNOHAND & U64
        return
    normalise_restart(registers)


def put_back(registers: Registers, own: int, in_force: int) -> None:
    """Puts an interrupted call that blocks more for its time (in_force) than its thread does (own), ppoll and its like, back to before it:
    where the thread goes on a signal that the call does not let in would end it, since the mask of a call is not carried."""
    if in_force & ~own & ~_NEVER_BLOCKED and syscall_at(registers) is not None:
        normalise_restart(registers)


def before_call(registers: Registers) -> int | None:
    """Return the number of the call, of those that a signal can end, that a thread in user mode makes next if it stands at a `syscall`
    instruction; None: it makes no such call."""
    number = signed(registers.rax)
    return number if signed(registers.orig_rax) < 0 and number in _ENDED_BY_SIGNALS else None


ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
"""The registers that hold the arguments of a call."""


def arguments_of(registers: Registers) -> tuple[int, int, int, int, int, int]:
    """Of the call that a stop interrupted."""
    r = registers
    return r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9


def syscall_at(registers: Registers) -> tuple[int, int] | None:
    """(number, restart code) of the call that a stop interrupted, or None."""
    number, code = signed(registers.orig_rax), signed(registers.rax)
    if number >= 0 and (code in RESTART_CODES or (code == -errno.EINTR and number in _INTERRUPTED_BY_STOP)):
        return number, code
    return None


def waits(registers: Registers) -> bool:
    """Return whether a thread that stands still is likely to wait again when it goes on: it was stopped in a call that waits, or makes it
    anew."""
    return (registers.rax if signed(registers.orig_rax) < 0 else registers.orig_rax) in _WAITING
