"""Stopping a process as a whole, and what can be done with it then."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from kernel_helpers.calls.numbers import NAMES
from kernel_helpers.common.errors import MoveRefused
from kernel_helpers.inspection import places
from kernel_helpers.process import many, many_calls, pause_loop
from kernel_helpers.process.injection.native import (
    PTRACE_O_SUSPEND_SECCOMP,
    PTRACE_O_TRACESYSGOOD,
    check,
    functions,
    read_memory,
    write_memory,
)
from kernel_helpers.process.journal import Journal, Signals
from kernel_helpers.process.syscalls import waits
from kernel_helpers.process.thread import Thread

RED_ZONE = 128
FEW = 3
"""Fewer calls are made one by one: a batch takes as long as two, however many it has."""
_CALL_ROOM = 64
"""Bytes for each call of a batch (Thread.calls)."""
DISPATCHES = "its system calls are dispatched to itself (PR_SET_SYSCALL_USER_DISPATCH)"
FILTERED = "it runs under seccomp, and farhome may not look past that here"
WALL = 0x40000000
_SYSCALL = b"\x0f\x05"


class Frozen:
    """A process all of whose threads are ptrace-stopped by this thread. As a context manager it detaches at the end."""

    def __init__(self, pid: int, threads: dict[int, Thread], instruction: int = 0) -> None:
        self.pid = pid
        self.threads = threads
        self.leader = threads[pid]
        self._instruction = 0
        self._journal: Journal | None = None
        self.batch_code = 0
        """where the code of a pause loop is, by which the leader makes many calls at once; 0: nowhere"""
        self.instruction = instruction or find_instruction(pid)

    def __enter__(self) -> Frozen:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self.threads:
            self.detach()

    @property
    def instruction(self) -> int:
        """Address of a `syscall` instruction in the process; may be changed (for the resident page)."""
        return self._instruction

    @instruction.setter
    def instruction(self, address: int) -> None:
        self._instruction = address
        for thread in self.threads.values():
            thread.instruction = address

    def keep(self, journal: Journal) -> None:
        """Before the first call: what it is is written down, and should we be killed it waits until it is put back by that. Without a
        word where there is no pause loop for it. Errors: OSError."""
        address = pause_loop.make(self)
        if address:
            self.instruction = address + pause_loop.ONE
            journal.write(self)
            self._journal = journal
            self._give_pause_loop(True)

    def end_journal(self) -> None:
        """It is as it was, or what it was does not matter any more. Errors: OSError."""
        if self._journal is not None:
            self._give_pause_loop(False)
            self._journal.end()
            self._journal = None

    def _give_pause_loop(self, is_there: bool) -> None:
        threads = tuple(self.threads.values())
        for thread in threads:
            thread.companions = threads if is_there else ()
            thread.block_companions = functools.partial(many_calls.block, threads) if is_there and len(threads) >= many.FEW else None
        if is_there:
            for error in many.set_options(threads, lambda thread: thread.options | PTRACE_O_TRACESYSGOOD).values():
                raise error
            if len(threads) >= many.FEW:
                many_calls.block(threads)

    def note_signals(self, signals: Signals) -> None:
        """These are in none of its queues, and have to be put back. Errors: OSError."""
        if self._journal is not None:
            self._journal.signals = list(signals)
            self._journal.write(self)

    def note_commit(self, node: str) -> bool:
        """It may run on that node from here on, until end_journal(): should we be killed, it waits until it does not. False: nothing is
        kept of it, and it would not wait. Errors: OSError."""
        if self._journal is None:
            return False
        self._journal.towards = node
        self._journal.write(self)
        return True

    def _note_memory(self, address: int, was: bytes | None) -> None:
        """None: it is as it was, which the next word in the journal may say: as long as nothing runs it does no harm to put it back."""
        if self._journal is not None:
            self._journal.memory.pop(address, None)
            if was is not None:
                self._journal.memory[address] = was
                self._journal.write(self)

    def read(self, address: int, size: int) -> bytes:
        """Errors: OSError EFAULT when not all of it can be read."""
        buffer = ctypes.create_string_buffer(size)
        done = 0
        while done < size:
            at = ctypes.byref(buffer, done)
            count = check(functions().inject_read(self.pid, address + done, at, size - done), f"reading {self.pid} at {address:x}")
            if not count:
                raise OSError(errno.EFAULT, f"reading {self.pid} at {address + done:x}")
            done += count
        return buffer.raw[:size]

    def write(self, address: int, data: bytes) -> None:
        """Errors: OSError EFAULT when not all of it can be written."""
        done = 0
        while done < len(data):
            rest = data[done:] if done else data
            count = check(
                functions().inject_write(self.pid, address + done, rest, len(rest)),
                f"writing {self.pid} at {address:x}",
            )
            if not count:
                raise OSError(errno.EFAULT, f"writing {self.pid} at {address + done:x}")
            done += count

    def write_forced(self, address: int, data: bytes) -> None:
        """Writes where the process itself may not. Errors: OSError."""
        write_memory(self.pid, address, data)

    @contextmanager
    def scratch(self, size: int = 4096) -> Iterator[int]:
        """Writable memory below the leader's stack pointer and red zone, 64-byte aligned; its contents come back.

        Where no memory lies below (the kernel grows a stack only for its own thread) other bytes of the stack serve.
        Errors: OSError when the stack is smaller than that.
        """
        address = (self.leader.registers.rsp - RED_ZONE - size) & ~63
        try:
            saved = self.read(address, size)
        except OSError as error:
            if error.errno != errno.EFAULT:
                raise
            address = self._stack_start()
            saved = self.read(address, size)
        self._note_memory(address, saved)
        try:
            yield address
        finally:
            try:
                self.write(address, saved)
            except ProcessLookupError:
                pass  # it ended meanwhile, and its memory with it
            self._note_memory(address, None)

    def _stack_start(self) -> int:
        """The lowest address of the mapping that the leader's stack pointer is in. Errors: OSError EFAULT."""
        pointer = self.leader.registers.rsp
        for line in Path(f"/proc/{self.pid}/maps").read_text(errors="replace").splitlines():
            start, end = (int(bound, 16) for bound in line.split(" ", 1)[0].split("-"))
            if start <= pointer < end:
                return start
        raise OSError(errno.EFAULT, f"no stack at {pointer:x} in {self.pid}")

    def call(self, number: int, *args: int) -> int:
        """One system call on the leader. Errors: OSError(errno, "mmap in 123: ...")."""
        return check(self.leader.call(number, *args), f"{NAMES.get(number, number)} in {self.pid}")

    def calls(self, wanted: Sequence[tuple[int, ...]], room: int, size: int) -> None:
        """Many system calls on the leader, each of which must succeed (number, then arguments). room: `size` bytes of its memory that can
        be used. Errors: as call()."""
        if not self.batch_code or len(wanted) < FEW:
            for number, *arguments in wanted:
                self.call(number, *arguments)
            return
        for one, result in zip(wanted, self.results(wanted, room, size), strict=True):
            if result < 0:
                check(result, f"{NAMES.get(one[0], one[0])} in {self.pid}")

    def results(self, wanted: Sequence[tuple[int, ...]], room: int, size: int) -> Iterator[int]:
        """Make the same calls where some may fail; return the result of each, as Thread.call() does. Errors: as Thread.call()."""
        if not self.batch_code or len(wanted) < FEW:
            yield from (self.leader.call(*one) for one in wanted)
            return
        at_once = size // _CALL_ROOM
        for first in range(0, len(wanted), at_once):
            yield from self.leader.batch(wanted[first : first + at_once], self.batch_code, room)

    def restore(self) -> None:
        for error in many.restore(list(self.threads.values())).values():
            raise error

    def park(self) -> None:
        """Thread.park() for all: frozen, but sound if we die. Injecting goes on to work."""
        self.restore()
        for thread in self.threads.values():
            if thread.is_in_call:
                thread.leave_call()

    def resume(self) -> None:
        """Restores every thread, then lets them run, still traced."""
        self._let_go(detach=False)

    def detach(self) -> None:
        """Restores every thread, then lets them go for good."""
        self._let_go(detach=True)
        self.threads = {}

    def _let_go(self, detach: bool) -> None:
        """What a thread that died meanwhile (SIGKILL) answers is no error: there is nothing to let go. Those that go on waiting are first:
        what the others do, signals that they send and children that they have, is to find no thread in a stop of ours, which the kernel
        passes over, and none that has not looked yet whether signals wait for the process, which may be another's."""
        dead: dict[int, Thread] = {}
        for tid, error in many.restore(list(self.threads.values())).items():
            if not isinstance(error, ProcessLookupError):
                raise error
            dead[tid] = self.threads[tid]
        alive = [thread for thread in self.threads.values() if thread.tid not in dead]
        alive.sort(key=lambda thread: not waits(thread.registers))
        wrong: dict[int, OSError] = {}
        if not detach:
            suspended = [thread for thread in alive if thread.options & PTRACE_O_SUSPEND_SECCOMP]
            wrong |= many.set_options(suspended, lambda thread: thread.options & ~PTRACE_O_SUSPEND_SECCOMP)
        wrong |= (many.detach if detach else many.resume)([thread for thread in alive if thread.tid not in wrong])
        for tid, error in wrong.items():
            if not isinstance(error, ProcessLookupError):
                raise error
            dead[tid] = self.threads[tid]
        self.end_journal()
        if detach:
            for thread in sorted(dead.values(), key=lambda thread: thread is self.leader):
                _take_death(thread)


def _take_death(thread: Thread, timeout: float = 5.0) -> None:
    """A dead tracee is hidden from its parent until its tracer has waited for it. If we are the parent, the main
    thread's death is left for the process's own wait."""
    if thread.tid == thread.pid and parent_of(thread.pid) == os.getpid():
        return
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        try:
            pid, status = os.waitpid(thread.tid, os.WNOHANG | WALL)
        except ChildProcessError:
            return
        if pid and not os.WIFSTOPPED(status):
            return
        os.sched_yield()


def parent_of(pid: int) -> int:
    """Return the id of a process's parent; 0: it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rsplit(b")", 1)[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def find_instruction(pid: int) -> int:
    """Return address of a `syscall` instruction: in the vdso, else in any executable mapping. Errors: OSError ENOEXEC."""
    asked = places.of_instructions(pid)
    candidates = [(place.path != "[vdso]", place.start, place.end) for place in asked or () if place.path != "[vsyscall]"]
    if asked is None:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
            for line in maps:
                fields = line.split(None, 5)
                if "x" in fields[1] and not line.rstrip().endswith("[vsyscall]"):
                    start, end = (int(part, 16) for part in fields[0].split("-"))
                    candidates.append((not line.rstrip().endswith("[vdso]"), start, end))
    descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for _, start, end in sorted(candidates):
            for at in range(start, end, 1 << 20):
                found = os.pread(descriptor, min(end - at, (1 << 20) + 1), at).find(_SYSCALL)
                if found >= 0:
                    return at + found
    finally:
        os.close(descriptor)
    raise OSError(errno.ENOEXEC, f"process {pid} has no syscall instruction")


def is_instruction(pid: int, address: int) -> bool:
    """Whether a `syscall` instruction is there (still)."""
    return read_memory(pid, address, len(_SYSCALL)) == _SYSCALL


def _threads_of(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, f"no process {pid}") from None


def _is_ending(pid: int, tid: int) -> bool:
    try:
        with open(f"/proc/{pid}/task/{tid}/stat", "rb") as stat:
            return stat.read().rsplit(b")", 1)[1].split()[0] in (b"Z", b"X", b"x")
    except (FileNotFoundError, ProcessLookupError):
        return True


def look_past_filters(threads: Sequence[Thread]) -> None:
    """Calls that are made in threads that stand still are not judged by their seccomp filters, until they are let go. Errors: OSError;
    MoveRefused: they have filters, and we may not."""
    try:
        for wrong in many.set_options(threads, lambda thread: thread.options | PTRACE_O_SUSPEND_SECCOMP).values():
            raise wrong
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EINVAL):
            raise
        if any(_is_filtered(thread.tid) for thread in threads):
            raise MoveRefused(threads[0].pid, FILTERED) from error


def _is_filtered(tid: int) -> bool:
    status = Path(f"/proc/{tid}/status").read_text(encoding="utf-8", errors="replace")
    return "\nSeccomp:\t" in status and "\nSeccomp:\t0\n" not in status


def seize(pid: int, options: int = 0, timeout: float = 5.0) -> Frozen:
    """Seizes and stops all threads of a process (PTRACE_SEIZE + INTERRUPT until no new thread shows up).

    `timeout`, seconds, is for all. What was seized is let go again on any error.

    Errors: ProcessLookupError (no such process, or a zombie), PermissionError (traced by somebody else, or not ours
    to trace), TimeoutError (a thread is in an uninterruptible sleep; such a thread cannot be detached from, only the
    end of the tracer sets it free), MoveRefused (not a 64-bit program, or no call can be made in it).
    """
    deadline = time.monotonic() + timeout
    threads: dict[int, Thread] = {}
    ending: set[int] = set()
    rounds = 0
    try:
        while new := [tid for tid in _threads_of(pid) if tid not in threads and tid not in ending]:
            rounds += 1
            if len(new) >= many.FEW:
                stopped, wrong = many.seize(pid, sorted(new, key=lambda tid: tid != pid), options, max(0.0, deadline - time.monotonic()))
                threads |= stopped
                for tid, error in wrong.items():
                    if not isinstance(error, (ProcessLookupError, PermissionError)) or not _is_ending(pid, tid):
                        raise error
                    ending.add(tid)
                new = []
            for tid in sorted(new, key=lambda tid: tid != pid):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    why = "makes threads faster than they can be stopped" if rounds > 2 else "has more threads than can be stopped in time"
                    raise TimeoutError(errno.ETIMEDOUT, f"process {pid} {why} ({len(threads)} have been)")
                try:
                    threads[tid] = Thread.seize(tid, pid, options, remaining)
                except (ProcessLookupError, PermissionError):
                    if not _is_ending(pid, tid):
                        raise
                    ending.add(tid)
        if pid not in threads:
            raise ProcessLookupError(errno.ESRCH, f"process {pid} has ended, or its main thread has")
        if any(thread.registers.cs != 0x33 for thread in threads.values()):
            raise MoveRefused(pid, "it is a 32-bit program")
        if any(thread.dispatches() for thread in threads.values()):
            raise MoveRefused(pid, DISPATCHES)
        look_past_filters(list(threads.values()))
        return Frozen(pid, threads)
    except BaseException:
        for thread in threads.values():
            try:
                thread.restore()
                thread.detach()
            except OSError:
                continue
        raise
