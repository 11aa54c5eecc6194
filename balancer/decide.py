"""Who should move where, and why: a pure function over what one node knows.

A node decides only about its own processes. A Decision is a proposal: the target checks it again with fresh figures.
The rule for leaving is that of Harchol-Balter and Downey (TOCS 15(3), 1997): a process that has used a seconds of cpu
is expected to use a more, so a move pays if ``a * (slowdown here - slowdown there) > cost``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from balancer.cost import MoveCost
from balancer.gossip import Entry, View
from balancer.load import LoadVector, slowdown
from balancer.policy import format_size

HOME = "home"
ALIKE = 0.1
"""Slowdowns that are told apart when a process is placed."""


@dataclass(frozen=True, slots=True)
class Process:
    """A home process of the deciding node, wherever it is now. Memory in bytes, times in seconds of the caller's clock.

    `where` is "home" or the node it is on; `arrived` when it came there (or started); `moved` the times of its moves
    of the last minute or more, the newest last; `runnable` how many of its threads usually want to run; `moving` that
    a move is under way; `not_before` before when no move is to be tried, after one that failed or was refused; `unfit` says
    of nodes why it cannot go on there.
    """

    pid: int
    cpu_seconds: float
    memory: int
    where: str = HOME
    arrived: float = 0.0
    moved: tuple[float, ...] = ()
    runnable: float = 1.0
    moving: bool = False
    locked: bool = False
    home_only: bool = False
    wanted: str | None = None
    not_before: float = 0.0
    immovable: str | None = None
    unfit: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """The figures of the rules; gains in units of slowdown, times in seconds, memory in bytes."""

    margin: float = 0.25
    home_margin: float = 0.1
    residency: float = 8.0
    residency_costs: float = 3.0
    residency_limit: float = 60.0
    quick: float = 60.0
    stale: float = 10.0
    sample: int = 4
    memory_floor: int = 256 << 20
    memory_floor_share: float = 0.05
    cost: MoveCost = field(default_factory=MoveCost)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with one process and why. `target` is a node, "home", or None: it stays where it is.

    `gain` is the difference of slowdowns, `saved` the wall seconds that the move is expected to save after its cost.
    `slowdown` is that of where the process is, for the target's recheck(); None where somebody asked for the move.
    """

    pid: int
    target: str | None
    reason: str
    gain: float = 0.0
    saved: float = 0.0
    slowdown: float | None = None


@dataclass(frozen=True, slots=True)
class _Candidate:
    target: str
    vector: LoadVector
    gain: float
    saved: float


def decide(
    view: View, mine: Sequence[Process], now: float, rng: random.Random, settings: Settings | None = None
) -> list[Decision]:
    """Return one Decision for each process: at most one of them is a move that leaves or hops, the others say why not.

    A process that wants a node goes first, then the one whose move saves the most time.
    """
    settings = settings or Settings()
    own = view.own
    if own is None:
        return [Decision(process.pid, None, "the load of the home node is not known yet") for process in mine]
    decisions: dict[int, Decision] = {}
    proposals: list[tuple[bool, float, Decision]] = []
    for process in mine:
        reason = _why_never(process, own) or _why_not_now(process, now, settings)
        if reason:
            decisions[process.pid] = Decision(process.pid, None, reason)
            continue
        decision = _wish(view, process, settings) if process.wanted else _best_move(view, own, process, rng, settings)
        decisions[process.pid] = decision
        if decision.target is not None:
            proposals.append((process.wanted is None, -decision.saved, decision))
    # One move at a time, those that come home too: what each of them changes has to be in the figures of the next.
    busy = next((process.pid for process in mine if process.moving), None)
    if busy is None and proposals:
        busy = min(proposals, key=lambda proposal: (*proposal[:2], proposal[2].pid))[2].pid
    for _, _, decision in proposals:
        if decision.pid != busy:
            reason = f"would go to {decision.target}, but waits for the move of process {busy}"
            decisions[decision.pid] = Decision(decision.pid, None, reason, decision.gain, decision.saved)
    return [decisions[process.pid] for process in mine]


def next_interval(period: float, rng: random.Random) -> float:
    """Return the seconds until the next decision, with a jitter of a fifth, so that nodes do not act in step."""
    return period * rng.uniform(0.8, 1.2)


def residency(process: Process, now: float, settings: Settings) -> float:
    """Return the least seconds that a process stays where it came to; each quick move before the last doubles it."""
    recent = sum(1 for moved in process.moved if now - moved < settings.quick)
    least = max(settings.residency, settings.residency_costs * settings.cost.of(process.memory))
    return min(max(settings.residency_limit, least), least * 2.0 ** max(0, min(recent, 32) - 1))


def place(
    view: View, process: Process, rng: random.Random, settings: Settings | None = None, away: bool = False
) -> Decision:
    """Return the best node for a process that asked for it (``mosrun -b``), without the rule of age.

    With `away` (``migrate PID out``) the place it is at and its home do not count.
    """
    settings = settings or Settings()
    own = view.own
    if own is None:
        return Decision(process.pid, None, "the load of the home node is not known yet")
    found: list[tuple[float, float, float, str]] = []
    refused = "no other node is known"
    for entry in view.others():
        refusal = _why_not_there(entry, process, settings)
        if entry.vector.name == process.where:
            refusal = None if not away else f"it is on {process.where} already"
        if refusal:
            refused = refusal
            continue
        more = 0.0 if entry.vector.name == process.where else process.runnable
        slow = entry.vector.slowdown_with(more)
        # Nodes that differ by less than their averages wander are the same: not all are to find the same best one.
        found.append((round(slow / ALIKE), rng.random(), slow, entry.vector.name))
    found.sort()
    at_home = own.slowdown_with(0.0 if process.where == HOME else process.runnable)
    if found and (away or found[0][2] < at_home):
        _, _, slow, name = found[0]
        if name == process.where:
            return Decision(process.pid, None, f"{process.where} is the best node for it")
        # The target refuses if it is no longer better than the next best.
        next_best = max(slow, min([at_home, *(other[2] for other in found[1:2])]))
        slowdown = None if away else next_best + 2 * settings.margin / own.speed
        return Decision(process.pid, name, f"{name} is the best node for it", at_home - slow, slowdown=slowdown)
    if away:
        return Decision(process.pid, None, refused)
    if process.where == HOME:
        return Decision(process.pid, None, "home is the best node for it")
    return Decision(process.pid, HOME, "home is the best node for it")


def recheck(
    vector: LoadVector, source_slowdown: float, runnable: float, settings: Settings | None = None
) -> str | None:
    """Return why the target, by its own fresh vector, finds a balancer's move no longer worth it, or None."""
    settings = settings or Settings()
    there = vector.slowdown_with(runnable)
    if (source_slowdown - there) * vector.speed > settings.margin:
        return None
    return f"{vector.name} is busier than was known: a slowdown of {there:.2f} there, {source_slowdown:.2f} where it is"


def _why_never(process: Process, own: LoadVector) -> str | None:
    if process.moving:
        return "a move of it is under way"
    if process.home_only:
        return "it was started to stay at home"
    if process.locked and not process.wanted:
        return "it is locked against automatic moves"
    if process.immovable:
        return process.immovable
    if process.wanted and process.where == (HOME if process.wanted == own.name else process.wanted):
        return f"it is on {process.wanted}, where it is wanted"
    return None


def _why_not_now(process: Process, now: float, settings: Settings) -> str | None:
    if now < process.not_before:
        return f"its last move failed or was refused; the next is tried in {process.not_before - now:.0f} s"
    stayed, least = now - process.arrived, residency(process, now, settings)
    if process.moved and stayed < least:
        return f"it came {stayed:.0f} s ago and stays {least:.0f} s before it moves again"
    return None


def _why_not_there(entry: Entry, process: Process, settings: Settings) -> str | None:
    """Return why this process cannot go to the node of this entry, in one sentence."""
    vector = entry.vector
    if entry.age > settings.stale:
        return f"nothing has been heard of {vector.name} for {entry.age:.0f} s"
    if entry.suspected:
        return f"{vector.name} does not answer now"
    if vector.name in process.unfit:
        return process.unfit[vector.name]
    if not vector.accepts_guests:
        return f"{vector.name} takes no guests now"
    return _why_no_memory(vector, process, settings)


def _why_no_memory(vector: LoadVector, process: Process, settings: Settings) -> str | None:
    floor = max(settings.memory_floor, int(vector.memory_total * settings.memory_floor_share))
    if vector.memory_free - process.memory < floor:
        free, needed = format_size(vector.memory_free), format_size(process.memory)
        return f"{vector.name} has {free} of memory free, too little for {needed}"
    return None


def _wish(view: View, process: Process, settings: Settings) -> Decision:
    wanted = process.wanted or ""
    if wanted == view.name:
        return Decision(process.pid, HOME, f"it is wanted on {wanted}, its home")
    entry = view.entries.get(wanted)
    refusal = (
        _why_not_there(entry, process, settings) if entry else f"it is wanted on {wanted}, of which nothing is known"
    )
    if refusal:
        return Decision(process.pid, None, refusal)
    return Decision(process.pid, wanted, f"it is wanted on {wanted}")


def _best_move(view: View, own: LoadVector, process: Process, rng: random.Random, settings: Settings) -> Decision:
    here = own if process.where == HOME else None
    if here is None:
        entry = view.entries.get(process.where)
        if entry is None or entry.age > settings.stale:
            reason = f"nothing has been heard of {process.where} lately, so the two cannot be compared"
            return Decision(process.pid, None, reason)
        here = entry.vector
    # What the average does not know yet: the process itself is one of those that run here.
    # All in seconds of a core of home, in which the process's age is (mostly) measured too.
    absolute = slowdown(max(here.runnable, process.runnable), here.cores, here.speed)
    slowdown_here = absolute * own.speed
    candidates: list[_Candidate] = []
    best_no: tuple[float, str] = (-math.inf, "no other node is known")
    for target, vector, refusal in _targets(view, own, process, rng, settings):
        gain = slowdown_here - vector.slowdown_with(process.runnable) * own.speed
        saved = process.cpu_seconds * gain - settings.cost.of(process.memory)
        candidate = _Candidate(target, vector, gain, saved)
        against = refusal or _why_no_gain(candidate, process, slowdown_here, settings)
        if against is None:
            candidates.append(candidate)
        elif gain > best_no[0]:
            best_no = (gain, against)
    if not candidates:
        return Decision(process.pid, None, best_no[1], max(best_no[0], 0.0))
    best = max(candidates, key=lambda found: (found.saved, found.target == HOME, -found.vector.load, found.target))
    place_here = "at home" if process.where == HOME else f"on {process.where}"
    reason = (
        f"a slowdown of {slowdown_here - best.gain:.2f} {_at(best.target)} instead of {slowdown_here:.2f} {place_here}"
        f" saves about {best.saved:.1f} s"
    )
    return Decision(process.pid, best.target, reason, best.gain, best.saved, absolute)


def _targets(
    view: View, own: LoadVector, process: Process, rng: random.Random, settings: Settings
) -> list[tuple[str, LoadVector, str | None]]:
    """Return (target, vector, why it cannot go there) of home, if it is away, and of a few random nodes, an idle one
    among them.

    A few at random and not the best of all: with figures that are seconds old, all nodes would find the same best one.
    """
    found: list[tuple[str, LoadVector, str | None]] = []
    if process.where != HOME:
        found.append((HOME, own, _why_no_memory(own, process, settings)))
    possible: list[LoadVector] = []
    for entry in view.others():
        if entry.vector.name == process.where:
            continue
        refusal = _why_not_there(entry, process, settings)
        if refusal:
            found.append((entry.vector.name, entry.vector, refusal))
        else:
            possible.append(entry.vector)
    chosen = rng.sample(possible, min(settings.sample, len(possible)))
    idle = [vector for vector in possible if vector.runnable < 0.5]
    if idle and not any(vector in chosen for vector in idle):
        chosen.append(rng.choice(idle))
    found.extend((vector.name, vector, None) for vector in chosen)
    return found


def _why_no_gain(candidate: _Candidate, process: Process, slowdown_here: float, settings: Settings) -> str | None:
    margin = settings.home_margin if candidate.target == HOME else settings.margin
    if candidate.gain <= margin:
        there = f"{slowdown_here - candidate.gain:.2f} {_at(candidate.target)}"
        return f"a slowdown of {slowdown_here:.2f} here and {there} is too little to gain"
    if candidate.saved <= 0:
        cost = settings.cost.of(process.memory)
        used = f"{process.cpu_seconds:.1f} s of cpu"
        return f"it has used {used}, too little to pay a move of {cost:.1f} s {_to(candidate.target)}"
    return None


def _at(target: str) -> str:
    return "at home" if target == HOME else f"on {target}"


def _to(target: str) -> str:
    return "home" if target == HOME else f"to {target}"
