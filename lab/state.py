"""What a lab remembers, in /run/farhome-lab/NAME/lab.json, and the lock around changes of it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kernel_helpers.common.errors import FarhomeError

DIRECTORY = Path("/run/farhome-lab")
KEEPER = "keeper"
"""File of a lab: process id and start of its keeper."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


class LabError(FarhomeError):
    """A lab cannot do what was asked; the message is one sentence."""


@dataclass(frozen=True)
class NodeState:
    """One virtual node; ``pid`` and ``start`` (clock ticks since boot) name its process 1 as the host sees it."""

    name: str
    pid: int
    start: int
    address: str
    cpus: float
    speed: float

    def is_alive(self) -> bool:
        """Return whether its process 1 still runs."""
        return start_time(self.pid) == self.start


@dataclass(frozen=True)
class Cut:
    """Two nodes between which all packets are lost; ``token`` distinguishes this cut from a later one of the same two."""

    first: str
    second: str
    token: str


@dataclass
class LabState:
    """A lab; ``switch`` is the process that holds the network namespace of the bridge; ``bandwidth`` is in bits/s, ``delay`` and
    ``jitter`` in seconds."""

    name: str
    switch: int
    switch_start: int
    bandwidth: int | None
    delay: float = 0.0
    jitter: float = 0.0
    nodes: dict[str, NodeState] = field(default_factory=dict)
    cuts: list[Cut] = field(default_factory=list)


def start_time(pid: int) -> int | None:
    """Clock ticks from boot to the process's start; None when there is no such process or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def check_name(name: str) -> str:
    """Return the name itself. Errors: LabError when it is none."""
    if not _NAME.fullmatch(name):
        raise LabError(f"{name!r} is no name for a lab: up to 40 small letters, digits, - and _.")
    return name


def directory(name: str) -> Path:
    """Return where the lab keeps its files."""
    return DIRECTORY / check_name(name)


def load(name: str) -> LabState | None:
    """Return the lab's state, None when there is no such lab (or one whose ``up`` never ended)."""
    try:
        raw = json.loads((directory(name) / "lab.json").read_text())
        return LabState(
            name=raw["name"],
            switch=raw["switch"],
            switch_start=raw["switch_start"],
            bandwidth=raw["bandwidth"],
            delay=raw.get("delay", 0.0),
            jitter=raw.get("jitter", 0.0),
            nodes={key: NodeState(**value) for key, value in raw["nodes"].items()},
            cuts=[Cut(**value) for value in raw["cuts"]],
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(f"the state of lab {name} is damaged ({error}): 'lab down' still removes it.") from error


def save(state: LabState) -> None:
    """Write it, whole or not at all."""
    path = directory(state.name) / "lab.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(state), indent=1))
    new.rename(path)


def keeper(name: str) -> tuple[int, int] | None:
    """Return process id and start of the process that takes the lab down when its owner has ended; None: it has none, or not yet."""
    try:
        pid, start = (directory(name) / KEEPER).read_text().split()
        return int(pid), int(start)
    except (OSError, ValueError):
        return None


def names() -> list[str]:
    """All labs that have left a state."""
    try:
        return sorted(entry.name for entry in DIRECTORY.iterdir() if entry.is_dir())
    except FileNotFoundError:
        return []


@contextlib.contextmanager
def locked(name: str, *, create: bool = False) -> Iterator[Path]:
    """Hold the lab's lock (its directory, made when missing and ``create``) and yield the directory.

    Errors: LabError when there is no such lab or no right.
    """
    with locked_directory(directory(name), "" if create else f"lab {name} is not up: 'lab up' starts it.") as held:
        yield held


@contextlib.contextmanager
def locked_directory(path: Path, missing: str = "") -> Iterator[Path]:
    """Hold the lock of a directory and yield it; one that is missing is made. Errors: LabError: no right, or ``missing``, if that says
    something."""
    while True:
        try:
            if not missing:
                path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError as error:
            raise LabError("a lab needs root.") from error
        except FileNotFoundError as error:
            if not missing:
                continue
            raise LabError(missing) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _inode(path) == os.fstat(descriptor).st_ino:  # else who held the lock has removed it: begin again with a new directory
                yield path
                return
        finally:
            os.close(descriptor)


def _inode(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None
