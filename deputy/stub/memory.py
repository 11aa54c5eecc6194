"""The memory of a stub: what it gives up, what it keeps for calls that are under way, and the areas for pages that come back to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from contextlib import suppress

from deputy.stub import footprint
from deputy.stub.traced import Replaced, Traced
from engine.mappings.layout import Span, subtract_all
from engine.mappings.mappings import PAGE
from engine.pour import postcopy
from engine.pour.precopy_areas import map_areas
from kernel_helpers.link.ends.home import HomeLink
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS, U64

_PROT_READ, _PROT_WRITE = 1, 2
_MAP_PRIVATE, _MAP_ANONYMOUS = 2, 0x20
_MADV_DONTNEED = 4


class StubMemory:
    """Of one stub. `is_whole`: it has not been given up yet; `is_little`: it is that of a program that has just begun, and can wait."""

    def __init__(self, traced: Traced, link: HomeLink, reserved: Callable[[], list[Span]]) -> None:
        """reserved: reports which address ranges belong to the stub and not to the process."""
        self.is_whole = True
        self.is_little = False
        self.objects: frozenset[str] = frozenset()
        """identities of what the process has mapped shared, and nobody else has"""
        self._traced = traced
        self._link = link
        self._reserved = reserved
        self._expected: set[int] = set()

    def expect(self, program: int) -> None:
        """A call of this thread (the program's id) that the freeze interrupted will be made again: what it has in memory is not known
        before."""
        self._expected.add(program)

    def expect_no_more(self, program: int) -> None:
        """This thread has ended."""
        self._expected.discard(program)

    def settle(self, force: bool = False) -> bool:
        """give_up(), as soon as the calls that the freeze interrupted are under way again: until then their buffers are
        not known as such, and would go; or, a little memory, when no call is under way, which would be interrupted. True when it is done.
        force: now."""
        if self.is_whole and (force or self._can_go()):
            self.is_whole = False
            with suppress(Replaced, ProcessLookupError):  # it has been killed: its memory has gone, and that is reported as always
                self.give_up()
        return not self.is_whole

    def _can_go(self) -> bool:
        return not self._link.busy() if self.is_little else all(self._link.standing(tid).sequence for tid in self._expected)

    def give_up(self) -> None:
        """Lets go of the process's private memory. After the commit only: there is no way back but a refill."""
        # The guest may run already and wait in calls that have their buffers here.
        places = [(page, page + PAGE) for page in sorted(set(self._link.hold_places(True)))]
        try:
            with self._traced.injecting() as thread:
                footprint.give_up(thread, self._reserved(), places, self.objects)
        finally:
            self._link.hold_places(False)

    def map_areas(self, wanted: Sequence[Span], unreserved: Set[Span]) -> list[Span]:
        """See engine/pour/precopy_areas.py. Errors: OSError, TimeoutError, Replaced."""
        with self._traced.injecting() as thread:
            return map_areas(thread, wanted, unreserved)

    def give_back(self, spans: Sequence[Span]) -> None:
        """Pages in the areas are stale. Errors: as map_areas()."""
        with self._traced.injecting() as thread:
            for start, end in spans:
                thread.call(SYS.madvise, start, end - start, _MADV_DONTNEED)

    def userfaultfd(self) -> int:
        """By which memory can follow the process home; -1 if it cannot. Errors: TimeoutError, Replaced."""
        with self._traced.injecting() as thread:
            frozen = Frozen(self._traced.pid, {thread.tid: thread}, instruction=thread.instruction)
            try:
                page = frozen.call(SYS.mmap, 0, PAGE, _PROT_READ | _PROT_WRITE, _MAP_PRIVATE | _MAP_ANONYMOUS, U64, 0)
            except OSError:
                return -1
            try:
                return postcopy.userfaultfd_or_none(frozen, page)
            finally:
                frozen.call(SYS.munmap, page, PAGE)

    def unmap_areas(self, areas: Sequence[Span]) -> None:
        """The memory of map_areas() goes again, but for what calls use. Errors: as map_areas()."""
        places = [(page, page + PAGE) for page in sorted(set(self._link.hold_places(True)))]
        try:
            with self._traced.injecting() as thread:
                for start, end in subtract_all(areas, places):
                    thread.call(SYS.munmap, start, end - start)
        finally:
            self._link.hold_places(False)

    def places(self) -> list[int] | None:
        """Pages into which calls may have written. None: so many that not all are known."""
        pages = self._link.hold_places(False)
        return None if len(pages) >= self._link.MOST_PLACES else pages


__all__ = ["StubMemory"]
