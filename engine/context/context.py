"""The user context of a process: what an engine takes out of one process and puts into another."""

from __future__ import annotations

import functools
import itertools
import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import msgpack

from engine.context import confinement
from engine.mappings.address_space import Maps
from engine.mappings.mappings import CARRIED_FLAGS, HIGHEST_ADDRESS, MAP_PRIVATE, MAP_SHARED, PAGE, Mapping
from engine.memory.alone import MOST, SharedObject, may_be
from kernel_helpers.errors import FarhomeError
from kernel_helpers.pages.pages import MOST_GUARDS
from kernel_helpers.pages.tables.plain import Table

VERSION = 6
SIGNALS = 64
SIGINFO_BYTES = 128
ACTION_BYTES = 32
REGISTERS_BYTES = 27 * 8
EXTENDED_STATE_MOST = 65536
WIRE_MOST = 64 << 20
"""bytes: 65536 mappings with long names, and threads"""

_MAPS_MOST = 1 << 20
_FLAGS_MOST = 256
"""characters: all names that are carried take less"""
_PATHS = range(8192)
_EXTENDED = range(512, EXTENDED_STATE_MOST)
_NAMES = range(16)

_T = TypeVar("_T")


class BadContext(FarhomeError):
    """A context from outside that is not one."""


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
        program, uids, gids, groups, personality, limits = _list(value, 6, "identity")

        def limit(item: Any) -> tuple[int, tuple[int, int]]:
            number, soft, hard = _list(item, 3, "limit")
            return _number(number, 0, 15, "limit"), (_word(soft, "limit"), _word(hard, "limit"))

        return cls(
            program=_bytes(program, range(1, 4096), "program").decode("utf-8", "surrogateescape"),
            uids=_ids(uids, "user ids"),
            gids=_ids(gids, "group ids"),
            groups=_each(groups, 65536, lambda item: _number(item, 0, 2**32 - 2, "group"), "groups"),
            personality=_number(personality, 0, 2**32 - 1, "personality"),
            limits=dict(_each(limits, 16, limit, "limits")),
        )


@dataclass(frozen=True)
class Context:
    """A whole process without its pages. pid as the program sees it; signal_actions: by number, struct kernel_sigaction
    (32 bytes); pending: siginfo_t of each signal that waits for the process, in order; kernel_code: SHA-256 of the vdso
    that it ran with, empty if none; barriers: the commands of membarrier(2) by which it has registered, one bit each; guards: where its
    memory has some; future_locks: how what it maps later is locked (both: marks.py); objects: what it alone has mapped shared, by
    address (engine/memory/alone.py).
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
                             m.is_file, _words(m.vmflags), m.own]
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
        version, *rest = _list(unpacked, None, "context")
        if version != VERSION:
            raise BadContext(f"version {reprlib.repr(version)}, not {VERSION}")
        *rest, objects, programs = _list(rest, 13, "context")
        pid, maps, memory, identity, actions, threads, pending, kernel_code, barriers, guards, locks = rest
        return cls(
            pid=_number(pid, 1, 1 << 22, "pid"),
            maps=_maps(maps),
            memory=_layout(memory),
            identity=Identity.from_wire(identity),
            signal_actions=_actions(actions),
            threads=_threads(threads, _filters(programs)),
            pending=_signals(pending),
            kernel_code=_bytes(kernel_code, (0, 32), "digest of the vdso"),
            barriers=_number(barriers, 0, 2**31 - 1, "barriers"),
            guards=_guards(guards),
            future_locks=_number(locks, 0, 6, "locks"),
            objects=_objects(objects),
        )


def _number(value: Any, least: int, most: int, what: str) -> int:
    if type(value) is not int or not least <= value <= most:
        raise BadContext(f"{what} is {reprlib.repr(value)}")
    return value


def _address(value: Any, what: str) -> int:
    return _number(value, 0, HIGHEST_ADDRESS, what)


def _word(value: Any, what: str) -> int:
    return _number(value, 0, (1 << 64) - 1, what)


def _bytes(value: Any, sizes: tuple[int, ...] | range, what: str) -> bytes:
    if not isinstance(value, bytes) or len(value) not in sizes:
        raise BadContext(f"{what} is {type(value).__name__} of another size")
    return value


def _flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise BadContext(f"{what} is {reprlib.repr(value)}")
    return value


def _list(value: Any, size: int | None, what: str) -> list[Any]:
    if not isinstance(value, list) or not value or (size is not None and len(value) != size):
        raise BadContext(f"{what} is not a list of that size")
    return value


def _each(value: Any, most: int, make: Callable[[Any], _T], what: str) -> tuple[_T, ...]:
    if not isinstance(value, list) or len(value) > most:
        raise BadContext(f"{what} is not a list of at most {most}")
    return tuple(make(item) for item in value)


def _ids(value: Any, what: str) -> tuple[int, int, int]:
    real, effective, saved = (_number(item, 0, 2**32 - 2, what) for item in _list(value, 3, what))
    return real, effective, saved


@functools.lru_cache(1024)
def _words(vmflags: frozenset[str]) -> str:
    return " ".join(sorted(vmflags))


@functools.lru_cache(1024)
def _flags(words: str) -> frozenset[str] | None:
    """None: there is one among them that is not carried."""
    found = frozenset(words.split())
    return found if CARRIED_FLAGS.issuperset(found) else None


def _mapping(item: Any) -> Mapping:
    start, end, prot, flags, offset, path, is_file, vmflags, own = _list(item, 9, "mapping")
    start, end = _address(start, "mapping's edge"), _address(end, "mapping's edge")
    if (start | end) % PAGE or start >= end:
        raise BadContext(f"mapping {start:x}-{end:x}")
    if flags not in (MAP_SHARED, MAP_PRIVATE):
        raise BadContext(f"mapping's flags are {reprlib.repr(flags)}")
    carried = _flags(vmflags) if isinstance(vmflags, str) and len(vmflags) < _FLAGS_MOST else None
    if carried is None:
        raise BadContext(f"mapping's VmFlags are {reprlib.repr(vmflags)}")
    return Mapping(
        start=start,
        end=end,
        prot=_number(prot, 0, 7, "mapping's prot"),
        flags=int(flags),
        offset=_number(offset, 0, (1 << 63) - 1, "mapping's offset"),
        path=_bytes(path, _PATHS, "mapping's path").decode("utf-8", "surrogateescape"),
        is_file=_flag(is_file, "mapping's kind"),
        vmflags=carried,
        own=_number(own, 0, 1 << 50, "mapping's own bytes"),
    )


def _maps(value: Any) -> Maps:
    """The table of plain ones, and all others."""
    table, told = _list(value, 2, "maps")
    if not isinstance(table, bytes):
        raise BadContext("a table of mappings is none")
    try:
        plain = Table.from_bytes(table)
    except ValueError as error:
        raise BadContext(str(error)) from None
    others = _each(told, _MAPS_MOST - min(len(plain), _MAPS_MOST), _mapping, "maps")
    if len(plain) > _MAPS_MOST:
        raise BadContext(f"{len(plain)} mappings")
    for before, after in itertools.pairwise(others):
        if before.end > after.start:
            raise BadContext(f"mappings {before.start:x} and {after.start:x} overlap or are out of order")
    for m in others:
        at = plain.at(m.start)
        if at < len(plain) and plain[at][0] < m.end:
            raise BadContext(f"mappings {m.start:x} and {plain[at][0]:x} overlap")
    return Maps(plain, others)


def _text(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _objects(value: Any) -> tuple[SharedObject, ...]:
    def one(item: Any) -> SharedObject:
        name, label, size, at = _list(item, 4, "shared object")
        made = SharedObject(
            name=_bytes(name, range(1, 8192), "object's name").decode("utf-8", "surrogateescape"),
            label=_bytes(label, range(256), "object's label").decode("utf-8", "surrogateescape"),
            size=_number(size, 0, 1 << 46, "object's size"),
            at=_number(at, PAGE, 1 << 46, "object's address"),
        )
        if at % PAGE or "\0" in made.label or not may_be(made.name):
            raise BadContext(f"a shared object {made.name!r:.60} at {at:x}")
        return made

    objects = _each(value, MOST, one, "shared objects")
    if any(before.span[1] > after.at for before, after in itertools.pairwise(objects)):
        raise BadContext("shared objects overlap or are out of order")
    if len({made.name for made in objects}) != len(objects):
        raise BadContext("two shared objects with one name")
    return objects


def _guards(value: Any) -> tuple[tuple[int, int], ...]:
    def span(item: Any) -> tuple[int, int]:
        start, end = (_address(edge, "guard") for edge in _list(item, 2, "guard"))
        if start % PAGE or end % PAGE or start >= end:
            raise BadContext(f"guard {start:x}-{end:x}")
        return start, end

    guards = _each(value, MOST_GUARDS, span, "guards")
    if any(before[1] > after[0] for before, after in itertools.pairwise(guards)):
        raise BadContext("guards overlap or are out of order")
    return guards


def _layout(value: Any) -> MemoryLayout:
    *addresses, auxv = _list(value, 12, "memory layout")
    named = {name: _address(value, name) for name, value in zip(ADDRESS_NAMES, addresses, strict=True)}
    return MemoryLayout(**named, auxv=_bytes(auxv, range(4097), "auxv"))


def _actions(value: Any) -> dict[int, bytes]:
    def action(item: Any) -> tuple[int, bytes]:
        number, data = _list(item, 2, "signal action")
        return _number(number, 1, SIGNALS, "signal"), _bytes(data, (ACTION_BYTES,), "signal action")

    return dict(_each(value, SIGNALS, action, "signal actions"))


def _signals(value: Any) -> tuple[bytes, ...]:
    def info(item: Any) -> bytes:
        data = _bytes(item, (SIGINFO_BYTES,), "siginfo")
        _number(int.from_bytes(data[:4], "little", signed=True), 1, SIGNALS, "pending signal")
        return data

    return _each(value, 1 << 16, info, "pending signals")


def _filters(value: Any) -> confinement.Chain:
    size = confinement.INSTRUCTION

    def program(item: Any) -> bytes:
        found = _bytes(item, range(size, confinement.LONGEST * size + 1, size), "filter")
        if (reason := confinement.unfit(found)) is not None:
            raise BadContext(reason)
        return found

    return _each(value, confinement.MOST, program, "filters")


def made(kind: type[_T], fields: dict[str, Any]) -> _T:
    """One of a frozen dataclass, all of whose fields these are: of thousands, its own way takes three times as long."""
    one = object.__new__(kind)
    one.__dict__.update(fields)
    return one


def _thread(item: Any, programs: confinement.Chain) -> ThreadContext:
    (tid, registers, extended, mask, robust, robust_size, clear_tid, rseq, rseq_size, rseq_signature, stack, comm,
     pending, restart, filters) = _list(item, 15, "thread")  # fmt: skip
    fields = {
        "tid": _number(tid, 1, 1 << 22, "tid"),
        "registers": _bytes(registers, (REGISTERS_BYTES,), "registers"),
        "extended_state": _bytes(extended, _EXTENDED, "extended state"),
        "signal_mask": _word(mask, "signal mask"),
        "robust_list": (_word(robust, "robust list"), _word(robust_size, "robust list")),
        "clear_tid": _word(clear_tid, "clear_tid"),
        "rseq": _rseq(rseq, rseq_size, rseq_signature),
        "sigaltstack": _bytes(stack, (24,), "sigaltstack"),
        "comm": _bytes(comm, _NAMES, "comm"),
        "pending": _signals(pending) if pending != [] else (),
        "resume_with_restart_syscall": _flag(restart, "restart"),
        "filters": () if filters == [] else _each(
            filters, confinement.MOST, lambda number: programs[_number(number, 0, len(programs) - 1, "filter")], "filters"
        ),
    }  # fmt: skip
    return made(ThreadContext, fields)


def _rseq(address: Any, size: Any, signature: Any) -> Rseq:
    fields = {
        "address": _address(address, "rseq"), "size": _number(size, 0, PAGE, "rseq"), "signature": _number(signature, 0, 2**32, "rseq")
    }  # fmt: skip
    return made(Rseq, fields)


def _threads(value: Any, programs: confinement.Chain) -> tuple[ThreadContext, ...]:
    threads = _each(value, 1 << 16, lambda item: _thread(item, programs), "threads")
    if not threads or len({thread.tid for thread in threads}) != len(threads):
        raise BadContext("no thread, or two with one tid")
    if sum(len(thread.filters) for thread in threads) > confinement.MOST_IN_ALL:
        raise BadContext(f"its threads have more than {confinement.MOST_IN_ALL} seccomp filters")
    return threads


def with_pending(context: Context, pending: Iterable[tuple[int, bytes]]) -> Context:
    """The same context with these signals waiting, and no others: (tid as the program sees it, 0 for the process; siginfo). What waits for
    a thread alone that has ended has gone with it."""
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
    """The xsave area `state` in the shape that this node's processor wants, which is that of `template` (any state
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
