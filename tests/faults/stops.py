"""Moves that are stopped at a step (wire/steps.py)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.moves.cluster import Cluster, until
from tests.moves.figures import read
from wire import steps

DIRECTORY = "run/steps"
"""Below the root of each node."""
PATIENCE = 5.0
"""Seconds within which the last process comes to its step."""
ENVIRONMENT = (steps.VARIABLE, f"/{DIRECTORY}")
"""The environment variable with which nodes have to be started."""


def prepare(cluster: Cluster) -> None:
    """Makes the directories."""
    for node in cluster.names:
        (cluster.place(node).root / DIRECTORY).mkdir()


class Stop:
    """Stops the first process that comes to a step on that node."""

    def __init__(self, cluster: Cluster, node: str, step: str) -> None:
        self.step = step
        self.pid = 0
        """the process's id on the node; 0: none has come yet"""
        self._place = cluster.place(node)
        self._path = self._place.root / DIRECTORY / step

    def wait(self, unless: Callable[[], object]) -> None:
        """Waits until a process stands there. Errors: AssertionError: the tried action is over, and no process has come."""
        late: float | None = None

        def stands() -> bool:
            nonlocal late
            over = unless()
            self._come()
            if over and not self.pid:  # the last step follows the word that it is over
                late = late or time.monotonic()
                assert time.monotonic() - late < PATIENCE, f"no process came to {self.step}: {over}"
            return bool(self.pid) and state(self._place.root / "proc" / str(self.pid)) == "T"

        until(f"a process comes to {self.step}", stands, seconds=30, every=0.005)

    def _come(self) -> None:
        found: Path | None = next(self._path.parent.glob(f"{self.step}.*"), None)
        if found is not None:
            self.pid = int(found.suffix[1:])

    def go_on(self) -> None:
        """He goes on, if he lives."""
        if self.pid:
            self._place.run("kill", "-CONT", str(self.pid))

    def __enter__(self) -> Stop:
        self._path.touch()
        return self

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)
        self._come()
        self.go_on()
        for path in self._path.parent.glob(f"{self.step}.*"):
            path.unlink()


def has_died(process: Path) -> bool:
    """Returns whether all of its threads have ended, so that all its descriptors are closed: they are zombies then, or gone."""
    try:
        return all(state(thread) in "ZX" for thread in (process / "task").iterdir())
    except FileNotFoundError:
        return True


def state(process: Path) -> str:
    """Returns its state in /proc as one letter, or nothing when it has gone."""
    return "".join(read(process / "stat").decode(errors="replace").rpartition(")")[2].split()[:1])
