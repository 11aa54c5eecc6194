"""Who should move where, and why: a pure function over what one node knows.

A node decides only about its own processes. A Decision is a proposal: the target checks it again with fresh figures.
The rule for leaving is that of Harchol-Balter and Downey (TOCS 15(3), 1997): a process that has used a seconds of cpu
is expected to use a more, so a move pays if ``a * (slowdown here - slowdown there) > cost``. One that neither gains nor loses
much goes where a core is that nobody wants, for what those gain that stay, which are taken for as old as it is: else a slow
node would be idle beside a fast one on which two have half of the processor each.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from balancer.decisions.nearness import stretch, words_on
from balancer.decisions.opportunity import burden, has_room, memory_price, price, relief
from balancer.decisions.process import (
    HOME,
    Decision,
    Process,
    Settings,
    why_never,
    why_no_memory,
    why_not_again,
    why_not_now,
    why_not_there,
)
from balancer.decisions.targets import sampled
from balancer.decisions.ushering import usher
from balancer.load.load import LoadVector, slowdown
from balancer.load.view import View

PERIOD = 1.0
"""Seconds between two decisions of a node."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    target: str
    vector: LoadVector
    gain: float
    relief: float
    saved: float
    costs: float
    """seconds that it costs those that run there, who are taken for as old as it is"""


def decide(view: View, mine: Sequence[Process], now: float, rng: random.Random, settings: Settings | None = None) -> list[Decision]:
    """Return one Decision for each process: at most one of them is a move that leaves or hops, the others say why not.

    A process that wants a node goes first, then one that leaves a place where memory is short, then the one whose move saves
    the most time.
    """
    settings = settings or Settings()
    own = view.own
    if own is None:
        return [Decision(process.pid, None, "the load of the home node is not known yet") for process in mine]
    decisions: dict[int, Decision] = {}
    proposals: list[tuple[int, float, Decision]] = []
    ushered = {decision.pid: decision for decision in usher(view, own, mine, now, settings)}
    for process in mine:
        if process.pid in ushered:
            decisions[process.pid] = ushered[process.pid]
            proposals.append((1, 0.0, ushered[process.pid]))
            continue
        reason = why_never(process, own) or why_not_now(process, now, settings)
        if process.wanted:
            reason = reason or why_not_again(process, 0.0, now, settings)
        if reason:
            decisions[process.pid] = Decision(process.pid, None, reason)
            continue
        decision = _wish(view, process, settings) if process.wanted else _best_move(view, own, process, now, rng, settings)
        decisions[process.pid] = decision
        if decision.target is not None:
            proposals.append((0 if process.wanted else 2, -decision.saved, decision))
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


def _wish(view: View, process: Process, settings: Settings) -> Decision:
    wanted = process.wanted or ""
    if wanted == view.name:
        return Decision(process.pid, HOME, f"it is wanted on {wanted}, its home")
    entry = view.entries.get(wanted)
    refusal = why_not_there(entry, process, settings) if entry else f"it is wanted on {wanted}, of which nothing is known"
    if refusal:
        return Decision(process.pid, None, refusal)
    return Decision(process.pid, wanted, f"it is wanted on {wanted}")


def _best_move(view: View, own: LoadVector, process: Process, now: float, rng: random.Random, settings: Settings) -> Decision:
    here = own if process.where == HOME else None
    if here is None:
        entry = view.entries.get(process.where)
        if entry is None or entry.age > settings.stale:
            reason = f"nothing has been heard of {process.where} lately, so the two cannot be compared"
            return Decision(process.pid, None, reason)
        here = entry.vector
    # What the average does not know yet: the process itself is one of those that run here.
    # All in seconds of a core of home, in which the process's age is (mostly) measured too.
    absolute = slowdown(max(here.contending, process.runnable), here.cores, here.speed)
    nodes = len(view.entries)
    stretch_here = stretch(process, process.where, settings)
    stretched = absolute * stretch_here - memory_price(here, -process.memory, nodes)
    slowdown_here = stretched * own.speed
    candidates: list[_Candidate] = []
    nearest: tuple[_Candidate, str | None] | None = None
    """of those where it does not go, the one where it would be best off, and what stands against that node if something does"""
    for target, vector, refusal in _targets(view, own, process, rng, settings):
        there = price(vector, process.runnable, process.memory, nodes) * stretch(process, target, settings)
        gain = slowdown_here - there * own.speed
        relieved = relief(here, process.runnable) * own.speed if _goes_for_others(vector, process, gain, settings) else 0.0
        saved = process.cpu_seconds * (gain + relieved) - settings.cost.of(process.memory)
        costs = process.cpu_seconds * burden(vector, process.runnable) * own.speed
        candidate = _Candidate(target, vector, gain, relieved, saved, costs)
        against = refusal
        if against is None and _pays(candidate, settings):
            against = why_not_again(process, gain / slowdown_here, now, settings)
            if against is None:
                candidates.append(candidate)
                continue
        if nearest is None or gain > nearest[0].gain:
            nearest = candidate, against
    if not candidates and nearest is not None:
        reason = nearest[1] or _why_no_gain(nearest[0], process, slowdown_here, settings)
        return Decision(process.pid, None, reason, max(nearest[0].gain, 0.0))
    if not candidates:
        return Decision(process.pid, None, "no other node is known")
    best = max(candidates, key=lambda found: (found.saved - found.costs, found.target == HOME, -found.vector.load, found.target))
    place_here = "at home" if process.where == HOME else f"on {process.where}"
    reason = (
        f"a slowdown of {slowdown_here - best.gain:.2f} {_at(best.target)} instead of {slowdown_here:.2f} {place_here}"
        f"{_for_others(best.relief)} saves about {best.saved:.1f} s{words_on(process, best.target, settings)}"
    )
    # The target knows how busy it is, and neither what the process reads and writes nor who stays: so much slower it may be, as that is
    # nearer there, and as they gain.
    worth = (absolute * stretch_here + best.relief / own.speed) / stretch(process, best.target, settings)
    return Decision(process.pid, best.target, reason, best.gain, best.saved, worth)


def _targets(
    view: View, own: LoadVector, process: Process, rng: random.Random, settings: Settings
) -> list[tuple[str, LoadVector, str | None]]:
    """Return (target, vector, why it cannot go there) of home, if it is away, and of the nodes that are looked at."""
    possible, refused = sampled(view, process, rng, settings)
    found: list[tuple[str, LoadVector, str | None]] = [(vector.name, vector, None) for vector in possible]
    found += [(vector.name, vector, refusal) for vector, refusal in refused]
    return [(HOME, own, why_no_memory(own, process, settings)), *found] if process.where != HOME else found


def _goes_for_others(vector: LoadVector, process: Process, gain: float, settings: Settings) -> bool:
    return -settings.sacrifice <= gain <= settings.margin and has_room(vector, process.runnable)


def _gains(candidate: _Candidate, settings: Settings) -> bool:
    return candidate.gain + candidate.relief > (settings.home_margin if candidate.target == HOME else settings.margin)


def _pays(candidate: _Candidate, settings: Settings) -> bool:
    return _gains(candidate, settings) and candidate.saved > 0


def _why_no_gain(candidate: _Candidate, process: Process, slowdown_here: float, settings: Settings) -> str:
    """Why it does not pay."""
    if not _gains(candidate, settings):
        there = f"{slowdown_here - candidate.gain:.2f} {_at(candidate.target)}"
        near = words_on(process, candidate.target, settings)
        return f"a slowdown of {slowdown_here:.2f} here and {there}{near} is too little to gain"
    cost, used = settings.cost.of(process.memory), f"{process.cpu_seconds:.1f} s of cpu"
    return f"it has used {used}, too little to pay a move of {cost:.1f} s {_to(candidate.target)}"


def _for_others(relief: float) -> str:
    return f", and {relief:.2f} less for those that stay," if relief > 0 else ""


def _at(target: str) -> str:
    return "at home" if target == HOME else f"on {target}"


def _to(target: str) -> str:
    return "home" if target == HOME else f"to {target}"
