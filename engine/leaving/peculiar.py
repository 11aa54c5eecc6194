"""What a program has set about itself that no move carries (kernel_helpers/calls/settings.table). Most of it only the process can know,
which has to stand still for that."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping

from engine.calls import rests, standstill
from engine.calls.finishing import Rests
from engine.calls.restarts import shorten, timed_waits, waiting_places
from engine.context import confinement
from kernel_helpers.calls.settings import Setting, settings
from kernel_helpers.inspection import tasks
from kernel_helpers.pages.tables import vmas
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS, U64

ITIMER_VIRTUAL, ITIMER_PROF = 1, 2
CPU_TIMER = "it has a timer that counts its processor time ({})"
_SLOT = 64


@functools.cache
def lines() -> tuple[str, ...]:
    """Of a status: how those begin by which by_looking() knows."""
    words = [row.read.split()[1] for row in settings() if row.fate == "stays" and row.pattern]
    return tuple(re.split(r"\W", word, maxsplit=1)[0] for word in words)


def by_looking(pid: int, statuses: Mapping[int, bytes] | None = None, may_be_sealed: bool = True) -> Iterator[str]:
    """What /proc shows. statuses: with these lines() of all threads, if they have been read; may_be_sealed: a mapping of it, as far as is
    known. Errors: OSError (FileNotFoundError, ProcessLookupError: it has ended)."""
    rows = [row for row in settings() if row.fate == "stays"]
    for row in rows:
        if row.read.startswith("file "):
            with open(f"/proc/{pid}/{row.read.split()[1]}", encoding="ascii") as file:
                if row.is_set(int(file.read(), 16)):
                    yield row.words
    patterns = [(re.compile(row.pattern.encode(), re.MULTILINE), row.words) for row in rows if row.pattern]
    reported = statuses if statuses is not None else tasks.texts(pid, "status", lines())
    for text in dict.fromkeys(reported.values()):
        yield from (words for pattern, words in patterns if pattern.search(text))
    if may_be_sealed and vmas.is_sealed(pid):
        yield _words("mseal")


def by_asking(frozen: Frozen, with_timers: bool = True) -> str | None:
    """Return what only the process itself can find out: the first. with_timers: also those of setitimer(2) that count processor time.
    Errors: OSError."""
    reason = confinement.obstacle(frozen)
    if reason is not None:
        return reason
    rows = [row for row in settings() if row.fate == "stays" and row.read.startswith("call ")]
    timers = (ITIMER_VIRTUAL, ITIMER_PROF) if with_timers else ()
    with frozen.scratch(_SLOT * (len(rows) + len(timers)) * 2) as address:
        places = [address + _SLOT * number for number in range(len(rows) + len(timers))]
        frozen.write(address, bytes(_SLOT * len(places)))
        calls: list[tuple[int, ...]] = [(SYS.getitimer, which, place) for which, place in zip(timers, places, strict=False)]
        calls += [_call(row, place) for row, place in zip(rows, places[len(timers) :], strict=True)]
        results = frozen.leader.calls(calls, address + _SLOT * len(places))
        memory = frozen.read(address, _SLOT * len(places))
    for number in range(len(timers)):
        if any(memory[_SLOT * number + 16 : _SLOT * number + 32]):
            return CPU_TIMER.format("setitimer")
    for number, row in enumerate(rows, len(timers)):
        result, at = results[number], _SLOT * number
        if result < 0:
            continue  # this kernel, or processor, has no such thing
        size = _size(row)
        if row.is_set(int.from_bytes(memory[at : at + size], "little") if size and result == 0 else result & U64):
            return row.words
    return None


def ask(pid: int) -> str | None:
    """Return the same of a process that runs, and runs on; it stands still meanwhile. Errors: OSError, MoveRefused."""
    places = waiting_places(pid)
    waits = timed_waits(pid, places)
    frozen, ends = standstill.stop(pid, places, waits)
    made, cuts = Rests(pid), dict[int, rests.Cut]()
    try:
        cuts = rests.find(frozen)
        return by_asking(frozen)
    finally:
        shorten(frozen, ends)
        made.detach(frozen, cuts)
        made.wait()


def _call(row: Setting, place: int) -> tuple[int, ...]:
    """Number and arguments."""
    _, name, *words = row.read.split()
    return SYS[name], *(place if word.startswith("@") else int(word, 0) for word in words), *([0] * (5 - len(words)))


def _size(row: Setting) -> int:
    """Bytes of memory that the call writes, and that are the value; 0: its result is."""
    memory = [int(word[1:]) for word in row.read.split() if word.startswith("@")]
    return memory[0] if memory and memory[0] <= 8 else 0


def _words(name: str) -> str:
    return next(row.words for row in settings() if row.name == name)


__all__ = ["CPU_TIMER", "ask", "by_asking", "by_looking", "lines"]
