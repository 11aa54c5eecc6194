"""The user context of a process: what an engine takes out of one process and puts into another."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import msgpack

from engine.context import checked, confinement
from engine.context.checked import BadContext
from engine.mappings.address_space import Maps
from engine.mappings.mappings import PAGE, Mapping
from engine.memory.alone import SharedObject

VERSION = 7
REGISTERS_BYTES = 27 * 8
EXTENDED_STATE_MOST = 65536
WIRE_MOST = 64 << 20
"""bytes: 65536 mappings with long names, and threads"""

_EXTENDED = range(512, EXTENDED_STATE_MOST)
_NAMES = range(16)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Rseq:
    """A registration of restartable sequences; address 0: none."""

    address: int = 0
    size: int = 0
    signature: int = 0


@dataclass(frozen=True)
class ThreadContext:
    """One thread. tid as the program sees it; registers: struct user_regs_struct, in plain user mode; extended_state:
    the xsave area; sigaltstack: stack_t; pending: siginfo_t of each signal that waits for this thread alone, in order.

    resume_with_restart_syscall: the registers are those of an interrupted call (or stand at it) whose remaining time the
    kernel still knows in the very thread that is refilled; it is to be finished there.
    filters: seccomp filters that the program has put over the thread, the oldest first (engine/context/confinement.py).
    """

    tid: int
    registers: bytes
    extended_state: bytes
    signal_mask: int
    robust_list: tuple[int, int]
    clear_tid: int
    rseq: Rseq
    sigaltstack: bytes
    comm: bytes
    pending: tuple[bytes, ...] = ()
    resume_with_restart_syscall: bool = False
    filters: confinement.Chain = ()


@dataclass(frozen=True)
class MemoryLayout:
    """The addresses of struct mm_struct that prctl(PR_SET_MM_MAP) sets, and the auxiliary vector."""

    start_code: int
    end_code: int
    start_data: int
    end_data: int
    start_brk: int
    brk: int
    start_stack: int
    arg_start: int
    arg_end: int
    env_start: int
    env_end: int
    auxv: bytes

    def addresses(self) -> tuple[int, ...]:
        """In the order of struct prctl_mm_map."""
        return tuple(getattr(self, name) for name in ADDRESS_NAMES)


ADDRESS_NAMES = tuple(field.name for field in fields(MemoryLayout) if field.name != "auxv")


@dataclass(frozen=True)
class Identity:
    """Who a process is, for one that is made anew: path of its program, user and group ids (real, effective, saved), groups,
    personality(2), and by number its limits on memory (soft, hard; bytes, 2**64 - 1: none)."""

    program: str
    uids: tuple[int, int, int]
    gids: tuple[int, int, int]
    groups: tuple[int, ...]
    personality: int
    limits: dict[int, tuple[int, int]]

    def to_wire(self) -> list[Any]:
        limits = [[number, *limit] for number, limit in sorted(self.limits.items())]
        return [self.program.encode("utf-8", "surrogateescape"), self.uids, self.gids, self.groups, self.personality, limits]

    @classmethod
    def from_wire(cls, value: Any) -> Identity:
        """Errors: BadContext."""
        program, uids, gids, groups, personality, limits = checked.row(value, 6, "identity")

        def limit(item: Any) -> tuple[int, tuple[int, int]]:
            number, soft, hard = checked.row(item, 3, "limit")
            return checked.number(number, 0, 15, "limit"), (checked.word(soft, "limit"), checked.word(hard, "limit"))

        return cls(
            program=checked.octets(program, range(1, 4096), "program").decode("utf-8", "surrogateescape"),
            uids=checked.ids(uids, "user ids"),
            gids=checked.ids(gids, "group ids"),
            groups=checked.each(groups, 65536, lambda item: checked.number(item, 0, 2**32 - 2, "group"), "groups"),
            personality=checked.number(personality, 0, 2**32 - 1, "personality"),
            limits=dict(checked.each(limits, 16, limit, "limits")),
        )


@dataclass(frozen=True)
class Context:
    """A whole process without its pages. pid as the program sees it; signal_actions: by number, struct kernel_sigaction
    (32 bytes); pending: siginfo_t of each signal that waits for the process, in order; kernel_code: SHA-256 of the vdso
    that it ran with, empty if none; barriers: the commands of membarrier(2) by which it has registered, one bit each; guards: where its
    memory has some; future_locks: how what it maps later is locked (both: marks.py); objects: what it alone has mapped shared, by
    address (engine/memory/alone.py); keys: protection keys that are allocated, one bit each; keyed: memory that has one.
    """

    pid: int
    maps: Sequence[Mapping]
    memory: MemoryLayout
    identity: Identity
    signal_actions: dict[int, bytes]
    threads: tuple[ThreadContext, ...]
    pending: tuple[bytes, ...] = ()
    kernel_code: bytes = b""
    barriers: int = 0
    guards: tuple[tuple[int, int], ...] = ()
    future_locks: int = 0
    objects: tuple[SharedObject, ...] = ()
    keys: int = 0
    keyed: tuple[checked.Keyed, ...] = ()

    def to_wire(self) -> bytes:
        """One msgpack object; from_wire takes it. Each filter is there once."""
        filters = {program: number for number, program in enumerate(dict.fromkeys(p for t in self.threads for p in t.filters))}
        maps = Maps.of(self.maps)
        return bytes(
            msgpack.packb(
                [
                    VERSION,
                    self.pid,
                    [
                        bytes(maps.table),
                        [
                            [m.start, m.end, m.prot, m.flags, m.offset, m.path.encode("utf-8", "surrogateescape") if m.path else b"",
                             m.is_file, checked.words(m.vmflags), m.own]
                            for m in maps.others
                        ],
                    ],
                    [*self.memory.addresses(), self.memory.auxv],
                    self.identity.to_wire(),
                    sorted(self.signal_actions.items()),
                    [
                        [t.tid, t.registers, t.extended_state, t.signal_mask, *t.robust_list, t.clear_tid,
                         t.rseq.address, t.rseq.size, t.rseq.signature, t.sigaltstack, t.comm, t.pending,
                         t.resume_with_restart_syscall, [filters[program] for program in t.filters]]
                        for t in self.threads
                    ],
                    self.pending,
                    self.kernel_code,
                    self.barriers,
                    self.guards,
                    self.future_locks,
                    [self.keys, self.keyed],
                    [[_text(one.name), _text(one.label), one.size, one.at] for one in self.objects],
                    list(filters),
                ]
            )
        )  # fmt: skip

    @classmethod
    def from_wire(cls, data: bytes) -> Context:
        """Errors: BadContext, with what is wrong."""
        if len(data) > WIRE_MOST:
            raise BadContext(f"a context of {len(data)} bytes")
        try:
            unpacked = msgpack.unpackb(data, use_list=True, strict_map_key=True, raw=False)
        except (ValueError, msgpack.UnpackException) as error:
            raise BadContext(f"not msgpack: {error}") from error
        version, *rest = checked.row(unpacked, None, "context")
        if version != VERSION:
            raise BadContext(f"version {reprlib.repr(version)}, not {VERSION}")
        *rest, objects, programs = checked.row(rest, 14, "context")
        pid, maps, memory, identity, actions, threads, pending, kernel_code, barriers, guards, locks, protection = rest
        keys, keyed = checked.protection(protection)
        return cls(
            pid=checked.number(pid, 1, 1 << 22, "pid"),
            maps=checked.maps(maps),
            memory=_layout(memory),
            identity=Identity.from_wire(identity),
            signal_actions=checked.actions(actions),
            threads=_threads(threads, checked.filters(programs)),
            pending=checked.signals(pending),
            kernel_code=checked.octets(kernel_code, (0, 32), "digest of the vdso"),
            barriers=checked.number(barriers, 0, 2**31 - 1, "barriers"),
            guards=checked.guards(guards),
            future_locks=checked.number(locks, 0, 6, "locks"),
            objects=checked.objects(objects),
            keys=keys,
            keyed=keyed,
        )


def _text(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _layout(value: Any) -> MemoryLayout:
    *addresses, auxv = checked.row(value, 12, "memory layout")
    named = {name: checked.address(value, name) for name, value in zip(ADDRESS_NAMES, addresses, strict=True)}
    return MemoryLayout(**named, auxv=checked.octets(auxv, range(4097), "auxv"))


def made(kind: type[_T], fields: dict[str, Any]) -> _T:
    """One of a frozen dataclass, all of whose fields these are: of thousands, its own way takes three times as long."""
    one = object.__new__(kind)
    one.__dict__.update(fields)
    return one


def _thread(item: Any, programs: confinement.Chain) -> ThreadContext:
    (tid, registers, extended, mask, robust, robust_size, clear_tid, rseq, rseq_size, rseq_signature, stack, comm,
     pending, restart, filters) = checked.row(item, 15, "thread")  # fmt: skip
    fields = {
        "tid": checked.number(tid, 1, 1 << 22, "tid"),
        "registers": checked.octets(registers, (REGISTERS_BYTES,), "registers"),
        "extended_state": checked.octets(extended, _EXTENDED, "extended state"),
        "signal_mask": checked.word(mask, "signal mask"),
        "robust_list": (checked.word(robust, "robust list"), checked.word(robust_size, "robust list")),
        "clear_tid": checked.word(clear_tid, "clear_tid"),
        "rseq": _rseq(rseq, rseq_size, rseq_signature),
        "sigaltstack": checked.octets(stack, (24,), "sigaltstack"),
        "comm": checked.octets(comm, _NAMES, "comm"),
        "pending": checked.signals(pending) if pending != [] else (),
        "resume_with_restart_syscall": checked.truth(restart, "restart"),
        "filters": () if filters == [] else checked.each(
            filters, confinement.MOST, lambda number: programs[checked.number(number, 0, len(programs) - 1, "filter")], "filters"
        ),
    }  # fmt: skip
    return made(ThreadContext, fields)


def _rseq(address: Any, size: Any, signature: Any) -> Rseq:
    fields = {
        "address": checked.address(address, "rseq"),
        "size": checked.number(size, 0, PAGE, "rseq"),
        "signature": checked.number(signature, 0, 2**32, "rseq"),
    }
    return made(Rseq, fields)


def _threads(value: Any, programs: confinement.Chain) -> tuple[ThreadContext, ...]:
    threads = checked.each(value, 1 << 16, lambda item: _thread(item, programs), "threads")
    if not threads or len({thread.tid for thread in threads}) != len(threads):
        raise BadContext("no thread, or two with one tid")
    if sum(len(thread.filters) for thread in threads) > confinement.MOST_IN_ALL:
        raise BadContext(f"its threads have more than {confinement.MOST_IN_ALL} seccomp filters")
    return threads


def with_pending(context: Context, pending: Iterable[tuple[int, bytes]]) -> Context:
    """Return the same context with these signals waiting, and no others: (tid as the program sees it, 0 for the process; siginfo). What
    waits for a thread alone that has ended has gone with it."""
    waiting = list(pending)
    own: dict[int, list[bytes]] = {}
    for tid, info in waiting:
        own.setdefault(tid, []).append(info)
    return replace(
        context,
        pending=tuple(info for tid, info in waiting if not tid),
        threads=tuple(replace(t, pending=tuple(own.get(t.tid, ()))) if t.pending or t.tid in own else t for t in context.threads),
    )


def fit_extended_state(state: bytes, template: bytes) -> bytes:
    """Return the xsave area `state` in the shape that this node's processor wants, which is that of `template` (any state
    that was read here).

    Offsets of components are architectural but for those that few processors have; so areas of different sizes agree
    where both have bytes. Errors: BadContext when the state uses components that this processor lacks.
    """
    if len(state) == len(template):
        return state
    used = int.from_bytes(state[512:520], "little")  # XSTATE_BV
    here = int.from_bytes(template[464:472], "little")  # xcr0, which Linux puts into the software-reserved bytes
    if used & ~here:
        raise BadContext(f"the processor here lacks register sets {used & ~here:#x} that the process uses")
    common = min(len(state), len(template))
    if any(state[common:]):
        raise BadContext("the processor here lays its registers out differently")
    fitted = bytearray(template)
    fitted[:464] = state[:464]
    fitted[512:common] = state[512:common]
    fitted[common:] = bytes(len(template) - common)
    return bytes(fitted)
