"""What the owner of a node lends to guests: the table ``[lend]`` of its configuration, and what follows from it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MINUTES_A_DAY = 24 * 60
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_TIME = re.compile(r"(\d{1,2})(?::(\d{2}))?")


@dataclass(frozen=True, slots=True)
class LendingState:
    """How the node is at the moment of a question. Memory in bytes.

    `minute` is the minute of the day on the owner's own clock; `owner_idle` the seconds since the owner last used the
    node, None if nobody can tell.
    """

    guests: int
    guest_memory: int
    memory_free: int
    minute: int
    owner_idle: float | None = None
    blocked: bool = False


@dataclass(frozen=True, slots=True)
class LendingPolicy:
    """What is lent, to whom and when; None is without limit. Memory in bytes, hours in minutes of the day."""

    enabled: bool = True
    max_guests: int | None = None
    max_memory: int | None = None
    cpu_share: float = 1.0
    hours: tuple[tuple[int, int], ...] = field(default=())
    users: frozenset[str] | None = None
    idle_after: float = 0.0

    @classmethod
    def from_table(cls, table: object) -> LendingPolicy:
        """Return the policy of a ``[lend]`` table. Errors: ValueError, one sentence that names the key."""
        if not isinstance(table, dict):
            raise ValueError("[lend] is not a table")
        for key in table:
            if key not in _KEYS:
                raise ValueError(f"[lend] has no key {key!r}; it may have {', '.join(_KEYS)}")
        default = cls()
        return cls(
            enabled=_truth("enabled", table.get("enabled", default.enabled)),
            max_guests=_count("max_guests", table["max_guests"]) if "max_guests" in table else None,
            max_memory=parse_size("max_memory", table["max_memory"]) if "max_memory" in table else None,
            cpu_share=_share("cpu_share", table.get("cpu_share", default.cpu_share)),
            hours=parse_hours("hours", table["hours"]) if "hours" in table else (),
            users=_users("users", table.get("users", "*")),
            idle_after=_seconds("idle_after", table.get("idle_after", default.idle_after)),
        )

    def lends(self, state: LendingState) -> str | None:
        """Return why the node takes no guest at all now, in one sentence; None if it takes some."""
        if state.blocked:
            return "the node is blocked for guests"
        if not self.enabled:
            return "the node does not lend"
        if not self.is_open_at(state.minute):
            return f"the node lends only {format_hours(self.hours)}, and it is {_clock(state.minute)} there"
        if self.idle_after and (state.owner_idle is None or state.owner_idle < self.idle_after):
            if state.owner_idle is None:
                return "the node lends only when its owner is idle, and it cannot tell whether he is"
            return (
                f"the owner used the node {state.owner_idle:.0f} s ago, and it lends only after {self.idle_after:.0f} s"
            )
        if self.max_guests is not None and state.guests >= self.max_guests:
            return f"the node takes at most {self.max_guests} guests and has {state.guests}"
        if self.max_memory is not None and state.guest_memory >= self.max_memory:
            return f"the {format_size(self.max_memory)} of memory that the node lends are in use"
        return None

    def admits(self, user: str, memory: int, state: LendingState) -> str | None:
        """Return why a guest of this user that needs so many bytes is refused, in one sentence, or None."""
        refusal = self.lends(state)
        if refusal:
            return refusal
        if self.users is not None and user not in self.users:
            return f"the node does not lend to user {user}"
        if self.max_memory is not None and state.guest_memory + memory > self.max_memory:
            left = format_size(self.max_memory - state.guest_memory)
            return f"it needs {format_size(memory)} of memory, and {left} of what the node lends are left"
        if memory > state.memory_free:
            return f"it needs {format_size(memory)} of memory, and the node has {format_size(state.memory_free)} free"
        return None

    def is_open_at(self, minute: int) -> bool:
        """Return whether this minute of the day is within the hours of lending."""
        return not self.hours or any(_within(start, end, minute) for start, end in self.hours)


_KEYS = ("enabled", "max_guests", "max_memory", "cpu_share", "hours", "users", "idle_after")


def _within(start: int, end: int, minute: int) -> bool:
    return start <= minute < end if start < end else minute >= start or minute < end


def parse_size(key: str, value: object) -> int:
    """Return bytes of a whole number or a text such as "512M" or "1.5G". Errors: ValueError that names the key."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62:
        return value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())) and len(value) < 24:
        return int(float(match[1]) * _UNITS[match[2].upper()])
    raise ValueError(f'[lend] {key} is neither a number of bytes nor a size such as "2G"')


def parse_hours(key: str, value: object) -> tuple[tuple[int, int], ...]:
    """Return (from, to) minutes of the day of "22-6,12-13" or a list of such. Errors: ValueError that names the key."""
    parts = value.split(",") if isinstance(value, str) else value
    wrong = ValueError(f'[lend] {key} is not a list of hours such as "22-6,12:30-13"')
    if not isinstance(parts, list) or not parts:
        raise wrong
    spans = []
    for part in parts:
        ends = part.split("-") if isinstance(part, str) else []
        times = [match for match in (_TIME.fullmatch(end.strip()) for end in ends) if match]
        if len(ends) != 2 or len(times) != 2:
            raise wrong
        start, end = (int(match[1]) * 60 + int(match[2] or 0) for match in times)
        if (
            start == end
            or start >= MINUTES_A_DAY
            or end > MINUTES_A_DAY
            or any(int(match[2] or 0) > 59 for match in times)
        ):
            raise wrong
        spans.append((start, end % MINUTES_A_DAY if start > end else end))
    return tuple(spans)


def format_size(size: int) -> str:
    """Return bytes as people write them, such as "1.5G"."""
    for unit in ("T", "G", "M", "K"):
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:.1f}".removesuffix(".0") + unit
    return str(max(0, size))


def _clock(minute: int) -> str:
    return f"{minute // 60}:{minute % 60:02d}"


def format_hours(hours: tuple[tuple[int, int], ...]) -> str:
    """Return spans of minutes of the day as people write them."""
    return ", ".join(f"from {_clock(start)} to {_clock(end)}" for start, end in hours) or "at any hour"


def _truth(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"[lend] {key} is neither true nor false")
    return value


def _count(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ValueError(f"[lend] {key} is not a whole number of 0 or more")
    return value


def _share(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ValueError(f"[lend] {key} is not a share above 0 and up to 1")
    return float(value)


def _seconds(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise ValueError(f"[lend] {key} is not a number of seconds of 0 or more")
    return float(value)


def _users(key: str, value: object) -> frozenset[str] | None:
    if value == "*":
        return None
    if isinstance(value, list) and all(isinstance(user, str) and user for user in value):
        return None if "*" in value else frozenset(value)
    raise ValueError(f'[lend] {key} is neither "*" nor a list of user names')
