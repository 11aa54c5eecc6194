"""What was decided lately, and why: taken or refused, as `mosctl why` prints it."""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from balancer.decisions.process import Decision

LIMIT = 2000
PER_PROCESS = 20
_FIGURE = re.compile(r"(?<!\S)\d\S*\s*")


@dataclass(frozen=True, slots=True)
class Note:
    """A decision about a process, from `first` to `last` (seconds of the caller's clock) made `times` times in a row.

    `where` is where the process was; `target` where it was to go, None: it was to stay. `reason` is the last one, `outcome`
    what came of a move: empty while it is under way, "made", or why it was not.
    """

    first: float
    last: float
    pid: int
    where: str
    target: str | None
    reason: str
    times: int = 1
    outcome: str = ""


class Journal:
    """Keeps the last notes of each process, and of no more than a certain number of all."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._notes: OrderedDict[int, deque[Note]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def record(self, now: float, decision: Decision, where: str) -> None:
        """Keep a decision. One that is as the last was, but for the figures in its reason, is the same one again."""
        notes = self._notes.setdefault(decision.pid, deque())
        self._notes.move_to_end(decision.pid)
        last = notes[-1] if notes else None
        if last is not None and (last.where, last.target, last.outcome) == (where, decision.target, "") and _same(last, decision):
            notes[-1] = Note(last.first, now, decision.pid, where, decision.target, decision.reason, last.times + 1)
            return
        notes.append(Note(now, now, decision.pid, where, decision.target, decision.reason))
        self._count += 1
        if len(notes) > PER_PROCESS:
            notes.popleft()
            self._count -= 1
        while self._count > self._limit:
            # What has not been decided about for the longest goes first: most likely it has ended.
            oldest = next(iter(self._notes))
            self._notes[oldest].popleft()
            self._count -= 1
            if not self._notes[oldest]:
                del self._notes[oldest]

    def concluded(self, pid: int, target: str, outcome: str) -> None:
        """Keep what came of the last decision to move a process to that place."""
        notes = self._notes.get(pid, deque())
        for place in range(len(notes) - 1, -1, -1):
            if notes[place].target == target and not notes[place].outcome:
                notes[place] = replace(notes[place], outcome=outcome)
                return

    def of_process(self, pid: int) -> list[Note]:
        """Return the notes of a process, the newest last."""
        return list(self._notes.get(pid, ()))

    def of_node(self, name: str) -> list[Note]:
        """Return the notes of moves to a node or from it, and of those whose reason names it, the newest last."""
        return sorted((note for note in self._all() if _is_about(note, name)), key=lambda note: note.last)

    def _all(self) -> Iterable[Note]:
        return (note for notes in self._notes.values() for note in notes)


def _is_about(note: Note, name: str) -> bool:
    return name in (note.where, note.target) or name in note.reason.replace(",", " ").replace("'", " ").split()


def _same(note: Note, decision: Decision) -> bool:
    return note.reason == decision.reason or _without_figures(note.reason) == _without_figures(decision.reason)


def _without_figures(reason: str) -> str:
    return _FIGURE.sub("", reason)
