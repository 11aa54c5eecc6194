"""What the owner of a node lends to guests: the table ``[lend]`` of its configuration, and what follows from it.

To whom is in lending.py, what happens when the owner is back in owner.py, conditions in conditions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from balancer.lending.conditions import Condition, Values
from balancer.lending.formats import format_clock, format_days, format_hours, format_size
from balancer.lending.lending import Borrower, Borrowers, Denied, GuestClass, Present, class_of, classes_from, make_room
from balancer.lending.owner import OwnerRules
from balancer.lending.values import Table

__all__ = ["LendingPolicy", "LendingState", "format_size"]

WEIGHTS = ("low", "idle")
ENGINES = frozenset({"pour", "criu"})
IDS = (0x7800_0000, 0x7FFD_FFFF)
"""From which guests have their ids: below 2**31, and beyond what systemd gives to containers (to 0x6FFFFFFF) and SSSD to domains (to
2000200000)."""
MOST_TASKS = 4096
MEMORY_SHARE = 0.75
"""Of the machine's memory, for all guests together."""


@dataclass(frozen=True, slots=True)
class LendingState:
    """How the node is at the moment of a question. Memory and disk in bytes.

    `minute` is the minute of the day on the owner's own clock, `weekday` 0 on Mondays; `values` what conditions may name; `withheld`
    why the owner has the node now (owner.OwnerState), None if he does not.
    """

    guests: int
    guest_memory: int
    memory_free: int
    minute: int
    weekday: int = 0
    guest_disk: int = 0
    blocked: bool = False
    is_on_battery: bool | None = None
    withheld: str | None = None
    values: Values = field(default_factory=dict)
    present: tuple[Present, ...] = ()


@dataclass(frozen=True, slots=True)
class LendingPolicy:
    """What is lent, to whom and when; None is without limit. Memory and disk in bytes, hours in minutes of the day, idle_after in seconds,
    cores in processors; cpu_share is of all that the node has, and memory_share what guests may never exceed. max_tasks: processes and
    threads of a tree of guests. ids: first and last that guests may have on the node, None: they have those of home. administration:
    homes of the same owner, None is all."""

    enabled: bool = True
    max_guests: int | None = None
    max_memory: int | None = None
    max_disk: int | None = None
    cores: float | None = None
    cpu_share: float = 1.0
    weight: str = "low"
    max_tasks: int = MOST_TASKS
    memory_share: float = MEMORY_SHARE
    ids: tuple[int, int] | None = IDS
    engines: frozenset[str] = ENGINES
    administration: frozenset[str] | None = None
    borrowers: Borrowers = field(default_factory=Borrowers)
    deny: Denied = field(default_factory=Denied)
    classes: tuple[GuestClass, ...] = ()
    hours: tuple[tuple[int, int], ...] = ()
    days: frozenset[int] = frozenset(range(7))
    idle_after: float = 0.0
    on_battery: bool = True
    when: Condition | None = None
    owner: OwnerRules = field(default_factory=OwnerRules)

    @classmethod
    def from_table(cls, values: object) -> LendingPolicy:
        """Return the policy of a ``[lend]`` table. Errors: Mistake, one sentence that names the key."""
        table = Table(values, ("lend",))
        default = cls()
        policy = cls(
            enabled=table.truth("enabled", default.enabled),
            max_guests=table.count("max_guests"),
            max_memory=table.size("max_memory"),
            max_disk=table.size("max_disk"),
            cores=table.number("cores", 0, 4096),
            cpu_share=table.share("cpu_share", default.cpu_share) or default.cpu_share,
            weight=table.choice("weight", WEIGHTS, default.weight),
            max_tasks=table.count("max_tasks", default.max_tasks, 1) or default.max_tasks,
            memory_share=table.share("memory_share", default.memory_share) or default.memory_share,
            ids=_ids(table),
            engines=_engines(table),
            administration=table.names("administration"),
            borrowers=Borrowers.from_table(table),
            deny=Denied.from_table(table.table("deny")),
            classes=classes_from(table),
            hours=table.hours("hours"),
            days=table.days("days"),
            idle_after=table.seconds("idle_after", default.idle_after),
            on_battery=table.truth("on_battery", default.on_battery),
            when=table.condition("when"),
            owner=OwnerRules.from_table(table.table("owner")),
        )
        table.close()
        return policy

    def is_own(self, home: str) -> bool:
        """Return whether that node is of the owner's own administration."""
        return self.administration is None or home in self.administration

    @property
    def watches_owner(self) -> bool:
        """Whether anything that the owner does changes what is lent."""
        return bool(self.idle_after) or self.owner.busy_load is not None or self.owner.pressure

    def closed(self, state: LendingState) -> str | None:
        """Return why nothing is lent at this time, whatever the owner does: hours, days, battery, the policy's condition."""
        if not self.is_open_at(state.minute, state.weekday):
            when = format_hours(self.hours)
            if len(self.days) < 7:
                when += f" on {format_days(self.days)}"
            return f"the node lends only {when}, and it is {format_clock(state.minute)} there"
        if not self.on_battery and state.is_on_battery:
            return "the node runs on its battery"
        if self.when is not None and self.when.holds(state.values) is not True:
            return f"the node lends only when {self.when.text}; {self.when.seen(state.values)}"
        return None

    def lends(self, state: LendingState) -> str | None:
        """Return why the node takes no guest at all now, in one sentence; None if it takes some."""
        if state.blocked:
            return "the node is blocked for guests"
        if not self.enabled:
            return "the node does not lend"
        return self.closed(state) or state.withheld or self._why_full(state)

    def _why_full(self, state: LendingState) -> str | None:
        if self.max_guests is not None and state.guests >= self.max_guests:
            return f"the node takes at most {self.max_guests} guests and has {state.guests}"
        if self.max_memory is not None and state.guest_memory >= self.max_memory:
            return f"the {format_size(self.max_memory)} of memory that the node lends are in use"
        if self.max_disk is not None and state.guest_disk >= self.max_disk:
            return f"the {format_size(self.max_disk)} of disk that the node lends are in use"
        return None

    def admits(self, borrower: Borrower, memory: int, state: LendingState) -> str | None:
        """Return why a guest of this borrower that needs so many bytes is refused, in one sentence, or None."""
        return self.lends(state) or self.denies(borrower, state) or self.lacks_room(borrower, memory, state)

    def denies(self, borrower: Borrower, state: LendingState) -> str | None:
        """Return why a guest of this borrower is never taken, or (its class's condition) not now; None if it may be."""
        if (what := self.deny.denies(borrower)) is not None:
            return f"the node denies {what}"
        if not self.borrowers.includes(borrower):
            return f"the node does not lend to user {borrower.user}" + (f" of {borrower.node}" if borrower.node else "")
        kind = class_of(self.classes, borrower)
        if kind.when is not None and kind.when.holds(state.values) is not True:
            return f"the node takes guests of class {kind.name} only when {kind.when.text}; {kind.when.seen(state.values)}"
        return None

    def lacks_room(self, borrower: Borrower, memory: int, state: LendingState) -> str | None:
        """Return what there is too little of for this guest, in one sentence, or None."""
        if full := self._why_full(state):
            return full
        kind = class_of(self.classes, borrower)
        same = [one for one in state.present if one.kind == kind]
        if kind.max_guests is not None and len(same) >= kind.max_guests:
            return f"the node takes at most {kind.max_guests} guests of class {kind.name} and has {len(same)}"
        used = sum(one.memory for one in same)
        if kind.max_memory is not None and used + memory > kind.max_memory:
            return f"it needs {format_size(memory)} of memory, and {format_size(kind.max_memory - used)} for class {kind.name} are left"
        if self.max_memory is not None and state.guest_memory + memory > self.max_memory:
            left = format_size(self.max_memory - state.guest_memory)
            return f"it needs {format_size(memory)} of memory, and {left} of what the node lends are left"
        if memory > state.memory_free:
            return f"it needs {format_size(memory)} of memory, and the node has {format_size(state.memory_free)} free"
        return None

    def makes_room(self, borrower: Borrower, memory: int, state: LendingState) -> list[str]:
        """Return keys of guests of lower priority that have to go so that this one may come; none if it may not even then, or may now."""
        if self.lends_to_nobody(state) or self.denies(borrower, state) or not self.lacks_room(borrower, memory, state):
            return []

        def is_room(staying: Sequence[Present]) -> bool:
            freed = sum(one.memory for one in state.present) - sum(one.memory for one in staying)
            left = LendingState(
                guests=state.guests - len(state.present) + len(staying), guest_memory=max(0, state.guest_memory - freed),
                memory_free=state.memory_free + freed, minute=state.minute, guest_disk=state.guest_disk, present=tuple(staying),
            )  # fmt: skip
            return self.lacks_room(borrower, memory, left) is None

        return make_room(state.present, class_of(self.classes, borrower).priority, is_room) or []

    def lends_to_nobody(self, state: LendingState) -> bool:
        """Return whether no guest is taken for another reason than that there is no room."""
        return state.blocked or not self.enabled or self.closed(state) is not None or state.withheld is not None

    def processors(self, of_all: float) -> float | None:
        """Return how many of the node's processors guests may use together; None: all."""
        most = min(self.cores if self.cores is not None else of_all, self.cpu_share * of_all)
        return most if most < of_all else None

    def is_open_at(self, minute: int, weekday: int = 0) -> bool:
        """Return whether this minute of the day is within the days and hours of lending. What begins on a day goes on into the next one's
        morning."""
        if not self.hours:
            return weekday in self.days
        for start, end in self.hours:
            if start < end:
                if start <= minute < end and weekday in self.days:
                    return True
            elif (minute >= start and weekday in self.days) or (minute < end and (weekday - 1) % 7 in self.days):
                return True
        return False


def _ids(table: Table) -> tuple[int, int] | None:
    """Errors: Mistake."""
    text = table.text("ids", f"{IDS[0]}-{IDS[1]}")
    if text == "none":
        return None
    first, dash, last = text.partition("-")
    if not dash or not first.isdigit() or not last.isdigit() or not 1 << 16 <= int(first) < int(last) < 1 << 32:
        raise table.wrong("ids", f'must be "FIRST-LAST", numbers from {1 << 16} on, or "none"')
    if int(last) - int(first) < 1 << 17:
        raise table.wrong("ids", f"must hold {1 << 17} numbers at least, for a tree of guests has more than {1 << 16}")
    return int(first), int(last)


def _engines(table: Table) -> frozenset[str]:
    """Errors: Mistake."""
    engines = table.names("engines")
    if engines is None:
        return ENGINES
    if not engines or engines - ENGINES:
        raise table.wrong("engines", "must be a list of pour and criu")
    return engines
