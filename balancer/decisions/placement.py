"""Where a process is to be that its user wants on the best node (``mosrun -b``, ``migrate PID balance``, ``out``): no rule of age."""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Iterator

from balancer.decisions.nearness import stretch
from balancer.decisions.opportunity import price
from balancer.decisions.process import HOME, Decision, Process, Settings
from balancer.decisions.targets import sampled
from balancer.load.view import View

ALIKE = 0.1
"""Slowdowns that count as different when a process is placed."""


def place(
    view: View, process: Process, rng: random.Random, settings: Settings | None = None, away: bool = False,
    without: Container[str] = (),
) -> Decision:  # fmt: skip
    """Return the best for a process of a few nodes, home and where it is; not those `without`, which have refused it.

    With `away` (``migrate PID out``) the place it is at and its home do not count.
    """
    settings = settings or Settings()
    own = view.own
    if own is None:
        return Decision(process.pid, None, "the load of the home node is not known yet")
    possible, refused = sampled(view, process, rng, settings, without)
    here = view.entries.get(process.where)
    if not away and here is not None and here.age <= settings.stale and process.where not in without:
        possible.append(here.vector)
    found: list[tuple[float, float, float, str]] = []
    for vector in possible:
        is_there = vector.name == process.where
        slow = price(vector, 0.0 if is_there else process.runnable, 0 if is_there else process.memory, len(view.entries))
        slow *= stretch(process, vector.name, settings)
        # Nodes that differ by less than their averages wander are the same: not all are to find the same best one.
        found.append((round(slow / ALIKE), rng.random(), slow, vector.name))
    found.sort()
    at_home = own.slowdown_with(0.0 if process.where == HOME else process.runnable) * stretch(process, HOME, settings)
    if found and (away or found[0][2] < at_home):
        _, _, slow, name = found[0]
        if name == process.where:
            return Decision(process.pid, None, f"{process.where} is the best node for it")
        # The target refuses if it is no longer better than the next best.
        next_best = max(slow, min([at_home, *(other[2] for other in found[1:2])]))
        slowdown = None if away else next_best + 2 * settings.margin / own.speed
        return Decision(process.pid, name, f"{name} is the best node for it", at_home - slow, slowdown=slowdown)
    if away:
        at = f"it is on {process.where} already" if process.where != HOME else "no other node is known"
        return Decision(process.pid, None, refused[-1][1] if refused else at)
    if process.where == HOME:
        return Decision(process.pid, None, "home is the best node for it")
    return Decision(process.pid, HOME, "home is the best node for it")


def placings(view: Callable[[], View], process: Process, rng: random.Random, settings: Settings) -> Iterator[Decision]:
    """Yield where to place a process that has begun at home; asked for another, it takes the last target for one that has refused.

    After a few it stays at home: those that know nothing of one another's places must not go round for ever.
    """
    refused: set[str] = set()
    for _ in range(settings.placings):
        decision = place(view(), process, rng, settings, without=refused)
        yield decision
        if decision.target is None:
            return
        refused.add(decision.target)
