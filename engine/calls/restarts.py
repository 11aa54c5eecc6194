"""What a thread's registers do not say of the call that a stop interrupts, and what is to be read while it still waits.

Which call the kernel has restarted by restart_syscall(2): a sleep or poll that was interrupted once already (a stop, an earlier move)
shows as call 219, and its own number is nowhere in the registers. What the thread waits in shows it: /proc/PID/task/TID/wchan.

A program's own seccomp filters may not let the kernel make that call. Then the sleep or poll itself is made again, with the time that is
left.

How long it has waited: of epoll_wait, semtimedop and rt_sigtimedwait the kernel keeps nothing, they would wait their whole time again. A
thread that sleeps has done so since it last ran, and that is in /proc/PID/task/TID/sched, by the clock of its processor. These clocks
differ by whole seconds (they leave out the time that a host has taken away). So nothing is known of a thread that has come to another
processor in its sleep, as one that has just gone to sleep may (sched/fair.c, DELAY_DEQUEUE): the kernel has set that time to 0 then.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engine.context.confinement import chain, is_confined, lets_sleeps_go_on
from kernel_helpers.inspection import tasks
from kernel_helpers.process.injection.native import read_memory
from kernel_helpers.process.seizing import RED_ZONE, Frozen
from kernel_helpers.process.syscalls import ERESTART_RESTARTBLOCK, ERESTARTNOHAND, SYS, U64, Registers, arguments_of, signed, syscall_at
from kernel_helpers.process.thread import Thread
from kernel_helpers.process.tracing import signal_state

_IN_MILLISECONDS = (SYS.epoll_wait, SYS.epoll_pwait, SYS.poll)
_IN_TIMESPEC = (SYS.epoll_pwait2, SYS.semtimedop, SYS.rt_sigtimedwait, SYS.nanosleep, SYS.clock_nanosleep)
_TIMED = ("ep_poll", "epoll_wait", "semtimedop", "sigtimedwait")
"""in the names of what they wait in"""
SLEEPS = (SYS.nanosleep, SYS.clock_nanosleep)
_KEPT = ("nanosleep", "poll")
"""of which the kernel keeps the time: needed where it may not go on with them"""
_TIMEOUT = {SYS.rt_sigtimedwait: 2, SYS.nanosleep: 0, SYS.clock_nanosleep: 2, SYS.poll: 2}
"""the argument, where it is not the fourth"""
_MASKED = frozenset({SYS.ppoll, SYS.pselect6, SYS.epoll_pwait, SYS.epoll_pwait2, SYS.rt_sigsuspend})
_LONGEST = 1 << 31
"""seconds"""
_PROCESSOR_FIELD = 36
"""of /proc/PID/stat, after the name"""
_NOWHERE = ("", "0")
_ARRIVING, _PAUSE = 0.5, 0.001
"""seconds that a thread is given to get a processor; between two checks"""
_FUTEX_WAITS, _FUTEX_FLAGS = (0, 9), 0x180
"""FUTEX_WAIT, FUTEX_WAIT_BITSET; FUTEX_PRIVATE_FLAG, FUTEX_CLOCK_REALTIME"""
_ADDRESSES = 0x10000
"""Below it nothing is mapped (mmap_min_addr), so a smaller number is none."""
_CLOCKS = 64
"""Clock ids are small numbers, addresses are not."""


def waiting_places(pid: int) -> dict[int, str]:
    """tid -> the kernel function that the thread waits in, "" or "0" if it runs."""
    try:
        return {tid: place.decode("ascii", "replace") for tid, place in tasks.texts(pid, "wchan").items()}
    except OSError:
        return {}


def note_masks(frozen: Frozen) -> None:
    """Notes what threads block that the freeze has taken out of a call with a mask of its own, which is in force there still; and what
    they keep from their handlers by waiting for it. Before any call is made in them. Errors: ProcessLookupError."""
    for tid, thread in frozen.threads.items():
        at = syscall_at(thread.registers)
        if at is not None and at[0] in _MASKED:
            thread.mask_in_force = signal_state(frozen.pid, tid).blocked
        elif at is not None and at[0] == SYS.rt_sigtimedwait:
            wanted = read_memory(frozen.pid, thread.registers.rdi, 8) or bytes(8)
            thread.mask_in_force = thread.signal_mask | int.from_bytes(wanted, "little")


def is_unknown(thread: Thread, places: Mapping[int, str]) -> bool:
    """Return whether the thread stands in a call that the kernel has restarted, and where it waited in it is not known: when that was
    looked at it had been let go by the stop before, and had not got there yet."""
    place = places.get(thread.tid, "")
    return _is_restarted(thread.registers) and not thread.group_stop and place in _NOWHERE


def name_restarted_calls(frozen: Frozen, places: Mapping[int, str]) -> None:
    """Gives threads that stand in restart_syscall the number of the call that they wait in, in their registers' orig_rax. The
    kernel does not look at it when it restarts them here."""
    for tid, thread in frozen.threads.items():
        registers = thread.registers
        if _is_restarted(registers):
            place = places.get(tid, "")
            if "poll" in place:
                registers.orig_rax = SYS.poll
            elif "futex" in place:
                registers.orig_rax = SYS.futex
            elif place in _NOWHERE or "stop" in place:
                registers.orig_rax = _by_arguments(frozen.pid, registers)
            else:
                # The functions of a restarted sleep do not show: they belong to the scheduler's section or are jumped to.
                registers.orig_rax = _sleep(registers)


def _is_restarted(registers: Registers) -> bool:
    return signed(registers.orig_rax) == SYS.restart_syscall and signed(registers.rax) == ERESTART_RESTARTBLOCK


def _sleep(registers: Registers) -> int:
    return SYS.clock_nanosleep if registers.rdi < _CLOCKS else SYS.nanosleep


def _by_arguments(pid: int, registers: Registers) -> int:
    """Which of the calls that the kernel restarts so has these arguments: it is in none of them at the moment, and nothing else shows it.
    Each of them is given a time, by its address or in milliseconds."""
    if _is_poll(pid, registers):
        return SYS.poll
    if registers.rdi < _CLOCKS:
        return SYS.clock_nanosleep
    is_wait = registers.rsi & ~_FUTEX_FLAGS & U64 in _FUTEX_WAITS and _is_time(pid, registers.r10)
    if is_wait and (registers.rsi or read_memory(pid, registers.rdi, 4) == (registers.rdx & 0xFFFFFFFF).to_bytes(4, "little")):
        return SYS.futex
    return SYS.nanosleep


def _is_poll(pid: int, registers: Registers) -> bool:
    """Of the files that it would wait for, the first few."""
    if not 0 < registers.rdx < 1 << 31:
        return False
    if not registers.rsi:
        return not _is_time(pid, registers.rdi)
    polled = read_memory(pid, registers.rdi, 8 * min(registers.rsi, 16)) if registers.rsi < _ADDRESSES else None
    return polled is not None and all(
        -1 <= number < 1 << 20 and 0 < events < 1 << 14 for number, events, _ in struct.iter_unpack("<ihh", polled)
    )


def _is_time(pid: int, address: int) -> bool:
    there = read_memory(pid, address, 16) if address else None
    seconds, nanoseconds = struct.unpack("<qq", there) if there is not None else (-1, 0)
    return bool(seconds >= 0 and 0 <= nanoseconds < 1_000_000_000)


def await_places(pid: int, tids: Collection[int]) -> None:
    """Waits until threads that have just been let go wait somewhere, or have gone on; a moment at most."""
    end = time.monotonic() + _ARRIVING
    while time.monotonic() < end:
        places = waiting_places(pid)
        if not any(places.get(tid, "gone") in _NOWHERE for tid in tids):
            return
        time.sleep(_PAUSE)


@dataclass(frozen=True)
class TimedWait:
    """A thread that waits in such a call: number and arguments, how often it had gone to sleep, until when (CLOCK_MONOTONIC, ns)."""

    number: int
    arguments: tuple[int, ...]
    sleeps: int
    deadline: int


def timed_waits(pid: int, places: dict[int, str]) -> dict[int, TimedWait]:
    """tid -> the call, for those of which all is known. `places`: of waiting_places()."""
    found = {}
    names: tuple[str, ...] = _TIMED
    with suppress(FileNotFoundError, ProcessLookupError):
        names += _KEPT if is_confined(pid) else ()
    for tid, place in places.items():
        if any(name in place for name in names):
            try:
                wait = _timed_wait(pid, tid)
            except (OSError, ValueError, KeyError, IndexError):
                continue  # it has gone on; or this kernel does not report it: the call begins its time anew
            if wait is not None:
                found[tid] = wait
    return found


def deadlines(frozen: Frozen, waits: dict[int, TimedWait]) -> dict[int, int]:
    """tid -> until when its call is to wait, for the threads that the freeze has taken out of the very call that was seen."""
    found = {}
    for tid, wait in waits.items():
        thread = frozen.threads.get(tid)
        at = syscall_at(thread.registers) if thread is not None else None
        if thread is None or at is None or at[0] != wait.number or arguments_of(thread.registers) != wait.arguments:
            continue
        try:
            sleeps = _sleeps(_scheduling(f"/proc/{frozen.pid}/task/{tid}/sched"))
        except (OSError, ValueError, KeyError):
            continue
        if sleeps == wait.sleeps + 1:  # the stop itself
            found[tid] = wait.deadline
    return found


def shorten(frozen: Frozen, ends: dict[int, int]) -> None:
    """The process stays here: calls that take milliseconds in a register are made again with what is left, and sleeps and polls too that
    a filter does not let go on."""
    for tid, thread in frozen.threads.items():
        registers, deadline = thread.registers, ends.get(tid)
        number = signed(registers.orig_rax)
        if number >= 0 and signed(registers.rax) == ERESTART_RESTARTBLOCK:
            with suppress(ProcessLookupError):
                if not lets_sleeps_go_on([chain(tid)]):
                    make_again(frozen, thread, number, deadline)
        elif deadline is not None and number in _IN_MILLISECONDS:
            registers.r10 = max(0, -((time.monotonic_ns() - deadline) // 1_000_000))


def make_again(frozen: Frozen, thread: Thread, number: int, deadline: int | None) -> None:
    """A thread begins its call anew, to wait until the deadline if that is known. A time in memory goes below the stack: the kernel reads
    it before anything else can be there."""
    registers = thread.registers
    if number == SYS.futex:
        registers.rax, registers.orig_rax = 0, U64  # a spurious wake-up, which it allows
        return
    registers.rax = ERESTARTNOHAND & U64
    left = max(0, deadline - time.monotonic_ns()) if deadline is not None else None
    if left is None:
        return
    if number == SYS.poll:
        registers.rdx = -(-left // 1_000_000)
        return
    address = (registers.rsp - RED_ZONE - 16) & ~15
    with suppress(OSError):
        frozen.write(address, struct.pack("<QQ", *divmod(left, 1_000_000_000)))
        if number == SYS.nanosleep:
            registers.rdi = address
        else:
            registers.rdx = address


def _timed_wait(pid: int, tid: int) -> TimedWait | None:
    task = Path(f"/proc/{pid}/task/{tid}")
    scheduling = _scheduling(task / "sched")
    words = (task / "syscall").read_text().split()
    number, arguments = int(words[0]), tuple(int(word, 16) for word in words[1:7])
    if number == SYS.clock_nanosleep and arguments[1]:
        return None  # until a time, whenever it is made
    limit = _limit(pid, number, arguments[_TIMEOUT.get(number, 3)])
    if not limit:
        return None
    processor = int((task / "stat").read_text().rpartition(")")[2].split()[_PROCESSOR_FIELD])
    since, again = _clock_of(processor) - _last_ran(scheduling), _scheduling(task / "sched")
    if since < 0 or not _last_ran(again) or (_last_ran(again), _sleeps(again)) != (_last_ran(scheduling), _sleeps(scheduling)):
        return None
    return TimedWait(number, arguments, _sleeps(scheduling), time.monotonic_ns() - since + limit)


def _limit(pid: int, number: int, argument: int) -> int:
    """How long the call may wait, ns; 0: it has no limit, or is another one. Errors: OSError."""
    if number in _IN_MILLISECONDS:
        milliseconds = argument & 0xFFFFFFFF
        return milliseconds * 1_000_000 if milliseconds < 1 << 31 else 0
    if number not in _IN_TIMESPEC or not argument:
        return 0
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        limit = os.pread(memory.fileno(), 16, argument)
    return min(int.from_bytes(limit[:8], "little"), _LONGEST) * 1_000_000_000 + int.from_bytes(limit[8:], "little")


def _clock_of(processor: int) -> int:
    """The scheduler's clock of a processor, ns: we go there, so that it is when we began to run. Errors: OSError."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    try:
        return _last_ran(_scheduling("/proc/thread-self/sched"))
    finally:
        os.sched_setaffinity(0, before)


def _scheduling(path: Path | str) -> dict[str, str]:
    """Lines `name : value`. Errors: OSError."""
    lines = Path(path).read_text().splitlines()
    return {name.strip(): value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}


def _last_ran(scheduling: dict[str, str]) -> int:
    whole, _, rest = scheduling["se.exec_start"].partition(".")
    return int(whole) * 1_000_000 + int(rest)


def _sleeps(scheduling: dict[str, str]) -> int:
    return int(scheduling["nr_voluntary_switches"])
