"""How much processor time guests have used since they came, for their homes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from node.cluster.front.peer_server import Caller
from node.common.config import Config
from node.guests.cgroups import GuestGroups
from node.guests.guest import Guest
from node.guests.guest_freezing import GuestFreezing
from node.programs.programs import Program

USAGE_TIMEOUT = 1.0
MOST_ASKED = 256


class GuestUsage:
    """Of the guests of one node, by key."""

    def __init__(
        self, config: Callable[[], Config], guests: Mapping[str, Guest], remotes: Mapping[str, Program], groups: GuestGroups,
        freezing: GuestFreezing,
    ) -> None:  # fmt: skip
        self._config = config
        self._guests = guests
        self._remotes = remotes
        self._groups = groups
        self._freezing = freezing
        self._alone: dict[str, float] = {}
        """Guests that have been alone in their control groups since they came, and seconds of cpu that those had counted before."""

    def begins(self, key: str) -> None:
        """A guest that is about to come has a control group of its own."""
        if (counted := self._groups.cpu(key)) is not None:
            self._alone[key] = counted

    def shares(self, key: str) -> None:
        """Another is in its control group from now on, or it has gone."""
        self._alone.pop(key, None)

    async def seconds(self, caller: Caller, pids: object, reads: bool) -> list[list[float]]:
        """[pid, seconds of cpu since it came, and if wanted bytes that it has read here] of the caller's guests among those pids that
        report in time."""
        keys = {pid: f"{caller.name}-{pid}" for pid in (pids[:MOST_ASKED] if isinstance(pids, list) else ()) if isinstance(pid, int)}
        counted = {pid: self._counted(key) for pid, key in keys.items()}
        programs = {pid: self._remotes[key] for pid, key in keys.items() if counted[pid] is None and key in self._remotes}
        answers = await asyncio.gather(*(program.request("status", USAGE_TIMEOUT) for program in programs.values()), return_exceptions=True)
        return [[pid, cpu, *([0] if reads else [])] for pid, cpu in counted.items() if cpu is not None] + [
            [pid, float(answer["cpu"]), *([int(answer.get("reads", 0))] if reads else [])]
            for pid, answer in zip(programs, answers, strict=True)
            if not isinstance(answer, BaseException) and isinstance(answer.get("cpu"), (int, float)) and answer.get("running")
        ]  # fmt: skip

    async def remembered(self) -> list[dict[str, Any]]:
        """Return for each home what its guests here, of those that answer in time, need not ask it for: how many guests there are, names
        that are known, calls that were answered by names and by what opens had brought, mappings of files that are kept; and how many
        guests have not answered, or were not asked, beyond MOST_ASKED."""
        here = [(self._guests[key].home, program) for key, program in self._remotes.items() if key in self._guests]
        programs, not_asked = here[:MOST_ASKED], here[MOST_ASKED:]
        answers = await asyncio.gather(*(program.request("status", USAGE_TIMEOUT) for _, program in programs), return_exceptions=True)
        found: dict[str, dict[str, Any]] = {
            home: {"home": home, "guests": 0, "names": 0, "from_names": 0, "from_opens": 0, "mapped": 0, "silent": 0} for home, _ in here
        }
        for home, _ in not_asked:
            found[home]["silent"] += 1
        tables: set[tuple[str, int]] = set()
        for (home, _), answer in zip(programs, answers, strict=True):
            figures = [] if isinstance(answer, BaseException) else answer.get("remembered", [])
            row = found[home]
            if len(figures) != 5:
                row["silent"] += 1
                continue
            of_program, names, from_names, from_opens, mapped = (int(number) for number in figures)
            row["guests"] += 1
            row["from_opens"] += from_opens
            row["mapped"] += mapped
            if (home, of_program) not in tables:
                tables.add((home, of_program))
                row["names"] += names
                row["from_names"] += from_names
        return [found[home] for home in sorted(found)]

    def _counted(self, key: str) -> float | None:
        """Seconds of cpu of a guest since it came, if nobody has to be woken up for that: of one that reads no files without its home,
        and whose control group is its own."""
        guest, before = self._guests.get(key), self._alone.get(key)
        if guest is None or before is None or self._config().mfs.is_direct or not self._freezing.is_here(guest):
            return None
        now = self._groups.cpu(key)
        return max(0.0, now - before) if now is not None else None
