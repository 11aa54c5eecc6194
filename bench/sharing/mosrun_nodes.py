"""farhome on the nodes of a lab, as its users have it: all jobs are started at once with mosrun on one node, or on each some.

While others run batches on the same nodes the daemons are stopped, so that they cost nothing.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.common.nodes import wait_until
from bench.sharing.batch import ENDS, await_ends
from lab import LabError

if TYPE_CHECKING:
    from lab import Lab, Node

PLACED = ("mosrun", "-b")
"""At the best node from the start on."""
HERE = ("mosrun",)
"""Where it is typed; the balancer may move it."""
QUIET = 0.3
"""Runnable threads of a node that does nothing."""
PATIENCE = 90.0
"""Seconds until nodes know one another again."""


class Mosrun:
    """Runs batches in the nodes of a lab."""

    name = "farhome"

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.stop()

    def stop(self) -> None:
        """The daemons stand still. Errors: BenchFailed."""
        self._signal(signal.SIGSTOP)
        wait_until(lambda: all(state_of_daemon(node) == "T" for node in self._lab.nodes()), "the standstill of the daemons", PATIENCE)

    def go_on(self) -> None:
        """The daemons go on; returns when all nodes are at rest, lend, and know that of one another. Errors: BenchFailed."""
        self._signal(signal.SIGCONT)
        wait_until(self._all_at_rest, "peace among the nodes", PATIENCE)

    @contextmanager
    def going(self) -> Iterator[None]:
        """The daemons go on inside."""
        self.go_on()
        try:
            yield
        finally:
            self.stop()

    def _signal(self, number: int) -> None:
        for node in self._lab.nodes():
            node.run(["kill", f"-{int(number)}", _daemon(node)], check=True)

    def _all_at_rest(self) -> bool:
        nodes = self._lab.nodes()
        for node in nodes:
            try:
                rows = node.ask_mosd("nodes")["nodes"]
            except LabError:
                return False
            rested = [row for row in rows if row["runnable"] < QUIET and row["lending"] and not row["suspected"] and row["age"] < 5]
            if len(rested) < len(nodes):
                return False
        return True

    def run(self, program: str, work: Sequence[int], bound: float) -> list[float]:
        """Seconds from the start of all on the first node to the end of each job. Errors: BenchFailed."""
        nodes = self._lab.nodes()
        return run_started(nodes, {nodes[0].name: list(enumerate(work))}, PLACED, program, bound)


def _daemon(node: Node) -> str:
    return (node.root / "run/farhome-lab.mosd").read_text().strip()


def state_of_daemon(node: Node) -> str:
    """The letter of the kernel."""
    return (node.root / f"proc/{_daemon(node)}/stat").read_text().rpartition(")")[2].split()[0]


def run_started(
    nodes: Sequence[Node], starts: Mapping[str, Sequence[tuple[int, int]]], prefix: Sequence[str], program: str, bound: float
) -> list[float]:
    """Start on each node its jobs (number, work), all at once; seconds until the end of each. Errors: BenchFailed."""
    shells = []
    begun = time.time()
    try:
        for node in nodes:
            jobs = starts.get(node.name, ())
            lines = [f"{' '.join(prefix)} {program} {work} {number} {ENDS} &" for number, work in jobs]
            shells.append(node.popen(["sh", "-c", "\n".join([*lines, "wait"])], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        count = sum(map(len, starts.values()))
        return await_ends(nodes, count, begun, bound, " ".join(prefix) or "the nodes themselves")
    finally:
        for shell in shells:
            try:
                shell.wait(10)
            except subprocess.TimeoutExpired:
                shell.kill()
