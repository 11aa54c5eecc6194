"""A picture for tests, as the daemon of n1 would answer: four nodes and one that is dead, processes, a guest, moves."""

from __future__ import annotations

from typing import Any

from monitor.picture import Listing, Picture, listing_of, picture_of
from monitor.source import Trouble

GIB = 1 << 30
NOW = 1_000_000.0


def node(name: str, runnable: float, **changes: Any) -> dict[str, Any]:
    """A row of a node."""
    return {
        "name": name, "runnable": runnable, "load": runnable, "cores": 1.0, "speed": 1.0, "memory_free": 4 * GIB, "memory_total": 16 * GIB,
        "guests": 0, "lending": True, "blocked": False, "age": 0.5, "self": False, "address": "10.0.0.1", "port": 7226, "version": 1,
    } | changes  # fmt: skip


def process(pid: int, where: str = "home", **changes: Any) -> dict[str, Any]:
    """A row of a home process."""
    return {
        "pid": pid, "user": "joe", "where": where, "state": "home" if where == "home" else "away", "seconds": 12.0, "moves": 1,
        "command": f"work {pid}", "why": "", "job": "", "locked": False, "home_only": False, "adopted": False, "decision": "",
        "share": None,
    } | changes  # fmt: skip


def event(ago: float, pid: int, source: str, target: str, what: str = "moved", reason: str = "balance") -> dict[str, Any]:
    """A happening so many seconds ago."""
    return {"at": NOW - ago, "pid": pid, "what": what, "source": source, "target": target, "reason": reason, "times": 1}


def answer(**changes: Any) -> dict[str, Any]:
    """Returns the answer of n1's daemon to `watch`."""
    return {
        "ok": True, "node": "n1", "at": NOW, "unseen": 0, "dead": ["n9"],
        "nodes": [
            node("n1", 3.2, age=0.0, self=True, utilisability=0.875, owner_idle=75.0, closed_why=""),
            node("n2", 1.0, speed=0.5, load=2.0, guests=2, age=1.4),
            node("n3", 0.0, blocked=True, age=0.9),
            node("n10-with-a-very-long-name", 0.0, lending=False, age=25.0),
        ],
        "processes": [
            process(4711, "n2", decision="stays: n3 would be no better"), process(4712, why="n3 refuses it: blocked"),
            process(4713, home_only=True),
        ],
        "guests": [{"home": "n2", "pid": 99, "user": "ann", "seconds": 3.0, "memory": 256 << 20, "command": "make", "key": "n2-99"}],
        "events": [
            event(40, 4711, "home", "n3"), event(20, 4711, "n3", "n2", reason="asked"),
            event(10, 4712, "home", "n3", "failed", "n3 refuses it: blocked"),
        ],
        "counters": {
            "since": NOW - 3600, "out": 7, "hop": 2, "home": 5, "failed": 3, "lost": 1, "frozen_seconds": 1.25, "moved_bytes": 5 * GIB,
        },
    } | changes  # fmt: skip


def picture(**changes: Any) -> Picture:
    """That, as a picture."""
    return picture_of(answer(**changes))


def listing(**changes: Any) -> dict[str, Any]:
    """Returns the answer of n1's daemon to `processes` of n2."""
    return {
        "ok": True, "node": "n2", "unseen": 2,
        "processes": [process(99, "n1", user="ann", command="make"), process(7, user="ann", command="vi", decision="stays: it is idle")],
        "guests": [
            {"home": "n1", "pid": 4711, "user": "joe", "seconds": 12.0, "memory": 1 << 20, "command": "work 4711", "key": "n1-4711"},
            {"home": "n3", "pid": 4711, "user": "bob", "seconds": 2.0, "memory": 64 << 20, "command": "solve", "key": "n3-4711"},
        ],
    } | changes  # fmt: skip


class FakeSource:
    """A source for screens and pages: moves change its picture at once, as a daemon's would."""

    def __init__(self, **changes: Any) -> None:
        self.answer = answer(**changes)
        self.moves: list[tuple[int, str]] = []
        self.trouble = ""
        self.silent: set[str] = set()
        self.listed: list[str] = []

    def picture(self) -> Picture:
        if self.trouble:
            raise Trouble(self.trouble)
        return picture_of(self.answer)

    def listing(self, node: str) -> Listing:
        self.listed.append(node)
        if node in self.silent:
            raise Trouble(f"{node} does not report its processes: it does not answer")
        return listing_of(listing(node=node))

    def why(self, pid: int) -> list[str]:
        if pid == 4713:
            raise Trouble("process 4713 belongs to root")
        return [f"process {pid} (work {pid}) is on n2, moved twice", "last:", "  home -> n3: the balancer"]

    def move(self, pid: int, target: str) -> str:
        self.moves.append((pid, target))
        if target == "n3":
            raise Trouble(f"process {pid} stays where it is: n3 refuses it: blocked")
        rows = [row | {"where": target, "moves": row["moves"] + 1} if row["pid"] == pid else row for row in self.answer["processes"]]
        self.answer["processes"] = rows
        return f"process {pid} is {target}, frozen 12.5 ms, total 50.0 ms"
