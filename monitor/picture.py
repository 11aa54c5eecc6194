"""What a node daemon reports about the cluster at one moment (`watch`), as types; nothing of it is believed before it has been looked
at."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

STALE_SECONDS = 10.0
"""Age from which on a node is silent: what is known of it is not used any more."""
FADES = (5.0, STALE_SECONDS)
"""Ages from which on a node is drawn paler."""
DEAD_SHOWN = 86400.0
"""Seconds for which a dead node is shown without being asked for."""
LOUD_SECONDS = 3600.0
"""Seconds for which a loss stands above everything else."""
HOME = "home"

State = Literal["lends", "closed", "blocked", "silent", "dead"]


class Nonsense(ValueError):
    """The daemon's report cannot be true; the message says what."""


@dataclass(frozen=True)
class Node:
    """One node as the daemon knows it: memory in bytes, load in load units, age of the information in seconds.

    What not every daemon reports about every node: `utilisability`, the share of its time (0 to 1) that does not go to waiting for memory;
    `owner_state`, what its owner's policy does now; `owner_idle`, seconds since its owner typed anything; `closed_why`, why it
    lends nothing. Of a dead one `since` is when it came to count as dead (seconds since the epoch), if that is known.
    """

    name: str
    load: float
    runnable: float
    cores: float
    speed: float
    memory_free: int
    memory_total: int
    guests: int
    lending: bool
    blocked: bool
    age: float
    self: bool
    utilisability: float | None = None
    owner_state: str = ""
    owner_idle: float | None = None
    closed_why: str = ""
    dead: bool = False
    since: float | None = None

    @property
    def state(self) -> State:
        """What the node lends now, in one word."""
        if self.dead:
            return "dead"
        if self.age > STALE_SECONDS:
            return "silent"
        if self.blocked:
            return "blocked"
        return "lends" if self.lending else "closed"

    @property
    def fade(self) -> int:
        """How pale it is drawn: 0 as it is, 1 paler, 2 nothing but grey."""
        return sum(self.age > limit for limit in FADES)

    @property
    def memory_used(self) -> int:
        """Bytes."""
        return max(0, self.memory_total - self.memory_free)


@dataclass(frozen=True)
class Process:
    """A home process of the node that was asked, or of `home` if that is named. `decision` is what its balancer last thought of it,
    for who may know; `cut` since when the node that it is on is not heard (seconds since the epoch), 0: it is."""

    pid: int
    user: str
    where: str
    state: str
    seconds: float
    moves: int
    command: str
    why: str = ""
    job: str = ""
    locked: bool = False
    home_only: bool = False
    adopted: bool = False
    decision: str = ""
    share: float | None = None
    """of its memory that has gone ahead, while it moves"""
    cut: float = 0.0
    home: str = ""


@dataclass(frozen=True)
class Guest:
    """A process of another node that is here; memory in bytes."""

    home: str
    pid: int
    user: str
    seconds: float
    memory: int
    command: str


@dataclass(frozen=True)
class Event:
    """A move that was made, or was not ("failed"), a program that was executed away, a birth, an end, or that a process was lost; `at` in
    seconds since the epoch."""

    at: float
    pid: int
    what: str
    source: str
    target: str
    reason: str
    times: int = 1


@dataclass(frozen=True)
class Counters:
    """What has come together since the daemon began, at `since` (seconds since the epoch)."""

    since: float = 0.0
    out: int = 0
    hop: int = 0
    home: int = 0
    failed: int = 0
    lost: int = 0
    frozen_seconds: float = 0.0
    moved_bytes: int = 0


@dataclass(frozen=True)
class Picture:
    """The cluster as `node` sees it at `at` (seconds since the epoch). `unseen`: home processes there was no room for."""

    node: str
    at: float
    nodes: tuple[Node, ...]
    processes: tuple[Process, ...] = ()
    guests: tuple[Guest, ...] = ()
    events: tuple[Event, ...] = ()
    counters: Counters = field(default_factory=Counters)
    unseen: int = 0

    def living(self) -> tuple[Node, ...]:
        """Nodes of which something is known now."""
        return tuple(node for node in self.nodes if not node.dead)

    def is_shown(self, node: Node) -> bool:
        """Return whether a node is shown without being asked for: it lives, or has died lately, or processes are said to be on it."""
        lately = node.since is not None and self.at - node.since < DEAD_SHOWN
        return not node.dead or lately or any(process.where == node.name for process in self.processes)

    def losses(self) -> list[Event]:
        """Processes that were lost lately, the last one first."""
        return [event for event in reversed(self.events) if event.what == "lost" and self.at - event.at < LOUD_SECONDS]

    def named(self, name: str) -> Node | None:
        """Return the node of that name."""
        return next((node for node in self.nodes if node.name == name), None)

    def process(self, pid: int) -> Process | None:
        """Return the home process of that id."""
        return next((process for process in self.processes if process.pid == pid), None)


@dataclass(frozen=True)
class Listing:
    """What another node reports about its own home processes and its guests. `unseen`: those there was no room for."""

    node: str
    processes: tuple[Process, ...]
    guests: tuple[Guest, ...]
    unseen: int = 0


_Made = TypeVar("_Made", Node, Process, Guest, Event, Counters)
_NAMES = {Node: "node", Process: "process", Guest: "guest", Event: "move", Counters: "count"}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str, "int": int, "bool": bool, "float": (int, float), "float | None": (int, float, type(None)),
}  # fmt: skip


def made_of(kind: type[_Made], row: object) -> _Made:
    """One of these from a row of the daemon's. Errors: Nonsense."""
    name = _NAMES[kind]
    if not isinstance(row, Mapping):
        raise Nonsense(f"it reported something that is not a {name}")
    values: dict[str, Any] = {}
    for one in fields(kind):
        if one.name not in row and one.default is not MISSING:
            continue
        value = row.get(one.name)
        wanted = _TYPES[str(one.type)]
        wrong = isinstance(value, bool) and one.type != "bool"
        if wrong or not isinstance(value, wanted) or (isinstance(value, float) and not math.isfinite(value)):
            raise Nonsense(f"it reported a {name} without a usable {one.name!r}")
        values[one.name] = printable(value) if isinstance(value, str) else value
    return kind(**values)


def printable(text: str) -> str:
    """Return the text without anything that a terminal would obey."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def picture_of(answer: Mapping[str, Any]) -> Picture:
    """Return the picture of a daemon's answer to `watch`. Errors: Nonsense."""
    nodes = [made_of(Node, row) for row in _rows(answer, "nodes")]
    known = {node.name for node in nodes}
    nodes += [one for row in _rows(answer, "dead") if (one := _dead(row)).name not in known]
    node, at, unseen = answer.get("node"), answer.get("at"), answer.get("unseen", 0)
    if not isinstance(node, str) or not isinstance(at, (int, float)) or not math.isfinite(at) or not isinstance(unseen, int):
        raise Nonsense("it did not say who it is")
    return Picture(
        node=printable(node), at=float(at), nodes=tuple(sorted(nodes, key=lambda node: natural(node.name))),
        processes=tuple(made_of(Process, row) for row in _rows(answer, "processes")),
        guests=tuple(made_of(Guest, row) for row in _rows(answer, "guests")),
        events=tuple(sorted((made_of(Event, row) for row in _rows(answer, "events")), key=lambda event: event.at)),
        counters=made_of(Counters, answer.get("counters", {})), unseen=unseen,
    )  # fmt: skip


def listing_of(answer: Mapping[str, Any]) -> Listing:
    """Return the listing of a daemon's answer to `processes`. Errors: Nonsense."""
    node, unseen = answer.get("node"), answer.get("unseen", 0)
    if not isinstance(node, str) or not isinstance(unseen, int):
        raise Nonsense("it did not say which node it reports")
    home = printable(node)
    return Listing(
        home, tuple(replace(made_of(Process, row), home=home) for row in _rows(answer, "processes")),
        tuple(made_of(Guest, row) for row in _rows(answer, "guests")), unseen,
    )  # fmt: skip


def _dead(row: object) -> Node:
    """A node of which nothing is known but its name, and perhaps since when. Errors: Nonsense."""
    name, since = (row.get("name"), row.get("since")) if isinstance(row, Mapping) else (row, None)
    is_time = since is None or (isinstance(since, (int, float)) and not isinstance(since, bool) and math.isfinite(since))
    if not isinstance(name, str) or not is_time:
        raise Nonsense("it reported a dead node without a usable name or time")
    return Node(printable(name), 0.0, 0.0, 0.0, 0.0, 0, 0, 0, False, False, 0.0, False, dead=True, since=since)


def natural(name: str) -> list[tuple[int, int, str]]:
    """To sort by: n2 comes before n10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"\d+|\D+", name)]


def _rows(answer: Mapping[str, Any], key: str) -> list[Any]:
    rows = answer.get(key, [])
    if not isinstance(rows, list) or (key == "nodes" and key not in answer):
        raise Nonsense(f"it gave no list of {key}")
    return rows
