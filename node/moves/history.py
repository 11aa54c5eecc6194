"""What became of one home process: its last moves and failures, what took it home how often, and why moves were not made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kernel_helpers.calls.numbers import NUMBERS

BORN = "born"
"""What a monitor learns of births, which are in no history: their time is the kernel's."""
KEPT_HAPPENINGS = 12
KEPT_REASONS = 40
"""Different reasons that are counted; those that come later are counted together as OTHERS."""
OTHERS = "other reasons"
LONGEST = 200

MOVED, FAILED, EXECUTED, ENDED, LOST = "moved", "failed", "executed", "ended", "lost"


@dataclass(frozen=True)
class Happening:
    """A move that was made, one that was not, a program that was executed away (`reason` is its command line), or the end: in order, or
    that it was lost. `at` in seconds since the epoch, the last time if it came `times` times in a row."""

    at: float
    what: str
    source: str
    target: str
    reason: str
    times: int = 1


@dataclass(frozen=True)
class Count:
    """How often a reason came, and when last (seconds since the epoch)."""

    times: int
    last: float


@dataclass(frozen=True)
class History:
    """`home`: what took it home, by the name of a call or a sentence; `failed`: why moves were not made; `recent`: the last few
    happenings, the newest last."""

    home: Mapping[str, Count] = field(default_factory=dict)
    failed: Mapping[str, Count] = field(default_factory=dict)
    recent: tuple[Happening, ...] = ()

    def moved(self, at: float, source: str, target: str, reason: str) -> History:
        """With one more move that was made; one that is heard of after the end of the process was before it, which was there."""
        reason = reason[:LONGEST]
        home = _counted(self.home, reason, at) if target == "home" else self.home
        return replace(self, home=home, recent=_before_end(self.recent, Happening(at, MOVED, source, target, reason)))

    def not_moved(self, at: float, source: str, target: str, reason: str) -> History:
        """With one more move that failed or was refused; as moved()."""
        reason = reason[:LONGEST]
        return replace(
            self,
            failed=_counted(self.failed, reason, at),
            recent=_before_end(self.recent, Happening(at, FAILED, source, target, reason)),
        )

    def executed(self, at: float, where: str, command: str) -> History:
        """With one more program that was executed away, and came to where the process was."""
        return replace(self, recent=_appended(self.recent, Happening(at, EXECUTED, where, where, command[:LONGEST])))

    def ended(self, at: float, where: str) -> History:
        """With its end, unless it was lost, which has been reported."""
        if self.is_lost:
            return self
        return replace(self, recent=_appended(self.recent, Happening(at, ENDED, where, where, "")))

    def lost(self, at: float, where: str, reason: str) -> History:
        """It has not ended by itself: farhome has lost it."""
        recent = tuple(happening for happening in self.recent if happening.what != ENDED)
        return self if self.is_lost else replace(self, recent=_appended(recent, Happening(at, LOST, where, where, reason[:LONGEST])))

    @property
    def is_lost(self) -> bool:
        """Whether it is known that it was lost."""
        return any(happening.what == LOST for happening in self.recent[-1:])

    def row(self, happenings: bool = True) -> dict[str, Any]:
        """Return what `mosps --json` shows: reasons, the most frequent first, and the happenings if they are asked for."""
        row: dict[str, Any] = {
            "taken_home": [{**entry, "call": is_call(entry["reason"])} for entry in _sorted(self.home)],
            "failed": _sorted(self.failed),
        }
        return row | ({"recent": [asdict(happening) for happening in self.recent]} if happenings else {})


def is_call(reason: str) -> bool:
    """Return whether what took a process home is a system call, which only home can make."""
    return reason.isdigit() or reason in NUMBERS


def _counted(counts: Mapping[str, Count], reason: str, at: float) -> dict[str, Count]:
    if reason not in counts and len(counts) >= KEPT_REASONS:
        reason = OTHERS
    before = counts.get(reason)
    return {**counts, reason: Count(before.times + 1 if before else 1, at)}


def _appended(recent: tuple[Happening, ...], new: Happening) -> tuple[Happening, ...]:
    """The balancer tries again what was refused, every few seconds: the same once more is no new happening."""
    last = recent[-1] if recent else None
    if last is not None and new.what == FAILED and replace(last, at=new.at, times=1) == new:
        return (*recent[:-1], replace(new, times=last.times + 1))
    return (*recent, new)[-KEPT_HAPPENINGS:]


def _before_end(recent: tuple[Happening, ...], new: Happening) -> tuple[Happening, ...]:
    """What is heard of a process after its end was before it, and the end there."""
    if not recent or recent[-1].what not in (ENDED, LOST):
        return _appended(recent, new)
    end = recent[-1]
    where = new.target if new.what == MOVED else end.target
    return _appended(_appended(recent[:-1], replace(new, at=min(new.at, end.at))), replace(end, source=where, target=where))


def _sorted(counts: Mapping[str, Count]) -> list[dict[str, Any]]:
    rows = [{"reason": reason, **asdict(count)} for reason, count in counts.items()]
    return sorted(rows, key=lambda row: (-row["times"], row["reason"]))


def from_record(record: object) -> History:
    """Return a history from a process's file. Errors: ValueError."""
    if not isinstance(record, dict):
        raise ValueError("its history is no object")
    try:
        home, failed = (
            {str(reason): Count(int(c["times"]), float(c["last"])) for reason, c in record[key].items()} for key in ("home", "failed")
        )
        return History(
            home,
            failed,
            tuple(
                Happening(float(h["at"]), str(h["what"]), str(h["source"]), str(h["target"]), str(h["reason"]), int(h["times"]))
                for h in record["recent"]
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"its history makes no sense ({error})") from None
