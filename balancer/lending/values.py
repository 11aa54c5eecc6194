"""Reading a table of the configuration, key by key: each value becomes what it means, or a mistake that names its key.

A key that nobody asks for does not exist: close() refuses it. So the code that reads a table is the list of its keys.
"""

from __future__ import annotations

import re
from typing import Any

from balancer.lending.conditions import Condition
from balancer.lending.formats import DAYS, UNITS
from balancer.lending.mistakes import Mistake, Where, named

MINUTES_A_DAY = 24 * 60
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_TIME = re.compile(r"(\d{1,2})(?::(\d{2}))?")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NAME = re.compile(r"[^\s,\"]{1,64}")
MOST_NAMES = 1000


class Table:
    """One table. The methods return a key's value, or the default if it is not there. Errors of all: Mistake."""

    def __init__(self, value: object, where: Where) -> None:
        if not isinstance(value, dict):
            raise Mistake(where, f"{named(where)} is not a table")
        self.where = where
        self._values: dict[str, Any] = value
        self._asked: list[str] = []

    def has(self, key: str) -> bool:
        """Return whether the key is given."""
        return key in self._values

    def wrong(self, key: str, what: str) -> Mistake:
        """Return the mistake that this key is; `what` follows its name in the sentence."""
        return Mistake((*self.where, key), f"{named(self.where)} {key} {what}")

    def _get(self, key: str, default: Any) -> Any:
        self._asked.append(key)
        return self._values.get(key, default)

    def truth(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "is neither true nor false")
        return value

    def count(self, key: str, default: int | None = None, low: int = 0) -> int | None:
        """Return a whole number from `low`."""
        value = self._get(key, default)
        if value is None and key not in self._values:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 1 << 31:
            raise self.wrong(key, f"is not a whole number of {low} or more")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float | None:
        """Return a number above `low` (not equal) and up to `high`."""
        value = self._get(key, default)
        if value is None and key not in self._values:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low < value <= high:
            raise self.wrong(key, f"is not a number above {low:g} and up to {high:g}")
        return float(value)

    def share(self, key: str, default: float | None = None) -> float | None:
        """Return a share of the whole, above 0 and up to 1."""
        value = self._get(key, default)
        if value is None and key not in self._values:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
            raise self.wrong(key, "is not a share above 0 and up to 1")
        return float(value)

    def size(self, key: str) -> int | None:
        """Return bytes of a whole number or a text such as "512M" or "1.5G"."""
        value = self._get(key, None)
        if value is None and key not in self._values:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62:
            return value
        if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())) and len(value) < 24:
            return int(float(match[1]) * UNITS[match[2].upper()])
        raise self.wrong(key, 'is neither a number of bytes nor a size such as "2G"')

    def seconds(self, key: str, default: float) -> float:
        """Return seconds of a number, or of a text such as "10m" or "250ms"."""
        value = self._get(key, default)
        if isinstance(value, str) and len(value) < 24 and (match := _DURATION.fullmatch(value.strip())):
            value = float(match[1]) * _SECONDS[match[2]]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
            raise self.wrong(key, 'is neither a number of seconds of 0 or more nor a time such as "10m"')
        return float(value)

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        """One of some words."""
        value = self._get(key, default)
        if value not in choices:
            raise self.wrong(key, f"is none of {', '.join(choices)}")
        return str(value)

    def is_list(self, key: str) -> bool:
        """Return whether the key has a list."""
        return isinstance(self._values.get(key), list)

    def names(self, key: str) -> frozenset[str] | None:
        """Names of a list; None is everybody ("*", also as one of the list, or no such key)."""
        value = self._get(key, "*")
        if value == "*":
            return None
        if not isinstance(value, list) or len(value) > MOST_NAMES:
            raise self.wrong(key, 'is neither "*" nor a list of names')
        for index, name in enumerate(value):
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise Mistake((*self.where, key, index), f"{named(self.where)} {key} has {name!r}, which is no name")
        return None if "*" in value else frozenset(value)

    def text(self, key: str, default: str) -> str:
        """Return a name of up to 64 characters."""
        value = self._get(key, default)
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise self.wrong(key, "is not a name")
        return value

    def paths(self, key: str) -> tuple[str, ...] | None:
        """Files, named from the root; None if the key is not there."""
        value = self._get(key, None)
        if value is None and key not in self._values:
            return None
        if not isinstance(value, list) or not all(isinstance(path, str) and path.startswith("/") and "\0" not in path for path in value):
            raise self.wrong(key, "is not a list of files that are named from the root")
        return tuple(value)

    def hours(self, key: str) -> tuple[tuple[int, int], ...]:
        """(from, to) minutes of the day of "22-6,12-13" or a list of such; none if the key is not there."""
        value = self._get(key, None)
        if value is None and key not in self._values:
            return ()
        parts = value.split(",") if isinstance(value, str) else value
        wrong = self.wrong(key, 'is not a list of hours such as "22-6,12:30-13"')
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
                start == end or start >= MINUTES_A_DAY or end > MINUTES_A_DAY
                or any(int(match[2] or 0) > 59 for match in times)
            ):  # fmt: skip
                raise wrong
            spans.append((start, end % MINUTES_A_DAY if start > end else end))
        return tuple(spans)

    def days(self, key: str) -> frozenset[int]:
        """Days of the week (0 is Monday) of "mon-fri,sun" or a list of such; all if the key is not there."""
        value = self._get(key, "mon-sun")
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list) or not parts:
            raise self.wrong(key, 'is not a list of days such as "mon-fri,sun"')
        found: set[int] = set()
        for part in parts:
            ends = [end.strip().lower() for end in part.split("-")] if isinstance(part, str) else []
            if len(ends) not in (1, 2) or any(end not in DAYS for end in ends):
                raise self.wrong(key, f'has {part!r}, which is no day or span of days such as "mon-fri"')
            first, last = DAYS.index(ends[0]), DAYS.index(ends[-1])
            found.update((first + step) % 7 for step in range((last - first) % 7 + 1))
        return frozenset(found)

    def condition(self, key: str) -> Condition | None:
        """A condition over what is known of the node; None if the key is not there."""
        value = self._get(key, None)
        if value is None and key not in self._values:
            return None
        if not isinstance(value, str):
            raise self.wrong(key, 'is not a condition such as "owner_load < 0.5 and memory_free > 2G"')
        try:
            return Condition.parse(value)
        except ValueError as error:
            raise self.wrong(key, f"is no condition: {error}") from None

    def table(self, key: str) -> Table:
        """Return a table within this one, empty if it is not there."""
        return Table(self._get(key, {}), (*self.where, key))

    def tables(self, key: str) -> list[Table]:
        """Tables of a list."""
        value = self._get(key, [])
        if not isinstance(value, list):
            raise self.wrong(key, f"is no list of tables: each begins with [[{'.'.join(map(str, self.where))}.{key}]]")
        return [Table(item, (*self.where, key, index)) for index, item in enumerate(value)]

    def close(self) -> None:
        """Refuses what nobody has asked for."""
        for key in self._values:
            if key not in self._asked:
                import difflib

                near = difflib.get_close_matches(str(key), self._asked, 1)
                hint = f"; is {near[0]} meant?" if near else f"; it may have {', '.join(self._asked)}"
                raise Mistake((*self.where, key), f"{named(self.where)} has no key {key!r}{hint}")
