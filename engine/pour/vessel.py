"""Engine `pour`, the arriving side: an empty process with the right pid, made before the other is frozen.

It is seized, and has nothing mapped but the kernel's own pages and one of ours with a system-call instruction; then memory that goes ahead
of the process. engine/pour/filling.py makes it the process as soon as its context has come.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from engine.context.capture import kernel_code
from engine.context.checked import BadContext
from engine.context.context import Context
from engine.context.marks import lockable
from engine.mappings.address_space import exceptional
from engine.mappings.layout import Span, merge, subtract_all
from engine.mappings.mappings import MAP_PRIVATE, PAGE, PROT_EXEC, PROT_READ, PROT_WRITE, Mapping, read_places
from engine.pour import postcopy
from engine.pour.precopy_areas import map_areas
from engine.pour.shape import drop_pages
from kernel_helpers.process import pause_loop, tracing
from kernel_helpers.process.injection.beside import beside
from kernel_helpers.process.injection.native import check
from kernel_helpers.process.seizing import Frozen, find_instruction, seize
from kernel_helpers.process.syscalls import SYS, U64

_INSTRUCTION = b"\x0f\x05"
_BATCH_AT = 64
"""bytes behind it: where many calls are made at once"""
_RESERVED = 0x3A00_0000_0000
"""Between where the kernel puts position-independent programs (0x55...) and libraries (0x7f...)."""
_MAP_PRIVATE_ANONYMOUS, _MAP_FIXED_NOREPLACE = 0x22, 0x100000
_LOWEST, _HIGHEST = 1 << 16, (1 << 47) - PAGE
_RSEQ_UNREGISTER = 1


def obstacle(context: Context, kernel: str) -> str | None:
    """Return why a process cannot be poured into a vessel whose kernel_pages are `kernel`, or None."""
    if kernel_pages(context.maps, context.kernel_code) != kernel:
        return "the node that it goes to has another kernel"
    objects = {one.name for one in context.objects}
    for m in exceptional(context.maps):
        if (m.flags == MAP_PRIVATE and not m.is_file) or (not m.private and m.path in objects):
            continue
        if m.is_file and (not m.path.startswith("/") or m.path.startswith(("/memfd:", "/dev/zero")) or m.path.endswith(" (deleted)")):
            return f"it has {m.path or 'memory'} mapped, which has no name to be found by"
        if not m.is_file and not m.private:
            return "it shares memory that has no file"
    return None


def kernel_pages(maps: Sequence[Mapping], code: bytes) -> str:
    """Return what distinguishes one kernel's own pages in a process from another's: their kinds, sizes and code."""
    return ",".join([f"{m.path}:{m.length}" for m in exceptional(maps) if m.special] + [code.hex()])


class Vessel:
    """The empty process. `frozen`: it, seized by this thread and dying with it."""

    def __init__(self, frozen: Frozen) -> None:
        self.frozen = frozen
        self.reserved: Span = (0, 0)
        self.kernel_pages = ""
        self.lockable = 0
        """how many bytes the node lets it lock, if it is in a sandbox"""
        self.areas: list[Span] = []
        self.objects: dict[str, str] = {}
        """by identity: what its shared memory is called"""
        self.taker: postcopy.Taker | None = None
        """who guards the areas; None: there are none, or the kernel does not let us"""

    @classmethod
    def board(cls, host_pid: int) -> Vessel:
        """Empties the process that waits in a sandbox (sandbox.vessel()). Errors: OSError."""
        with beside(host_pid):
            vessel = cls.empty(seize(host_pid, tracing.PTRACE_O_EXITKILL))
        vessel.lockable = lockable(host_pid)
        return vessel

    @classmethod
    def empty(cls, frozen: Frozen) -> Vessel:
        """Makes a vessel of a process that stands still, of one thread. Errors: OSError."""
        vessel, host_pid = cls(frozen), frozen.pid
        maps = read_places(host_pid)
        vessel.kernel_pages = kernel_pages(maps, kernel_code(frozen, maps))
        leader = frozen.leader
        rseq = leader.rseq()
        if rseq.pointer:
            check(leader.call(SYS.rseq, rseq.pointer, rseq.size, _RSEQ_UNREGISTER, rseq.signature), f"rseq in {host_pid}")
        leader.rseq_section = None
        vessel.reserve(_RESERVED)
        special = [(m.start, m.end) for m in maps if m.special]
        for start, end in _between(merge([*special, vessel.reserved])):
            frozen.call(SYS.munmap, start, end - start)
        return vessel

    def reserve(self, address: int) -> None:
        """A page with the instruction that injected calls are made by."""
        frozen = self.frozen
        frozen.call(SYS.mmap, address, PAGE, PROT_READ | PROT_WRITE, _MAP_PRIVATE_ANONYMOUS | _MAP_FIXED_NOREPLACE, U64, 0)
        frozen.write(address, _INSTRUCTION.ljust(_BATCH_AT, b"\xcc") + pause_loop.CODE)
        frozen.call(SYS.mprotect, address, PAGE, PROT_READ | PROT_EXEC)
        self.reserved = (address, address + PAGE)
        frozen.instruction = address
        frozen.batch_code = address + _BATCH_AT

    def map_areas(self, wanted: Sequence[Span], unreserved: Set[Span] = frozenset()) -> list[Span]:
        """Mappings for pages that come before the context does (engine/pour/precopy.py); returns those that could be made. unreserved: of
        these, those that are not accounted for (MAP_NORESERVE)."""
        made = map_areas(self.frozen.leader, wanted, unreserved)
        self.areas += made
        userfaultfd = postcopy.userfaultfd_or_none(self.frozen) if made and self.taker is None else -1
        if userfaultfd >= 0:
            self.taker = postcopy.Taker(self.frozen.pid, userfaultfd)
            self.taker.guard(made)
        return made

    def give_back(self, spans: Sequence[Span]) -> None:
        """Pages in the areas that are stale. Errors: BadContext, OSError."""
        if subtract_all(spans, merge(self.areas)):
            raise BadContext("memory is stale that has not come")
        drop_pages(self.frozen, spans)

    def await_rest(self, areas: Sequence[Span], owed: Sequence[Span]) -> postcopy.Taker:
        """The vessel is filled but for what is owed, in `areas`. Returns who takes that. Errors: BadContext, OSError; the vessel is of no
        use then."""
        if subtract_all(owed, areas) or self.taker is None:
            raise BadContext("memory is to follow that cannot")
        self.taker.owe(self.frozen, owed)
        taker, self.taker = self.taker, None
        return taker

    def leave(self) -> Frozen:
        """Takes our page out of the filled vessel, which is the process now."""
        self.forgo()
        self.frozen.instruction, self.frozen.batch_code = find_instruction(self.frozen.pid), 0
        self.frozen.call(SYS.munmap, self.reserved[0], PAGE)
        return self.frozen

    def forgo(self) -> None:
        """Nothing follows it."""
        if self.taker is not None:
            self.taker.close()
            self.taker = None


def _between(spans: Sequence[Span]) -> list[Span]:
    """All of user space but these (sorted, disjoint)."""
    edges = [_LOWEST, *(edge for span in spans for edge in span), _HIGHEST]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]


__all__ = ["Vessel", "kernel_pages", "obstacle"]
