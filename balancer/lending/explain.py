"""Explains a lending policy rule by rule, with what each comes to at this moment, and for whom."""

from __future__ import annotations

from dataclasses import dataclass

from balancer.lending.formats import format_days, format_hours, format_seconds, format_size
from balancer.lending.lending import OTHERS, Borrower, class_of
from balancer.lending.policy import ENGINES, LendingPolicy, LendingState


@dataclass(frozen=True, slots=True)
class Line:
    """One rule: what it is about, what it says; holds: whether it lets a guest in now, None if it decides nothing."""

    rule: str
    text: str
    holds: bool | None = None

    def to_wire(self) -> dict[str, object]:
        """As mosctl gets it."""
        return {"rule": self.rule, "text": self.text, "holds": self.holds}


@dataclass(frozen=True, slots=True)
class Explanation:
    """All rules, and the verdict: why no guest, or not that borrower's, would be taken now; None if one would."""

    lines: tuple[Line, ...]
    refusal: str | None


def explain(policy: LendingPolicy, state: LendingState, borrower: Borrower | None = None, memory: int = 0) -> Explanation:
    """Return what the policy says now, in general or for a borrower's guest of so many bytes."""
    refusal = policy.lends(state) if borrower is None else policy.admits(borrower, memory, state)
    lines = [Line("enabled", "guests are taken" if policy.enabled else "no guests are taken", policy.enabled and not state.blocked)]
    if state.blocked:
        lines[0] = Line("blocked", "the node is blocked (mosctl block)", False)
    lines += _what(policy, state)
    lines += _to_whom(policy, state, borrower)
    lines += _when(policy, state)
    lines += [Line("owner is back", text) for text in policy.owner.sentences()]
    if borrower is not None and refusal is not None and (going := policy.makes_room(borrower, memory, state)):
        lines.append(Line("priority", f"{', '.join(going)} would make room for it", True))
        refusal = None
    return Explanation(tuple(lines), refusal)


def _bounded(what: str, used: str, limit: str) -> str:
    return f"{limit} {what}, {used} in use"


def _what(policy: LendingPolicy, state: LendingState) -> list[Line]:
    lines = []
    if policy.max_guests is not None:
        lines.append(Line("guests", f"{policy.max_guests} at most, {state.guests} are here", state.guests < policy.max_guests))
    if policy.max_memory is not None:
        text = _bounded("of memory", format_size(state.guest_memory), format_size(policy.max_memory))
        lines.append(Line("memory", text, state.guest_memory < policy.max_memory))
    if policy.max_disk is not None:
        text = _bounded("of disk", format_size(state.guest_disk), format_size(policy.max_disk))
        lines.append(Line("disk", text, state.guest_disk < policy.max_disk))
    if policy.cores is not None:
        lines.append(Line("cores", f"up to {policy.cores:g} processors"))
    if policy.cpu_share < 1:
        lines.append(Line("cpu share", f"up to {100 * policy.cpu_share:g}% of the processors"))
    weight = "only what nobody else wants" if policy.weight == "idle" else "a twenty-fifth of the weight of the owner's programs"
    lines.append(Line("weight", weight))
    if policy.engines != ENGINES:
        lines.append(Line("engines", f"only {', '.join(sorted(policy.engines))}"))
    if policy.administration is not None:
        lines.append(Line("administration", f"its own is {', '.join(sorted(policy.administration))}"))
    return lines


def _names_groups(policy: LendingPolicy) -> bool:
    """Whether anything depends on the groups that a user is in."""
    lists = [policy.borrowers, policy.deny.borrowers, *(one.borrowers for one in policy.classes)]
    return any(one is not None and one.groups is not None for one in lists)


def _to_whom(policy: LendingPolicy, state: LendingState, borrower: Borrower | None) -> list[Line]:
    allowed = denied = None
    whom = policy.borrowers.sentence()
    if borrower is not None:
        allowed, denied = policy.borrowers.includes(borrower), policy.deny.denies(borrower) is None
        if not borrower.groups and _names_groups(policy):
            whom += f" (in which groups {borrower.user} is, only {borrower.node or 'his home'} knows)"
    lines = [Line("lent to", whom, allowed), Line("denied", policy.deny.sentence(), denied)]
    kind = class_of(policy.classes, borrower) if borrower is not None else None
    for one in policy.classes:
        text = f"priority {one.priority}: {one.borrowers.sentence()}"
        if one.max_guests is not None:
            text += f", {one.max_guests} guests at most"
        if one.max_memory is not None:
            text += f", {format_size(one.max_memory)} of memory at most"
        if one.when is not None:
            text += f", only when {one.when.text} ({one.when.seen(state.values)})"
        takes = one.when is None or one.when.holds(state.values) is True
        lines.append(Line(f"class {one.name}", text, takes if kind is one else None))
    if policy.classes and kind is OTHERS:
        lines.append(Line(f"class {OTHERS.name}", f"priority {OTHERS.priority}", True))
    return lines


def _when(policy: LendingPolicy, state: LendingState) -> list[Line]:
    lines = []
    if policy.hours or len(policy.days) < 7:
        text = format_hours(policy.hours) + (f" on {format_days(policy.days)}" if len(policy.days) < 7 else "")
        lines.append(Line("hours", text, policy.is_open_at(state.minute, state.weekday)))
    if not policy.on_battery:
        lines.append(Line("battery", "not while the node runs on it", not state.is_on_battery))
    if policy.when is not None:
        lines.append(Line("when", f"{policy.when.text} ({policy.when.seen(state.values)})", policy.when.holds(state.values) is True))
    owner = []
    if policy.idle_after:
        owner.append(f"he has used nothing for {format_seconds(policy.idle_after)}")
    if policy.owner.busy_load is not None:
        owner.append(f"his programs use less than {policy.owner.busy_load:g} processors ({policy.owner.idle_load:g} to begin with)")
    if policy.owner.pressure:
        owner.append("nothing waits for memory or disk")
    text = f"lent while {' and '.join(owner)}" if owner else "what he does changes nothing, unless he says so (mosctl owner back)"
    lines.append(Line("owner", text + (f"; now: {state.withheld}" if state.withheld else ""), state.withheld is None))
    return lines
