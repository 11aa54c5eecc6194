"""Where a process is to be that executes a program: one that usually computes for long goes at once, for it has little to carry then.

The rule for leaving (decide.py) takes the age of a process for what it has before it: a compiler of a second is over before it is old
enough. What its program has used before says more (Douglis and Ousterhout, Software: Practice and Experience 21(8), 1991, move at exec for
the same reason).
"""

from __future__ import annotations

import random
from collections.abc import Container, Mapping
from dataclasses import replace

from balancer.decisions.placement import place
from balancer.decisions.process import Decision, Process, Settings, why_never, why_not_now
from balancer.decisions.programs import Expected
from balancer.load.view import View

LEAST_CPU = 0.1
"""Seconds of cpu that a program must usually use: about as much as its move takes of processors in all, which others want too."""
WORTH = 3.0
"""Times as long as its move takes, by the moves that this node has made, what it has before it would take at home."""
COMING = 4
"""Processes under way to one node because of what they have executed: so many arrive soon, and the node refuses more small ones."""


def why_short(expected: Expected) -> str | None:
    """Return why a program is not worth a move wherever it may be, or None."""
    if expected.cpu >= LEAST_CPU:
        return None
    return f"{_usually(expected)}, less than {LEAST_CPU:g} s"


def _usually(expected: Expected) -> str:
    return f"{expected.name} usually uses {expected.cpu:.2f} s of cpu"


def _why_not_worth(left: float, slowdown: float, takes: float) -> str | None:
    """Return why a process with so many seconds before it, each of which takes so many at home, is not to move for them, or None."""
    if left < LEAST_CPU:
        return f"only {left:.2f} s of that are left"
    if left * slowdown < WORTH * takes:
        return f"that is about {left * slowdown:.1f} s here, less than {WORTH:g} times the {takes:.2f} s that a move takes"
    return None


def decide_at_exec(
    view: View, process: Process, expected: Expected, rng: random.Random, settings: Settings, coming: Mapping[str, int],
    refused: Container[str] = (),
) -> Decision:  # fmt: skip
    """Return where a process at home is to be that has executed a program, by the comparison that places all others.

    The view counts it at home. coming: how many of its like are under way to each node; refused: nodes that have refused it.
    """
    own, pid = view.own, process.pid
    if own is None:
        return Decision(pid, None, "the load of the home node is not known yet")
    # Nobody knows what is under way better than home, which sends it.
    full = {name for name, count in coming.items() if count >= COMING}
    reason = why_never(process, own) or (process.wanted and f"it is wanted on {process.wanted}") or why_not_now(process, 0.0, settings)
    left = expected.cpu - process.cpu_seconds
    reason = reason or _why_not_worth(left, own.slowdown_with(0.0) * own.speed, settings.cost.takes(process.memory))
    if reason:
        return Decision(pid, None, f"{_usually(expected)}; {reason}")
    away = replace(process, calls=max(process.calls, expected.calls))
    best = place(view, away, rng, settings, without=_Either(full, refused))
    if best.target is None:
        return Decision(pid, None, f"{_usually(expected)}; {best.reason}")
    gain = best.gain * own.speed
    saved = left * gain - settings.cost.of(process.memory)
    if gain <= settings.margin or saved <= 0:
        return Decision(pid, None, f"{_usually(expected)}; too little to gain on {best.target}", max(gain, 0.0))
    return replace(best, reason=f"{_usually(expected)}; on {best.target} that saves about {saved:.1f} s", gain=gain, saved=saved)


class _Either(Container[str]):
    """What is in one of them."""

    def __init__(self, *parts: Container[str]) -> None:
        self._parts = parts

    def __contains__(self, name: object) -> bool:
        return any(name in part for part in self._parts)
