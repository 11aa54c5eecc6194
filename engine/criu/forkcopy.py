"""A stopped copy of a frozen process, with all its threads and without any descriptor, made by injection.

The copy is what CRIU dumps, so that the process itself stays untouched, frozen, and able to go on at any moment.

    process (ptrace-stopped) ── intermediate (shares its memory, never runs) ── copy (own memory, group-stopped)

Where the process is to run on while CRIU dumps (`apart`), the intermediate is an orphan without descriptors: then nothing of this hangs on
the process any more.

The intermediate stands between the two because the kernel informs a parent of its child's stop by SIGCHLD whatever the
child's exit signal is; the program must not see a SIGCHLD of a child it never had. The intermediate also ties the copy's
life to the tracer's: PTRACE_O_EXITKILL ends it with us, PR_SET_PDEATHSIG ends the copy with it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.criu.clone import CLONE_FILES, CLONE_FS, CLONE_OF_THREAD, CLONE_VM, clone_task, inner_id, tasks
from engine.files.files import mappings
from kernel_helpers.common.errors import MoveRefused
from kernel_helpers.process.injection.native import check
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS, normalise_restart
from kernel_helpers.process.thread import Thread

CLOSE_RANGE_UNSHARE = 2
PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_GET_TID_ADDRESS = 40
PTRACE_O_EXITKILL = 1 << 20
MADV_DONTNEED = 4
WALL = 0x40000000

_SCRATCH = 512
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class ThreadState:
    """What a thread registered with the kernel and neither registers nor memory show."""

    name: bytes
    robust_list: tuple[int, int]  # head, length
    tid_address: int
    rseq: tuple[int, int, int]  # pointer, size, signature
    alternate_stack: bytes  # stack_t


@dataclass
class Copy:
    """A group-stopped, untraced copy. `pid` and the values of `threads` are ids of this process's pid namespace."""

    pid: int
    threads: dict[int, int]  # tid of the source -> tid of the copy
    source: Frozen = field(repr=False)
    intermediate: Thread | None = field(repr=False, default=None)
    inner_pid: int = 0  # as the process's own pid namespace sees it
    inner_intermediate: int = 0
    inner_tids: dict[int, int] = field(default_factory=dict)  # tid of the source -> as it sees it itself
    is_apart: bool = False  # the intermediate is no child of the source

    def discard(self, timeout: float = 10.0) -> None:
        """Ends the copy and whatever was made for it; nothing is left, no zombie either. Safe to call twice, and after
        CRIU has killed the copy. Errors: TimeoutError."""
        intermediate, self.intermediate = self.intermediate, None
        if intermediate is None:
            return
        if self.pid:
            _kill(self.pid)
            _reap_tracee(self.pid)
            try:
                _injected_wait(intermediate, self.inner_pid, timeout)
            except ProcessLookupError:
                pass  # the intermediate is gone too: init has the copy
        if self.is_apart:
            _kill(intermediate.tid)
            _reap_tracee(intermediate.tid, timeout)
        else:
            _end_intermediate(self.source, intermediate, self.inner_intermediate, timeout)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _injected_wait(parent: Thread, inner_pid: int, timeout: float) -> None:
    previous, parent.call_timeout = parent.call_timeout, timeout
    try:
        result = parent.call(SYS.wait4, inner_pid, 0, WALL, 0)
    finally:
        parent.call_timeout = previous
    if result < 0 and result != -errno.ECHILD:
        check(result, f"wait4 in {parent.tid}")


def _reap_tracee(tid: int, timeout: float = 10.0) -> None:
    """Takes the death of a killed tracee of ours, after which its parent can reap it; nothing when it is no tracee."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            pid, status = os.waitpid(tid, os.WNOHANG | WALL)
        except ChildProcessError:
            return
        if pid and (os.WIFSIGNALED(status) or os.WIFEXITED(status)):
            return
        os.sched_yield()
    raise TimeoutError(errno.ETIMEDOUT, f"{tid} does not end")


def _end_intermediate(source: Frozen, intermediate: Thread, inner_intermediate: int, timeout: float) -> None:
    _kill(intermediate.tid)
    _reap_tracee(intermediate.tid, timeout)
    try:
        _injected_wait(source.leader, inner_intermediate, timeout)
        source.leader.park()
    except ProcessLookupError:
        pass  # the source was killed meanwhile


def thread_state(thread: Thread, memory: Frozen, scratch: int) -> ThreadState:
    """Reads a stopped thread's registrations, by injected calls where nothing else shows them."""
    name = Path(f"/proc/{thread.pid}/task/{thread.tid}/comm").read_bytes()[:-1]
    head, length = ctypes.c_uint64(), ctypes.c_uint64()
    if _libc.syscall(SYS.get_robust_list, thread.tid, ctypes.byref(head), ctypes.byref(length)):
        raise OSError(ctypes.get_errno(), f"get_robust_list of {thread.tid}")
    check(thread.call(SYS.prctl, PR_GET_TID_ADDRESS, scratch), f"PR_GET_TID_ADDRESS in {thread.tid}")
    (tid_address,) = struct.unpack("<Q", memory.read(scratch, 8))
    check(thread.call(SYS.sigaltstack, 0, scratch), f"sigaltstack in {thread.tid}")
    alternate_stack = memory.read(scratch, 24)
    rseq = thread.rseq()
    return ThreadState(name, (head.value, length.value), tid_address, (rseq.pointer, rseq.size, rseq.signature), alternate_stack)


def _dress_thread(thread: Thread, origin: Thread, state: ThreadState, memory: Frozen, scratch: int) -> None:
    """Gives a thread of the copy everything that its origin has. (The leader needs it too: it comes from the intermediate, and
    a clone that shares memory starts without restartable sequence and alternate stack.)"""
    if state.robust_list[0]:
        check(thread.call(SYS.set_robust_list, *state.robust_list), f"set_robust_list in {thread.tid}")
    if state.tid_address:
        check(thread.call(SYS.set_tid_address, state.tid_address), f"set_tid_address in {thread.tid}")
    pointer, size, rseq_signature = state.rseq
    if pointer:
        check(thread.call(SYS.rseq, pointer, size, 0, rseq_signature), f"rseq in {thread.tid}")
    memory.write(scratch, state.alternate_stack)
    check(thread.call(SYS.sigaltstack, scratch, 0), f"sigaltstack in {thread.tid}")
    memory.write(scratch, state.name + b"\0")
    check(thread.call(SYS.prctl, PR_SET_NAME, scratch), f"PR_SET_NAME in {thread.tid}")
    thread.set_extended_state(origin.extended_state())


def wiped_ranges(pid: int) -> list[tuple[int, int]]:
    """Memory that fork() leaves empty in the child (MADV_WIPEONFORK), except what the kernel may drop at any time
    anyway (MAP_DROPPABLE). Walks the page tables: some ms per GiB, so ask before freezing when that matters."""
    found = []
    span = (0, 0)
    with open(f"/proc/{pid}/smaps", "rb") as smaps:
        for line in smaps:
            if line.startswith(b"VmFlags:"):
                flags = line.split()[1:]
                if b"wf" in flags and b"dp" not in flags:
                    found.append(span)
            elif b"-" in line.split(b" ", 1)[0]:
                start, end = line.split(b" ", 1)[0].split(b"-")
                span = (int(start, 16), int(end, 16))
    return found


def fork_copy(
    frozen: Frozen, wiped: list[tuple[int, int]] | None = None, hollow: Sequence[tuple[int, int]] = (), apart: bool = False
) -> Copy:
    """Return a copy of `frozen`, group-stopped and untraced, no instruction of the program executed in it.

    The source stays frozen and unharmed: what restore() would write back is unchanged. Seize a process that runs under
    a seccomp filter of ours with PTRACE_O_SUSPEND_SECCOMP; the copy inherits the option. `wiped`: what wiped_ranges()
    known (asked here when None). `hollow`: memory that is to be empty in the copy. `apart`: the source may be let go while the copy
    stays; it must not be one that orphans come to (PR_SET_CHILD_SUBREAPER).

    Errors: OSError, MoveRefused (memory that cannot be copied); nothing is left then.
    """
    if wiped is None:
        wiped = wiped_ranges(frozen.pid)
    copy: Copy | None = None
    try:
        with frozen.scratch(_SCRATCH) as scratch:
            original = frozen.read(scratch, _SCRATCH)
            states = {tid: thread_state(thread, frozen, scratch) for tid, thread in frozen.threads.items()}
            intermediate, inner_intermediate = _make_intermediate(frozen, scratch)
            copy = Copy(0, {}, frozen, intermediate, 0, inner_intermediate, {tid: inner_id(tid) for tid in frozen.threads})
            if apart:
                intermediate = _set_apart(copy, scratch)
            children = f"/proc/{intermediate.tid}/task/{intermediate.tid}/children"
            copy.pid, copy.inner_pid = clone_task(intermediate, frozen, scratch, CLONE_FILES, set(), children)
            tasks = _furnish(frozen, copy.pid, states, scratch)
        # The program's own bytes where the injection had its scratch, and what fork() leaves empty.
        tasks.write(scratch, original)
        _refuse_missing_memory(frozen.pid, copy.pid)
        for start, end in wiped:
            _copy_memory(frozen, tasks, start, end)
        for start, end in hollow:
            tasks.call(SYS.madvise, start, end - start, MADV_DONTNEED)
        copy.threads = dict(zip(frozen.threads, tasks.threads, strict=True))
        _stop_and_let_go(frozen, tasks)
        # What follows takes long. Should we die meanwhile, the process goes on as if nothing had been.
        frozen.park()
        return copy
    except BaseException:
        if copy is not None:
            copy.discard()
        raise


def _make_intermediate(frozen: Frozen, scratch: int) -> tuple[Thread, int]:
    children = f"/proc/{frozen.pid}/task/{frozen.pid}/children"
    known = set(tasks(children))
    tid, inner = clone_task(frozen.leader, frozen, scratch, CLONE_VM | CLONE_FS | CLONE_FILES, known, children)
    intermediate = Thread.adopt(tid, tid)
    intermediate.instruction = frozen.instruction
    intermediate.set_options(PTRACE_O_EXITKILL | frozen.leader.options)
    return intermediate, inner


def _set_apart(copy: Copy, scratch: int) -> Thread:
    """Puts a child of the intermediate in its place, and ends it: the child's parent is init then. Returns the new one."""
    first, inner_first = copy.intermediate, copy.inner_intermediate
    assert first is not None
    listing = f"/proc/{first.tid}/task/{first.tid}/children"
    tid, inner = clone_task(first, copy.source, scratch, CLONE_VM | CLONE_FS | CLONE_FILES, set(), listing)
    intermediate = Thread.adopt(tid, tid)
    intermediate.instruction = first.instruction
    intermediate.set_options(first.options)
    copy.intermediate, copy.inner_intermediate, copy.is_apart = intermediate, inner, True
    _end_intermediate(copy.source, first, inner_first, 10.0)
    check(intermediate.call(SYS.close_range, 0, 0xFFFFFFFF, CLOSE_RANGE_UNSHARE), f"close_range in {tid}")
    check(intermediate.call(SYS.unshare, CLONE_FS), f"unshare in {tid}")
    check(intermediate.call(SYS.setsid), f"setsid in {tid}")  # the ids of the process's session and group are free as soon as it has ended
    return intermediate


def _furnish(source: Frozen, pid: int, states: dict[int, ThreadState], scratch: int) -> Frozen:
    """Makes the new, still single-threaded and traced child a full copy; threads in the order of the source's."""
    leader = Thread.adopt(pid, pid)
    copy = Frozen(pid, {pid: leader}, source.instruction)
    # No descriptor is ever copied: the table was shared until here, and the new one is empty.
    copy.call(SYS.close_range, 0, 0xFFFFFFFF, CLOSE_RANGE_UNSHARE)
    copy.call(SYS.prctl, PR_SET_PDEATHSIG, signal.SIGKILL)
    copy.write(scratch, b"/\0")
    copy.call(SYS.chdir, scratch)
    copy.call(SYS.setsid)
    listing = f"/proc/{pid}/task"
    ordered = {}
    for tid, origin in source.threads.items():
        if tid == source.pid:
            thread = leader
        else:
            new, _ = clone_task(leader, copy, scratch, CLONE_OF_THREAD, set(copy.threads), listing)
            thread = copy.threads[new] = Thread.adopt(new, pid)
            thread.instruction = source.instruction
        ordered[thread.tid] = thread
        # From here on this is what calls are made with (sigaltstack looks at the stack pointer) and restore() loads.
        thread.registers = origin.registers.copy()
        thread.signal_mask = origin.signal_mask
        thread.rseq_section = origin.rseq_section
        _dress_thread(thread, origin, states[tid], copy, scratch)
        normalise_restart(thread.registers)
    copy.threads = ordered
    return copy


def _refuse_missing_memory(source: int, copy: int) -> None:
    """Memory that fork() does not give to the child (MADV_DONTFORK) would be missing in the guest."""
    there = _spans(copy)
    known = set(there)
    for start, end in _spans(source):
        # In the copy two neighbours may be one mapping.
        if (start, end) not in known and not _covered(start, end, there):
            raise MoveRefused(source, f"its memory at {start:x} is not passed on by fork (MADV_DONTFORK)")


def _spans(pid: int) -> list[tuple[int, int]]:
    return [(mapping.start, mapping.end) for mapping in mappings(pid)]


def _covered(start: int, end: int, spans: list[tuple[int, int]]) -> bool:
    for first, last in spans:
        if first <= start < last:
            start = last
    return start >= end


def _copy_memory(source: Frozen, target: Frozen, start: int, end: int) -> None:
    step = 1 << 20
    for at in range(start, end, step):
        target.write_forced(at, source.read(at, min(step, end - at)))


def _stop_and_let_go(source: Frozen, copy: Frozen) -> None:
    """Leaves the copy group-stopped and untraced.

    Every thread's last stop is a signal-delivery-stop (of an injected call's step), so the leader's DETACH can carry
    SIGSTOP: that begins a group stop, which the others, still in their traps, join when they are detached. Each is awaited: a thread
    that CRIU seizes just before it stops reports one stop for both, and CRIU, which lets go of the first, waits for a second in vain.
    """
    copy.restore()
    _detach(copy.leader, signal.SIGSTOP)
    deadline = time.monotonic() + 10
    _await_stop(source, copy.leader, deadline)
    others = [thread for thread in copy.threads.values() if thread is not copy.leader]
    for thread in others:
        _detach(thread, 0)
    for thread in others:
        _await_stop(source, thread, deadline)


def _await_stop(source: Frozen, thread: Thread, deadline: float) -> None:
    while _state(thread.tid) != "T":
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, f"thread {thread.tid} of the copy of {source.pid} does not stop")
        os.sched_yield()


def _detach(thread: Thread, number: int) -> None:
    thread.take_in_hand()
    thread.detach(number)


def _state(tid: int) -> str:
    return Path(f"/proc/{tid}/stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()[0]
