"""One guest as its target knows it: what its home asks for, what is kept of it in a file, and what admission looks at besides."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from balancer.lending.conditions import Values
from node.cluster.front.connections import PeerRefused
from node.cluster.front.peer_server import Caller

MOST_GROUPS = 64
"""Of a user that a home may report."""


@dataclass(frozen=True)
class Guest:
    """A process of another node that is here or on its way. memory (bytes) is what was reserved for it, runnable how
    many threads it was expected to add to those that want to run."""

    home: str
    pid: int
    uid: int
    user: str
    memory: int
    since: float
    command: str = ""
    runnable: float = 1.0
    group: str = ""
    """The key of the guest whose control group it is in: of its own, or of the parent that it was born of here."""
    groups: tuple[str, ...] = ()
    """of its user, by their names at home"""

    @property
    def key(self) -> str:
        return f"{self.home}-{self.pid}"


@dataclass(frozen=True)
class Surroundings:
    """What admission has to know besides the guests: bytes that are free, whether the node runs on its battery (None: nothing reports it),
    why the owner has the node now, and what conditions may name."""

    memory_free: int
    is_on_battery: bool | None = None
    withheld: str | None = None
    values: Values = field(default_factory=dict)


def requested(caller: Caller, parameters: dict[str, Any]) -> Guest:
    """Return the guest that a reservation is for. Errors: PeerRefused."""
    home, pid, uid, user, memory = (parameters.get(key) for key in ("home", "pid", "uid", "user", "memory"))
    if home != caller.name:
        raise PeerRefused("refused", "a node reserves places for its own processes only")
    if (
        not isinstance(pid, int) or not 0 < pid <= 1 << 22 or not isinstance(uid, int) or not 0 <= uid < 1 << 32
        or not isinstance(user, str) or not 0 < len(user) <= 64 or not user.isprintable()
        or not isinstance(memory, int) or not 0 <= memory < 1 << 60
    ):  # fmt: skip
        raise PeerRefused("refused", "the request for a place is not complete")
    command, runnable = parameters.get("command", ""), amount(parameters, "runnable", 1e4, 1.0)
    command = "".join(c if c.isprintable() else " " for c in command[:200]) if isinstance(command, str) else ""
    groups = parameters.get("groups", [])
    if (
        not isinstance(groups, list)
        or len(groups) > MOST_GROUPS
        or not all(isinstance(name, str) and len(name) <= 64 and name.isprintable() for name in groups)
    ):
        raise PeerRefused("refused", "the groups in the request for a place make no sense")
    return Guest(caller.name, pid, uid, user, memory, time.time(), command, runnable, f"{caller.name}-{pid}", tuple(groups))


def amount(parameters: dict[str, Any], key: str, most: float, default: float | None = None) -> float:
    """Return a figure of a request. Errors: PeerRefused."""
    value = parameters.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise PeerRefused("refused", f"{key} in the request for a place makes no sense")
    return float(value)


def recorded(record: dict[str, Any]) -> Guest:
    return Guest(
        str(record["home"]), int(record["pid"]), int(record["uid"]), str(record["user"]), int(record["memory"]),
        float(record["since"]), str(record.get("command", "")), float(record.get("runnable", 1.0)), str(record["group"]),
        tuple(map(str, record.get("groups", ()))),
    )  # fmt: skip


def shown(guest: Guest, memory: int, kind: str, is_held: bool) -> dict[str, Any]:
    """Return what `mosps --guests` shows of a guest."""
    return {
        "home": guest.home, "pid": guest.pid, "user": guest.user, "uid": guest.uid, "since": guest.since,
        "seconds": max(0.0, time.time() - guest.since), "memory": memory, "command": guest.command, "key": guest.key, "class": kind,
        "frozen": is_held,
    }  # fmt: skip
