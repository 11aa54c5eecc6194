"""Memory ushering: before a node begins to thrash, a process leaves it for one that has memory to spare.

After Barak and Braverman (Journal of Computer and System Sciences 1998): short memory counts for more than any load. The
smallest process that relieves the node goes, to the node where it fits best, however young it is or lately it came.
"""

from __future__ import annotations

from collections.abc import Sequence

from balancer.decisions.process import HOME, Decision, Process, Settings, why_never, why_no_memory, why_not_there
from balancer.lending.formats import format_size
from balancer.load.load import MEMORY_SHORT, LoadVector
from balancer.load.view import View


def usher(view: View, own: LoadVector, mine: Sequence[Process], now: float, settings: Settings) -> list[Decision]:
    """Return a move for each place that is short of memory, if there is one that helps."""
    places = {HOME: own} | {entry.vector.name: entry.vector for entry in view.others()}
    found = []
    for place, vector in places.items():
        if vector.memory_short:
            # One after the other: the figures do not know yet of memory that is just leaving.
            there = [process for process in mine if process.where == place]
            fit = [p for p in there if p.memory and not p.wanted and now >= p.not_before and why_never(p, own) is None]
            if not any(process.moving for process in there):
                found += _one(view, own, place, vector, fit, settings)
    return found


def _one(view: View, own: LoadVector, place: str, vector: LoadVector, processes: Sequence[Process], settings: Settings) -> list[Decision]:
    deficit = settings.memory_relief * MEMORY_SHORT * vector.memory_total - vector.memory_free
    # The smallest that is enough, or else the greatest.
    for process in sorted(processes, key=lambda p: (p.memory < deficit, p.memory if p.memory >= deficit else -p.memory)):
        target = _best_fit(view, own, process, settings)
        if target is not None:
            name, free = target
            where = "at home" if place == HOME else f"on {place}"
            reason = f"memory is short {where} ({format_size(vector.memory_free)} free), and {format_size(free)} free where it goes"
            return [Decision(process.pid, name, reason)]
    return []


def _best_fit(view: View, own: LoadVector, process: Process, settings: Settings) -> tuple[str, int] | None:
    """Return (name, bytes free) of home if the process is away and fits there, else of the node with the least that is enough."""
    if process.where != HOME and not own.memory_short and why_no_memory(own, process, settings) is None:
        return HOME, own.memory_free
    fits = [
        (entry.vector.memory_free, entry.vector.name)
        for entry in view.others()
        if entry.vector.name != process.where and why_not_there(entry, process, settings) is None
    ]
    free, name = min(fits, default=(0, ""))
    return (name, free) if name else None
