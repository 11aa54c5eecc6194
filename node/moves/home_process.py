"""A home process as it is known here, wherever it runs, and as its file has it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from engine.leaving.permission import Owner, owner_of_user
from node.common import process
from node.common.process import ProcessStat
from node.moves import history
from node.moves.history import History

HOME = "home"
KEPT_MOVES = 8


@dataclass(frozen=True)
class HomeProcess:
    """One home process. Times are seconds since the epoch, memory bytes, starttime clock ticks after boot.

    `state` is starting (mosrun has not yet become the program), home, leaving, away, hopping or coming; `where` is the place that its
    user context is at; `towards` the node that it is about to be on, ""; `wanted` a node's name, "best" or ""; `why` the last refusal
    or failure, or why it came home; `cpu_away` the seconds of cpu that it used in those stays on other nodes that are over; `adopted`
    that mosrun did not start it (or the process that it comes from): somebody moved it by hand. `owner` is who registered it, or the
    process that it comes from: user, group, further groups; its own ids may be others. `trust` names the nodes that it may be on beside
    its home (mosrun --trust); empty: all. `cut` is since when its node is not heard; 0: it is. `born` is where it was born: home, or
    the node that its parent was on.

    Its checkpoints: `checkpoint_every` minutes (0: not by themselves), since when, to what directory; the last that was made, and when
    the last was tried by itself; how many milliseconds it stood still; why the last one was not made.
    """

    pid: int
    starttime: int
    uid: int
    job: str = ""
    command: str = ""
    home_only: bool = False
    locked: bool = False
    memory: int = 0
    wanted: str = ""
    state: str = "home"
    where: str = HOME
    towards: str = ""
    since: float = 0.0
    moves: int = 0
    frozen_ms: float = 0.0
    total_ms: float = 0.0
    why: str = ""
    not_before: float = 0.0
    recent: tuple[float, ...] = ()
    cpu_away: float = 0.0
    resident: int = 0
    adopted: bool = False
    trace: str = ""
    owner: tuple[int, ...] = ()
    trust: tuple[str, ...] = ()
    checkpoint_every: float = 0.0
    checkpoint_directory: str = ""
    checkpoint_since: float = 0.0
    checkpoint_at: float = 0.0
    checkpoint_tried: float = 0.0
    checkpoint_ms: float = 0.0
    checkpoint_why: str = ""
    cut: float = 0.0
    born: str = HOME
    history: History = field(default_factory=History)

    def runnable(self, stat: ProcessStat | None = None) -> float:
        """Return how many threads it adds to those that want to run: one that sleeps at this moment counts half, unless it is about to
        begin. stat: what /proc reports about it, if that has been read already."""
        stat = stat or process.read_stat(self.pid) if self.where == HOME and self.state != "starting" else None
        return 1.0 if stat is None or stat.state == "R" else 0.5

    def distrusts(self, node: str) -> str | None:
        """Returns why it may not go to that node, for any user; None: it may."""
        if not self.trust or node in self.trust:
            return None
        return f"{node} is none of the nodes that it may be on (mosrun --trust {','.join(self.trust)})"

    def registered_by(self) -> Owner:
        """Whose rights bound what may leave of it (engine/leaving/permission.py)."""
        return Owner(self.owner[0], self.owner[1], self.owner[2:]) if len(self.owner) > 1 else owner_of_user(self.uid)

    @property
    def shown_state(self) -> str:
        """As people see it: one whose node is not heard waits."""
        return "cut off" if self.cut and self.state == "away" else self.state

    def is_as_it_was(self, then: HomeProcess) -> bool:
        """Return whether it is that very process, and has not moved since."""
        return (self.starttime, self.moves) == (then.starttime, then.moves)

    def row(self, now: float) -> dict[str, Any]:
        """Return the object that `mosps --json` shows."""
        return {
            "pid": self.pid,
            "user": process.user_name(self.uid),
            "uid": self.uid,
            "job": self.job,
            "where": self.where,
            "since": self.since,
            "seconds": max(0.0, now - self.since),
            "moves": self.moves,
            "frozen_ms": self.frozen_ms,
            "total_ms": self.total_ms,
            "why": self.why,
            "locked": self.locked,
            "home_only": self.home_only,
            "adopted": self.adopted,
            "trust": list(self.trust),
            "command": self.command,
            "state": self.shown_state,
        } | self._checkpoint_row()

    def _checkpoint_row(self) -> dict[str, Any]:
        if not self.checkpoint_directory and not self.checkpoint_why:
            return {}
        reported = {
            "every": self.checkpoint_every, "directory": self.checkpoint_directory, "at": self.checkpoint_at,
            "frozen_ms": self.checkpoint_ms, "why": self.checkpoint_why,
        }  # fmt: skip
        return {"checkpoint": reported}


def to_record(owner: Owner) -> tuple[int, ...]:
    """As HomeProcess keeps it."""
    return owner.uid, owner.gid, *owner.groups


_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}


def from_record(record: object) -> HomeProcess:
    """Return a home process from its file. Errors: ValueError."""
    if not isinstance(record, dict):
        raise ValueError("no object")
    known = {one.name: one for one in fields(HomeProcess)}
    values: dict[str, Any] = {}
    for key, value in record.items():
        if key not in known:
            continue
        if key == "recent":
            values[key] = tuple(float(moment) for moment in value)
        elif key == "owner":
            values[key] = tuple(int(number) for number in value)
        elif key == "trust":
            values[key] = tuple(str(name) for name in value)
        elif key == "history":
            values[key] = history.from_record(value)
        elif isinstance(value, _TYPES[str(known[key].type)]):
            values[key] = value
        else:
            raise ValueError(f"{key} is {value!r}")
    if not {"pid", "starttime", "uid"} <= set(values):
        raise ValueError("pid, starttime or uid is missing")
    return HomeProcess(**values)
