"""The owner of a node comes back, and goes away: what becomes of guests, and when. A pure state machine: time is passed in.

    OWNER -> LENDING -> [SUSPECTED ->] THROTTLED -> FROZEN -> EVICTING -> LATE
      ^________|____________________________|___________|__________|__________|

Each step is taken only if the policy goes that far, and the one after it only while the reason lasts. Guests are held back at once
(THROTTLED), so that the owner feels nothing of what comes after; what is LATE has not gone within the policy's deadline. A load that is
seen for a moment only holds them back as well (SUSPECTED), and if it was no more than that they have lost next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from balancer.lending.formats import format_seconds
from balancer.lending.values import Table

LAST_STEPS = ("checkpoint", "keep", "kill")
GOES_AS_FAR_AS = ("nothing", "throttle", "freeze", "evict")
SUSPICION = 0.2
"""Seconds for which it lasts at least, so that guests are not held back and let go many times a second."""
AT_ONCE = 2
"""Guests that leave at a time: they share the network."""


class Stage(Enum):
    """How it is between the owner and the guests."""

    OWNER = "owner"
    """the owner has the node: no guests are taken"""
    LENDING = "lending"
    SUSPECTED = "suspected"
    """the owner may have begun something; what he has begun is not known to last"""
    THROTTLED = "throttled"
    FROZEN = "frozen"
    EVICTING = "evicting"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class OwnerRules:
    """[lend.owner]: what says that the owner is back, and what is done then. Times in seconds; loads in processors."""

    input: tuple[str, ...] | None = None
    logins: bool = True
    busy_load: float | None = None
    idle_load: float = 0.3
    pressure: bool = False
    on_return: str = "evict"
    throttle: float = 0.05
    freeze_after: float = 0.1
    evict_after: float = 0.5
    calm: float = 2.0
    deadline: float = 10.0
    then: str = "checkpoint"

    @classmethod
    def from_table(cls, table: Table) -> OwnerRules:
        """Errors: Mistake."""
        default = cls()
        rules = cls(
            input=table.paths("input"),
            logins=table.truth("logins", default.logins),
            busy_load=table.number("busy_load", 0, 4096),
            idle_load=table.number("idle_load", 0, 4096, default.idle_load) or default.idle_load,
            pressure=table.truth("pressure", default.pressure),
            on_return=table.choice("on_return", GOES_AS_FAR_AS, default.on_return),
            throttle=table.share("throttle", default.throttle) or default.throttle,
            freeze_after=table.seconds("freeze_after", default.freeze_after),
            evict_after=table.seconds("evict_after", default.evict_after),
            calm=table.seconds("calm", default.calm),
            deadline=table.seconds("deadline", default.deadline),
            then=table.choice("then", LAST_STEPS, default.then),
        )
        table.close()
        if rules.busy_load is not None and rules.idle_load > rules.busy_load:
            raise table.wrong("idle_load" if table.has("idle_load") else "busy_load", "makes idle_load greater than busy_load")
        if rules.deadline <= 0:
            raise table.wrong("deadline", "is no time at all: guests could not go")
        return rules

    def goes_to(self, step: str) -> bool:
        """Return whether the policy goes as far as that step."""
        return GOES_AS_FAR_AS.index(self.on_return) >= GOES_AS_FAR_AS.index(step)

    def sentences(self) -> list[str]:
        """Return what is done when the owner is back, as people read it."""
        done = []
        if self.goes_to("throttle"):
            done.append(f"at once guests get the idle class and at most {100 * self.throttle:g}% of the processors")
        if self.goes_to("freeze"):
            done.append(f"after {format_seconds(self.freeze_after)} they stand still")
        if self.goes_to("evict"):
            last = {
                "checkpoint": "their homes take them back and make a checkpoint of them",
                "keep": "they stay, held back",
                "kill": "they are killed",
            }[self.then]
            done.append(f"after {format_seconds(self.evict_after)} more they are sent away")
            done.append(f"of those that are still here {format_seconds(self.deadline)} later: {last}")
        return done or ["nothing"]


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen of the owner at one moment. idle: seconds since the node was last used, None if nobody can know; load: processors
    that are used by others than guests; closed: why the policy lends nothing at this time (hours, battery, its condition)."""

    idle: float | None = None
    load: float | None = None
    surge: float | None = None
    """the same of the last moment, which may be over at once"""
    is_pressed: bool = False
    is_called: bool = False
    """by hand: mosctl owner back"""
    closed: str | None = None
    guests: int = 0


def why_back(rules: OwnerRules, idle_after: float, sight: Sight, is_lending: bool = True) -> str | None:
    """Return why the owner needs the node, in one sentence, or None. To lend again less load is allowed than to go on."""
    if sight.is_called:
        return "the owner has the node (mosctl owner back)"
    if idle_after and sight.idle is None:
        return "the node lends only when its owner is idle, and it cannot know whether they are"
    if idle_after and sight.idle is not None and sight.idle < idle_after:
        return f"the owner used the node {sight.idle:.0f} s ago, and it lends only after {idle_after:.0f} s"
    if rules.busy_load is not None and sight.load is not None:
        limit = rules.busy_load if is_lending else rules.idle_load
        if sight.load > limit:
            return f"the owner's own programs use {sight.load:.1f} processors, and it lends up to {limit:g}"
    if rules.pressure and sight.is_pressed:
        return "programs wait for memory or disk"
    return sight.closed


@dataclass(frozen=True, slots=True)
class OwnerState:
    """The stage and since when, and since when there has been no reason to have the node back; by the clock that is passed in."""

    stage: Stage = Stage.OWNER
    since: float = 0.0
    calm_since: float | None = None
    reason: str = ""
    may_return: bool = True
    """whether the reason is one that comes and goes, and not the owner's own word"""

    @property
    def is_throttled(self) -> bool:
        """Whether guests are to be held back."""
        return self.stage in (Stage.SUSPECTED, Stage.THROTTLED, Stage.FROZEN, Stage.EVICTING, Stage.LATE)

    @property
    def is_frozen(self) -> bool:
        """Whether guests that are not on their way are to stand still."""
        return self.stage in (Stage.FROZEN, Stage.EVICTING, Stage.LATE)

    @property
    def withholds(self) -> str | None:
        """Why no guest is taken now."""
        if self.stage in (Stage.LENDING, Stage.SUSPECTED):
            return None
        if self.calm_since is not None or not self.reason:
            return "the owner has had the node until a moment ago" + (f": {self.reason}" if self.reason else "")
        return self.reason


def _is_suspect(rules: OwnerRules, sight: Sight) -> bool:
    """Whether the owner's programs, at this moment, use as much as would be a reason if it lasted."""
    return rules.busy_load is not None and sight.surge is not None and sight.surge > rules.busy_load and rules.goes_to("throttle")


def step(state: OwnerState, sight: Sight, rules: OwnerRules, idle_after: float, now: float) -> OwnerState:
    """The state after what is seen now; the same one if nothing changes."""
    # Guests may be here before anything is known of the owner: after a restart of the daemon.
    is_lending = state.stage in (Stage.LENDING, Stage.SUSPECTED) or (state.stage is Stage.OWNER and sight.guests > 0)
    reason = why_back(rules, idle_after, sight, is_lending)
    if reason is not None:
        state = replace(state, reason=reason, calm_since=None, may_return=not sight.is_called)
    elif state.calm_since is None:
        state = replace(state, calm_since=now)
    stage = _next_stage(state, sight, rules, reason is None, now)
    if stage is state.stage:
        return state
    # Who was suspected rightly has been held back since then.
    return replace(state, stage=stage, since=state.since if state.stage is Stage.SUSPECTED and stage is Stage.THROTTLED else now)


def _next_stage(state: OwnerState, sight: Sight, rules: OwnerRules, is_calm: bool, now: float) -> Stage:
    stage, here = state.stage, now - state.since
    if is_calm and stage in (Stage.LENDING, Stage.SUSPECTED):
        if sight.guests and _is_suspect(rules, sight):
            return Stage.SUSPECTED
        return stage if stage is Stage.SUSPECTED and here < SUSPICION else Stage.LENDING
    if is_calm:
        # Whom only hours or the keyboard keep away has been away long enough already; load comes and goes.
        wait = rules.calm if state.may_return and (rules.busy_load is not None or rules.pressure) else 0.0
        calm_for = now - (state.calm_since if state.calm_since is not None else now)
        return Stage.LENDING if calm_for >= wait else stage
    if sight.guests == 0 or rules.on_return == "nothing":
        return Stage.OWNER
    if stage in (Stage.OWNER, Stage.LENDING, Stage.SUSPECTED):
        return Stage.THROTTLED
    if stage is Stage.THROTTLED and rules.goes_to("freeze") and here >= rules.freeze_after:
        return Stage.FROZEN
    if stage is Stage.FROZEN and rules.goes_to("evict") and here >= rules.evict_after:
        return Stage.EVICTING
    if stage is Stage.EVICTING and here >= rules.deadline:
        return Stage.LATE
    return stage
