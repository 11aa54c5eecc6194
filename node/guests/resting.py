"""What programs that supervise guests get of the processors: a part of what guests get, but for those that move one.

A remote makes calls for its guest, and its guest decides how many: what that takes is lent, and no more than all that is lent. To bring a
guest here or away is what the owner wants, or its home: that is not to wait for guests that compute. So a program is put beside the guests
once none of its guests has been moved for a while, and taken out again as soon as one is (each takes the kernel some ms, in which nobody
can fork). While the owner is back, all of them are out.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping

from node.guests.cgroups import GuestGroups

AWHILE = 1.0
"""Seconds without a move."""


class Resting:
    """Which of the programs have a move under way, and so where they belong."""

    def __init__(self, groups: GuestGroups, programs: Callable[[], Mapping[str, int]]) -> None:
        """programs: by the key of each guest the process that supervises it; several may have the same."""
        self._groups = groups
        self._programs = programs
        self._since: dict[str, float] = {}
        """Guests that run here and are not moved, and since when, of the loop's clock."""
        self._is_at_rest: dict[int, bool] = {}
        """Programs that have been placed, and where."""
        self._is_owner_back = False
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def runs(self, key: str) -> None:
        """A guest runs here, and nobody moves it."""
        loop = asyncio.get_running_loop()
        self._since[key] = loop.time()
        loop.call_later(AWHILE, self._settle)

    def moves(self, key: str) -> None:
        """A guest is about to be moved, or to end."""
        self._since.pop(key, None)
        self._settle()

    def forget(self, key: str) -> None:
        """A guest has gone."""
        self._since.pop(key, None)

    def weigh(self, is_owner_back: bool) -> None:
        """Says how much those that move guests get: less than the owner's programs, or as much as anybody."""
        self._groups.weigh_remotes(is_owner_back)

    def leave(self, is_owner_back: bool) -> None:
        """All are to move their guests away from now on, since the owner is back, or (False) not any more."""
        if is_owner_back != self._is_owner_back:
            self._is_owner_back = is_owner_back
            self.weigh(is_owner_back)
            self._settle()

    async def settled(self) -> None:
        """Waits until all are where they belong."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def close(self) -> None:
        """Places nobody any more."""
        if self._task is not None:
            self._task.cancel()

    def _wanted(self) -> dict[int, bool]:
        """Programs that are to be placed elsewhere, and where."""
        keys: dict[int, list[str]] = defaultdict(list)
        for key, pid in self._programs().items():
            keys[pid].append(key)
        self._is_at_rest = {pid: where for pid, where in self._is_at_rest.items() if pid in keys}
        before = asyncio.get_running_loop().time() - AWHILE
        wanted = {}
        for pid, guests in keys.items():
            where = self._is_at_rest.get(pid)
            if self._is_owner_back or (where and not all(key in self._since for key in guests)):
                wanted[pid] = False
            elif all(self._since.get(key, before + 1) <= before for key in guests):
                wanted[pid] = True
        return {pid: where for pid, where in wanted.items() if self._is_at_rest.get(pid) is not where}

    def _settle(self) -> None:
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._place())

    async def _place(self) -> None:
        while self._again:
            self._again = False
            for pid, is_at_rest in self._wanted().items():
                self._is_at_rest[pid] = is_at_rest
                await asyncio.to_thread(self._groups.place_remote, pid, is_at_rest)
