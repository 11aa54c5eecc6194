"""Stops a process out of whatever calls it waits in, knowing which they are and until when."""

from __future__ import annotations

from engine.calls import rests
from engine.calls.restarts import (
    TimedWait,
    await_places,
    deadlines,
    is_unknown,
    name_restarted_calls,
    note_masks,
    shorten,
    timed_waits,
    waiting_places,
)
from kernel_helpers.process.seizing import Frozen, seize

_TRIES = 5


def stop(pid: int, places: dict[int, str], waits: dict[int, TimedWait]) -> tuple[Frozen, dict[int, int]]:
    """Return all threads stopped, and until when those of them wait that are in a call with a deadline. What they waited in, and how, has
    been looked at just before (waiting_places(), timed_waits()).

    A thread that was let go by another stop just before may not have got back to where it waits, and nothing reports its call then: it
    goes on for a moment once more. Errors: as seize()."""
    for tries in range(_TRIES):
        frozen = seize(pid)
        try:
            note_masks(frozen)
            unknown = [tid for tid, thread in frozen.threads.items() if is_unknown(thread, places)]
            name_restarted_calls(frozen, places)
            ends = deadlines(frozen, waits)
            if not unknown or tries == _TRIES - 1 or rests.find(frozen):
                return frozen, ends
            shorten(frozen, ends)
        except BaseException:
            frozen.detach()
            raise
        frozen.detach()
        await_places(pid, unknown)
        places = waiting_places(pid)
        waits = timed_waits(pid, places)
    raise AssertionError("the last try returns")
