"""What programs have used before, by user and path: what is to be expected of one that is just being executed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

RUNS = 5
"""The last ones of a program, of which the median counts."""
LEAST = 0.05
"""Seconds of cpu: programs that use less each time are short, and nothing is kept of them."""
MOST_PROGRAMS = 256
"""Of one user; that which was used the longest time ago makes room."""
MOST_USERS = 64
LONGEST = 1e9
"""Seconds, and calls a second, beyond which no figure is believed."""

Key = tuple[int, str]
"""User and path."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Of one run: seconds of cpu, and calls that home answers while it is away, for each of them; of how many runs that is known."""

    path: str
    cpu: float
    calls: float
    runs: int

    @property
    def name(self) -> str:
        """As people call it."""
        return self.path.rpartition("/")[2] or self.path


@dataclass(frozen=True, slots=True)
class _Runs:
    """The last ones, the newest last; those at home say nothing of calls."""

    cpu: tuple[float, ...] = ()
    calls: tuple[float, ...] = ()

    def with_one(self, cpu: float, calls: float | None) -> _Runs:
        return _Runs((*self.cpu, cpu)[-RUNS:], self.calls if calls is None else (*self.calls, calls)[-RUNS:])


class Programs:
    """Of all users, bounded."""

    def __init__(self) -> None:
        self._users: OrderedDict[int, OrderedDict[str, _Runs]] = OrderedDict()

    def __iter__(self) -> Iterator[Key]:
        return ((uid, path) for uid, programs in self._users.items() for path in programs)

    def expected(self, uid: int, path: str) -> Expected | None:
        """What one run of that program will use by what it has used before; None: nothing is known."""
        runs = self._users.get(uid, OrderedDict()).get(path)
        if runs is None:
            return None
        return Expected(path, median(runs.cpu), median(runs.calls) if runs.calls else 0.0, len(runs.cpu))

    def record(self, uid: int, path: str, cpu: float, calls: float | None = None) -> list[Key]:
        """Keep one more run: seconds of cpu, and calls for each of them (None: it has not been away). Return what is forgotten for it; that
        program itself, if it is a short one."""
        if not 0 <= cpu <= LONGEST or (calls is not None and not 0 <= calls <= LONGEST):
            raise ValueError("a program has used something that cannot be")
        programs = self._users.setdefault(uid, OrderedDict())
        self._users.move_to_end(uid)
        runs = programs[path] = programs.get(path, _Runs()).with_one(cpu, calls)
        programs.move_to_end(path)
        forgotten: list[Key] = []
        if max(runs.cpu) < LEAST:
            del programs[path]
            forgotten.append((uid, path))
        if len(programs) > MOST_PROGRAMS:
            forgotten.append((uid, programs.popitem(last=False)[0]))
        if not programs:
            del self._users[uid]
        if len(self._users) > MOST_USERS:
            oldest, gone = self._users.popitem(last=False)
            forgotten += [(oldest, one) for one in gone]
        return forgotten

    def to_record(self) -> list[list[object]]:
        """As it is kept: user, path, seconds, calls; what was used last comes last."""
        return [
            [uid, path, [round(cpu, 4) for cpu in runs.cpu], [round(calls, 1) for calls in runs.calls]]
            for uid, programs in self._users.items()
            for path, runs in programs.items()
        ]

    @classmethod
    def from_record(cls, record: object) -> Programs:
        """What was kept. Errors: ValueError, TypeError if it is none of ours."""
        made = cls()
        if not isinstance(record, list):
            raise ValueError("no list of programs")
        for uid, path, seconds, calls in record:
            if type(uid) is not int or not isinstance(path, str) or not isinstance(seconds, list) or not isinstance(calls, list):
                raise ValueError("a program without user, path or runs")
            runs = _Runs(tuple(map(float, seconds[-RUNS:])), tuple(map(float, calls[-RUNS:])))
            if not runs.cpu or not all(0 <= figure <= LONGEST for figure in (*runs.cpu, *runs.calls)):
                raise ValueError(f"{path} has runs that cannot be")
            made._users.setdefault(uid, OrderedDict())[path] = runs
        if len(made._users) > MOST_USERS or any(len(programs) > MOST_PROGRAMS for programs in made._users.values()):
            raise ValueError("more programs than are kept")
        return made
