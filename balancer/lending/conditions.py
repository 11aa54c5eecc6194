"""Conditions of a lending policy: `owner_load < 0.5 and (memory_free > 2G or not on_battery)`.

A language of its own, small enough to be safe: comparisons of named quantities with numbers or one another, `and`, `or`, `not`,
parentheses. Nothing can be called or named that is not in QUANTITIES. What is not known makes a comparison neither true nor false
(Kleene's logic of three values): a policy lends only where its condition is true.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Values = Mapping[str, float | None]
"""What is known of the quantities; None, or no entry: unknown. Truths are 0 and 1."""

QUANTITIES: dict[str, tuple[str, str]] = {
    "battery": ("share", "how full the battery is"),
    "cores": ("number", "processors of the node"),
    "guest_memory": ("bytes", "memory that guests use or have reserved"),
    "guests": ("number", "guests that are here or on their way"),
    "hour": ("number", "hour of the day, with fractions, by the node's own clock"),
    "load": ("number", "load of the node in load units"),
    "memory_free": ("bytes", "memory that is free"),
    "memory_total": ("bytes", "memory in all"),
    "on_battery": ("truth", "whether the node runs on its battery"),
    "owner_idle": ("seconds", "since the owner last used keyboard, mouse or a terminal"),
    "owner_load": ("number", "processors that the owner's own programs use"),
    "pressure_cpu": ("share", "of the last 10 s in which something waited for a processor"),
    "pressure_io": ("share", "of the last 10 s in which something waited for a disk"),
    "pressure_memory": ("share", "of the last 10 s in which something waited for memory"),
    "weekday": ("number", "day of the week, 1 is Monday"),
}
"""Name -> kind, meaning."""

_UNITS = {
    "K": ("bytes", 1 << 10), "M": ("bytes", 1 << 20), "G": ("bytes", 1 << 30), "T": ("bytes", 1 << 40),
    "ms": ("seconds", 0.001), "s": ("seconds", 1), "m": ("seconds", 60), "h": ("seconds", 3600), "d": ("seconds", 86400),
    "%": ("share", 0.01),
}  # fmt: skip
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?)(ms|[KMGTsmhd%])?(?![\w.%])|([A-Za-z_]\w*)|(<=|>=|==|!=|[<>()]))")
MOST_LENGTH = 500
MOST_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Operand:
    """A number or the name of a quantity."""

    text: str
    kind: str
    number: float | None = None

    def value(self, values: Values) -> float | None:
        """None if it is not known."""
        return self.number if self.number is not None else values.get(self.text)


@dataclass(frozen=True, slots=True)
class Comparison:
    """left < right and its like."""

    left: Operand
    sign: str
    right: Operand

    def holds(self, values: Values) -> bool | None:
        left, right = self.left.value(values), self.right.value(values)
        return None if left is None or right is None else _COMPARISONS[self.sign](left, right)


@dataclass(frozen=True, slots=True)
class Truth:
    """A quantity that is true or false."""

    operand: Operand

    def holds(self, values: Values) -> bool | None:
        value = self.operand.value(values)
        return None if value is None else bool(value)


@dataclass(frozen=True, slots=True)
class Not:
    """The contrary."""

    part: Expression

    def holds(self, values: Values) -> bool | None:
        value = self.part.holds(values)
        return None if value is None else not value


@dataclass(frozen=True, slots=True)
class Several:
    """`and` of all parts, or `or`: decided by the first part that is `decides`."""

    parts: tuple[Expression, ...]
    decides: bool

    def holds(self, values: Values) -> bool | None:
        found = [part.holds(values) for part in self.parts]
        if self.decides in found:
            return self.decides
        return None if None in found else not self.decides


Expression = Comparison | Truth | Not | Several


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition and its text."""

    text: str
    expression: Expression
    names: frozenset[str]
    """of the quantities in it"""

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Errors: ValueError, what is wrong with the text."""
        if len(text) > MOST_LENGTH:
            raise ValueError(f"it has more than {MOST_LENGTH} characters")
        parser = _Parser(_tokens(text))
        expression = parser.alternatives(0)
        if (rest := parser.next()) is not None:
            raise ValueError(f"{rest.text!r} is one word too many")
        return cls(text, expression, frozenset(parser.names))

    def holds(self, values: Values) -> bool | None:
        """Return whether it is true; None if too little is known."""
        return self.expression.holds(values)

    def seen(self, values: Values) -> str:
        """Return what is known of the quantities in it, as people read it."""
        return ", ".join(f"{name} is {shown(name, values.get(name))}" for name in sorted(self.names))


def shown(name: str, value: float | None) -> str:
    """Return a quantity as people read it."""
    kind = QUANTITIES[name][0]
    if value is None:
        return "not known"
    if kind == "truth":
        return "true" if value else "false"
    if kind == "share":
        return f"{100 * value:.3g}%"
    if kind == "bytes":
        return f"{value / (1 << 30):.2f}G"
    return f"{value:.4g}" + ("s" if kind == "seconds" else "")


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    kind: str
    number: float | None = None


def _tokens(text: str) -> list[_Token]:
    found, at, text = [], 0, text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"it cannot be read from {text[at:].strip()[:20]!r} on")
        at = match.end()
        if match[1]:
            kind, factor = _UNITS[match[2]] if match[2] else ("number", 1)
            found.append(_Token(match[0].strip(), kind, float(match[1]) * factor))
        elif match[3]:
            found.append(_Token(match[3], "word" if match[3] in ("and", "or", "not") else "name"))
        else:
            found.append(_Token(match[4], "sign"))
    return found


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self.names: set[str] = set()

    def next(self) -> _Token | None:
        """The next word, which is taken."""
        if self._at >= len(self._tokens):
            return None
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, text: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at].text == text:
            self._at += 1
            return True
        return False

    def alternatives(self, depth: int) -> Expression:
        """a or b or …"""
        parts = [self._conjunction(depth)]
        while self._take("or"):
            parts.append(self._conjunction(depth))
        return parts[0] if len(parts) == 1 else Several(tuple(parts), decides=True)

    def _conjunction(self, depth: int) -> Expression:
        parts = [self._single(depth)]
        while self._take("and"):
            parts.append(self._single(depth))
        return parts[0] if len(parts) == 1 else Several(tuple(parts), decides=False)

    def _single(self, depth: int) -> Expression:
        if depth > MOST_DEPTH:
            raise ValueError("it is nested too deeply")
        if self._take("not"):
            return Not(self._single(depth + 1))
        if self._take("("):
            inner = self.alternatives(depth + 1)
            if not self._take(")"):
                raise ValueError("a parenthesis is not closed")
            return inner
        return self._comparison()

    def _comparison(self) -> Expression:
        left = self._operand()
        sign = self._tokens[self._at].text if self._at < len(self._tokens) else ""
        if sign not in _COMPARISONS:
            if left.kind != "truth":
                raise ValueError(f"{left.text} is compared with nothing")
            return Truth(left)
        self._at += 1
        right = self._operand()
        if left.number is not None and right.number is not None:
            raise ValueError(f"{left.text} {sign} {right.text} compares two numbers")
        for operand in (left, right):
            if operand.kind == "truth":
                raise ValueError(f"{operand.text} is true or false, and cannot be compared")
        kinds = {operand.kind for operand in (left, right)}
        # A bare number is of any kind: bytes, seconds, a share.
        if len(kinds) > 1 and not any(one.kind == "number" and one.number is not None for one in (left, right)):
            raise ValueError(f"{left.text} ({left.kind}) cannot be compared with {right.text} ({right.kind})")
        return Comparison(left, sign, right)

    def _operand(self) -> Operand:
        token = self.next()
        if token is None:
            raise ValueError("it ends where a quantity or a number is expected")
        if token.number is not None:
            return Operand(token.text, token.kind, token.number)
        if token.kind != "name":
            raise ValueError(f"{token.text!r} stands where a quantity or a number is expected")
        if token.text not in QUANTITIES:
            raise ValueError(f"there is no quantity {token.text}; there are {', '.join(QUANTITIES)}")
        self.names.add(token.text)
        return Operand(token.text, QUANTITIES[token.text][0])
