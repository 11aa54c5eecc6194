"""Taking the user context out of a frozen process. The process is not changed; only its pages go through a socket."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import resource
import signal
import struct
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as Dictionary
from contextlib import contextmanager, suppress

from engine.context import altstack, identities, keys
from engine.context.checked import ACTION_BYTES, SIGINFO_BYTES, SIGNALS
from engine.context.confinement import chain
from engine.context.context import Context, Identity, MemoryLayout, Rseq, ThreadContext, made
from engine.context.crowd import call_in
from engine.context.marks import future_locks, guards_of
from engine.mappings.address_space import Maps, exceptional, read_mappings_quickly
from engine.mappings.layout import page_ranges
from engine.mappings.mappings import PAGE, Mapping
from engine.memory import alone
from kernel_helpers.inspection import tasks
from kernel_helpers.pages.pages import PageTotals, Splicer, send_own_pages
from kernel_helpers.process import many, many_calls, pause_loop, tracing
from kernel_helpers.process.injection.native import check, comes_again
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS, Registers, carry_restart, put_back
from kernel_helpers.process.thread import Thread
from kernel_helpers.process.tracing import signal_state
from kernel_helpers.stream.stream import Connection

_PTRACE_PEEKSIGINFO = 0x4209
_PEEK_SHARED = 1
_PR_GET_TID_ADDRESS = 40
_PR_GET_NAME = 16
_NO_RSEQ = {"address": 0, "size": 0, "signature": 0}
_SAID = struct.Struct("<QQIIQ16s")
_CAP_IPC_LOCK = 14
_MEMBARRIER_GET_REGISTRATIONS = 1 << 9
_RSEQ_CS = 8  # offset of rseq_cs in struct rseq
_PROT_READ_WRITE = 3
_MAP_PRIVATE_ANONYMOUS = 0x22

# signals whose action cannot be set, and that cannot wait in a context
_UNCATCHABLE = frozenset({signal.SIGKILL, signal.SIGSTOP})

SIG_IGN = 1
NO_LIMIT = (1 << 64) - 1
# as /proc/PID/limits names them
_LIMITS_OF_MEMORY = {
    "Max stack size": resource.RLIMIT_STACK, "Max address space": resource.RLIMIT_AS, "Max data size": resource.RLIMIT_DATA,
    "Max locked memory": resource.RLIMIT_MEMLOCK,
}  # fmt: skip

_libc = ctypes.CDLL(None, use_errno=True)


class _PeekArguments(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("flags", ctypes.c_uint32), ("count", ctypes.c_int32)]


def capture(
    frozen: Frozen, regs_carried: bool = True, has_run: bool = True, objects: Dictionary[str, str] | None = None, beneath: int = 0,
    known: Maps | None = None,
) -> Context:  # fmt: skip
    """Return the context of a process all of whose threads are stopped. It may run under our own filter, seized with
    PTRACE_O_SUSPEND_SECCOMP.

    regs_carried: calls that the stop interrupted are such that any kernel ends them with EINTR or makes them again
    (syscalls.carry_restart); otherwise registers are as the stop found them.
    has_run: else it stands at the first instruction of its program.
    objects: of a guest, what it calls those of its memory that it has mapped shared (engine/memory/alone.py).
    beneath: how many of its seccomp filters, the oldest, are farhome's.
    known: its mappings, as read_mappings_quickly() has them.

    Errors: MoveRefused, OSError (ProcessLookupError: it has ended). The process can go on as if nothing had been.
    """
    maps, shared = alone.named(frozen.pid, known if known is not None else read_mappings_quickly(frozen.pid), objects)
    for thread in frozen.threads.values():
        _abort_restartable_sequence(frozen, thread)
    with scratch_page(frozen, size=2 * PAGE) as scratch:
        actions = _signal_actions(frozen, scratch) if has_run else _first_actions(frozen.pid)
        brk = frozen.call(SYS.brk, 0)
        may_have_keys = has_run and keys.exist()
        taken = [*Maps.of(maps).spans, (scratch, scratch + 2 * PAGE)] if may_have_keys else []
        allocated, keyed = keys.of(frozen, taken, scratch) if may_have_keys else (0, ())
    threads = _threads(frozen, regs_carried, beneath)
    return Context(
        pid=inner_tid(frozen.pid, frozen.pid),
        maps=maps,
        memory=memory_layout(frozen.pid, brk),
        identity=identity(frozen.pid),
        signal_actions=actions,
        threads=threads,
        pending=tuple(pending_signals(frozen.pid, shared=True)),
        kernel_code=kernel_code(frozen, maps),
        barriers=max(0, frozen.leader.call(SYS.membarrier, _MEMBARRIER_GET_REGISTRATIONS, 0, 0)),  # Linux 6.3; before, none are known
        guards=guards_of(frozen.pid, maps),
        future_locks=future_locks(frozen, maps),
        objects=shared,
        keys=allocated,
        keyed=keyed,
    )


def send_pages(
    pid: int, mappings: Sequence[Mapping], stream: int | Connection, timeout: float = 30.0, splicer: Splicer | None = None
) -> PageTotals:
    """Sends the pages that mappings (a context's) have of their own into the socket `stream`; splicer: the process gives them itself.

    Errors: OSError: ConnectionError, TimeoutError after `timeout` seconds without progress, ProcessLookupError.
    """
    return send_own_pages(pid, page_ranges(mappings), stream, timeout, splicer=splicer)


def inner_tids(pid: int, tids: Sequence[int]) -> dict[int, int]:
    """Ids of threads, and what the program itself knows them by. Errors: OSError, ProcessLookupError."""
    found = tasks.inner_tids(pid, tids)
    if len(found) < len(tids):
        raise ProcessLookupError(errno.ESRCH, f"threads of {pid} have ended")
    return found


def inner_tid(pid: int, tid: int) -> int:
    """Return a thread's id as the program itself sees it. Errors: OSError, ProcessLookupError."""
    with open(f"/proc/{pid}/task/{tid}/status", "rb") as status:
        for line in status:
            if line.startswith(b"NSpid:"):
                return int(line.split()[-1])
    raise ProcessLookupError(errno.ESRCH, f"thread {tid} has ended")


def memory_layout(pid: int, brk: int) -> MemoryLayout:
    """From /proc/PID/stat and auxv; brk is what brk(0) answers in it. Errors: OSError."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        fields = stat.read().rsplit(b")", 1)[1].split()
    with open(f"/proc/{pid}/auxv", "rb") as vector:
        auxv = vector.read()

    def field(number: int) -> int:  # numbered as in proc(5)
        return int(fields[number - 3])

    return MemoryLayout(
        start_code=field(26), end_code=field(27), start_data=field(45), end_data=field(46), start_brk=field(47),
        brk=brk, start_stack=field(28), arg_start=field(48), arg_end=field(49), env_start=field(50),
        env_end=field(51), auxv=auxv,
    )  # fmt: skip


def identity(pid: int) -> Identity:
    """From /proc; ids as the process sees them; limits as they are in force. Errors: OSError."""
    status: dict[str, list[int]] = {}
    effective = 0
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name in ("Uid", "Gid", "Groups"):
                status[name] = [int(word) for word in value.split()]
            elif name == "CapEff":
                effective = int(value, 16)
    limits: dict[int, tuple[int, int]] = {}
    with open(f"/proc/{pid}/limits", encoding="ascii", errors="replace") as lines:
        for line in lines:
            number = _LIMITS_OF_MEMORY.get(line[:26].rstrip())
            if number is not None:
                soft, hard = (NO_LIMIT if word == "unlimited" else int(word) for word in line[26:].split()[:2])
                limits[number] = (soft, hard)
    with open(f"/proc/{pid}/personality", encoding="ascii") as file:
        personality = int(file.read(), 16)
    users, groups = identities.users(pid), identities.groups(pid)
    u, g = [users.id(number) for number in status["Uid"]], [groups.id(number) for number in status["Gid"]]
    others = tuple(groups.id(number) for number in status.get("Groups", []))
    limits = limits_in_force(limits, effective)
    return Identity(os.readlink(f"/proc/{pid}/exe"), (u[0], u[1], u[2]), (g[0], g[1], g[2]), others, personality, limits)


def limits_in_force(limits: dict[int, tuple[int, int]], effective: int) -> dict[int, tuple[int, int]]:
    """Return limits (soft, hard, by number) as the kernel applies them with these effective capabilities: CAP_IPC_LOCK lifts
    RLIMIT_MEMLOCK."""
    return {**limits, resource.RLIMIT_MEMLOCK: (NO_LIMIT, NO_LIMIT)} if effective >> _CAP_IPC_LOCK & 1 else limits


def kernel_code(frozen: Frozen, maps: Sequence[Mapping]) -> bytes:
    """SHA-256 of the vdso, empty without one."""
    vdso = next((m for m in exceptional(maps) if m.special and m.path == "[vdso]"), None)
    return hashlib.sha256(pause_loop.without(frozen.read(vdso.start, vdso.length))).digest() if vdso else b""


@contextmanager
def scratch_page(frozen: Frozen, address: int = 0, size: int = PAGE) -> Iterator[int]:
    """Writable memory of `size` bytes in a stopped process, a mapping of its own at `address` if given; as if nothing
    had been at the end.

    Errors: OSError when it may not map more (RLIMIT_AS, RLIMIT_MEMLOCK); without `address` its stack is used then.
    """
    fixed = 0x100000 if address else 0  # MAP_FIXED_NOREPLACE
    try:
        page = frozen.call(SYS.mmap, address, size, _PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS | fixed, -1, 0)
    except OSError as error:
        if address or error.errno not in (errno.ENOMEM, errno.EAGAIN):  # EAGAIN: all that it maps is locked, and it has no more
            raise
        with frozen.scratch(size) as below_stack:
            yield below_stack
        return
    try:
        yield page
    finally:
        with suppress(ProcessLookupError):
            frozen.call(SYS.munmap, page, size)


def _signal_actions(frozen: Frozen, scratch: int) -> dict[int, bytes]:
    numbers = [number for number in range(1, SIGNALS + 1) if number not in _UNCATCHABLE]
    calls = [(SYS.rt_sigaction, number, 0, scratch + (number - 1) * ACTION_BYTES, 8) for number in numbers]
    for result in frozen.leader.calls(calls, scratch + PAGE):
        check(result, f"rt_sigaction in {frozen.pid}")
    data = frozen.read(scratch, SIGNALS * ACTION_BYTES)
    return {number: data[(number - 1) * ACTION_BYTES : number * ACTION_BYTES] for number in numbers}


def _first_actions(pid: int) -> dict[int, bytes]:
    """Signals have their default action, or are ignored, when a program begins. Errors: ProcessLookupError."""
    state = signal_state(pid, pid)
    ignored = SIG_IGN.to_bytes(8, "little").ljust(ACTION_BYTES, b"\0")
    return {
        number: ignored if state.ignored >> number - 1 & 1 else bytes(ACTION_BYTES)
        for number in range(1, SIGNALS + 1) if number not in _UNCATCHABLE
    }  # fmt: skip


def robust_list(tid: int) -> tuple[int, int]:
    """get_robust_list(2): head, length. Errors: OSError."""
    head, length = ctypes.c_uint64(), ctypes.c_uint64()
    if _libc.syscall(SYS.get_robust_list, tid, ctypes.byref(head), ctypes.byref(length)):
        code = ctypes.get_errno()
        raise OSError(code, f"get_robust_list of {tid}: {os.strerror(code)}")
    return head.value, length.value


def _abort_restartable_sequence(frozen: Frozen, thread: Thread) -> None:
    """A thread that stands in a restartable sequence (rseq(2)) goes on at its abort handler, as after any preemption:
    the kernel would only do that on a return to where it stands now, and it returns elsewhere."""
    if thread.stood_in_none:
        return
    address = thread.rseq().pointer
    if not address:
        return
    # Injected calls made the kernel forget the section; the thread has it as of the stop.
    kept = thread.rseq_section
    section = int.from_bytes(kept[1] if kept else frozen.read(address + _RSEQ_CS, 8), "little")
    if not section:
        return
    _, _, start, length, abort = struct.unpack("<IIQQQ", frozen.read(section, 32))
    if thread.registers.rip - start in range(length):
        thread.registers.rip = abort
    thread.rseq_section = None
    frozen.write(address + _RSEQ_CS, bytes(8))


def _threads(frozen: Frozen, carried: bool, beneath: int) -> tuple[ThreadContext, ...]:
    """What there is to be known of each of its threads, the first one first. Errors: OSError."""
    threads = sorted(frozen.threads.values(), key=lambda thread: thread is not frozen.leader)
    wish = altstack.NEVER.rjust(_SAID.size + altstack.STACK.size, b"\0")
    results, said = call_in(
        frozen, threads, lambda _, address: _asked(address), 4, [wish] * len(threads), reported=_SAID.size, alike=True
    )  # fmt: skip
    is_never, *_ = [some.pop() for some in results]  # the others have asked because calls are to be alike
    if any(min(some) < 0 for some in results):
        many_calls.check_all([(thread, _asked(0)[:-1]) for thread in threads], results)
    kept, registrations, filtered = many.states(threads), many.rseqs(threads), many.filtered(threads, beneath)
    tids = inner_tids(frozen.pid, [thread.tid for thread in threads])
    found = []
    for index, thread in enumerate(threads):
        clear_tid, pointer, flags, pad, size, comm = _SAID.unpack(said[index])
        stack = altstack.STACK.pack(pointer, flags & ~altstack.ONSTACK, pad, size)
        state, robust, waits = kept[index]
        pending = [info for info in thread.in_hand if tracing.signal_number(info) not in _UNCATCHABLE]
        pending += pending_signals(thread.tid, shared=False) if waits else ()
        fields = {
            "tid": tids[thread.tid],
            "registers": bytes(_registers(thread, carried)),
            "extended_state": state,
            "signal_mask": thread.signal_mask,
            "robust_list": robust,
            "clear_tid": clear_tid,
            "rseq": _rseq(*registrations[index]),
            "sigaltstack": stack if index else altstack.of_first(frozen, stack, is_never),
            "comm": comm.partition(b"\0")[0],
            "pending": tuple(pending),
            "resume_with_restart_syscall": False,
            "filters": chain(thread.tid, beneath) if thread.tid in filtered else (),
        }
        found.append(made(ThreadContext, fields))
    return tuple(found)


def _rseq(address: int, size: int, signature: int) -> Rseq:
    return made(Rseq, {"address": address, "size": size, "signature": signature} if address else _NO_RSEQ)


def _asked(address: int) -> list[tuple[int, ...]]:
    """The calls that report a thread what only it knows, into memory at `address` (_SAID). The last is what the first thread asks for
    besides, behind that (engine/context/altstack.py)."""
    return [
        (SYS.prctl, _PR_GET_TID_ADDRESS, address), (SYS.sigaltstack, 0, address + 8), (SYS.prctl, _PR_GET_NAME, address + 32),
        (SYS.sigaltstack, address + _SAID.size, 0),
    ]  # fmt: skip


def _registers(thread: Thread, carried: bool) -> Registers:
    if not carried:
        return thread.registers
    registers = thread.registers.copy()
    put_back(registers, thread.signal_mask, thread.mask_in_force)
    carry_restart(registers)
    return registers


def pending_signals(tid: int, shared: bool) -> Iterator[bytes]:
    """siginfo_t of what waits for the thread (or, shared, for its process), in order of arrival."""
    room = 64
    buffer = ctypes.create_string_buffer(room * SIGINFO_BYTES)
    offset = 0
    _libc.ptrace.restype = ctypes.c_long
    while True:
        arguments = _PeekArguments(offset, _PEEK_SHARED if shared else 0, room)
        count = _libc.ptrace(ctypes.c_long(_PTRACE_PEEKSIGINFO), ctypes.c_long(tid), ctypes.byref(arguments), ctypes.byref(buffer))
        if count < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"pending signals of {tid}: {os.strerror(code)}")
        for index in range(count):
            info = buffer.raw[index * SIGINFO_BYTES : (index + 1) * SIGINFO_BYTES]
            if tracing.signal_number(info) not in _UNCATCHABLE and not comes_again(info):
                yield info
        if not count:
            return
        offset += count  # fewer than there is room for are not all: a signal that comes to us ends the call (ptrace_peek_siginfo)
