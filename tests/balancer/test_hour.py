"""Nodes with twice the load that they can carry, for an hour: no node is declared dead."""

from __future__ import annotations

import contextlib
import math
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import Lab

SECONDS = float(os.environ.get("FARHOME_SOAK_SECONDS", "3600"))
NODES = 6
TIMES = 2
BUSY = ["/usr/bin/python3", "-c", "while True: pass"]


class Log:
    """The log of a node daemon, from the moment on when the test begins to follow it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open(errors="replace")
        self._file.seek(0, os.SEEK_END)
        self.lines: list[str] = []

    def more(self) -> list[str]:
        """All lines of members that have become something."""
        self.lines += [line.rstrip() for line in self._file if re.search(r"node \w+ (counts as dead|does not answer|is there again)", line)]
        return self.lines

    def close(self) -> None:
        self._file.close()


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
def test_no_node_is_declared_dead_under_twice_the_load(lab_name: Callable[[], str]) -> None:
    cpus = len(os.sched_getaffinity(0)) / NODES
    with Lab.up(NODES, name=lab_name(), cpus=cpus, configuration="[balance]\nenabled = false\n") as lab, contextlib.ExitStack() as stack:
        nodes = lab.nodes()
        end = time.monotonic() + 60
        while not all(len(node.ask_mosd("watch")["nodes"]) == NODES for node in nodes):
            assert time.monotonic() < end, "the nodes do not know one another"
            time.sleep(0.1)
        logs = {node.name: Log(node.root / "run/farhome/mosd.log") for node in nodes}
        for log in logs.values():
            stack.callback(log.close)
        for node in nodes:
            for _ in range(math.ceil(TIMES * cpus)):
                busy = stack.enter_context(node.popen(BUSY, stdout=subprocess.DEVNULL))
                stack.callback(busy.kill)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(1)
            for name, log in logs.items():
                dead = [line for line in log.more() if "counts as dead" in line]
                assert not dead, f"at {name}, {end - time.monotonic():.0f} s before the end: {dead}"
        doubts = sum("does not answer" in line for log in logs.values() for line in log.more())
        views = [node.ask_mosd("watch", timeout=20) for node in nodes]
        print(f"{SECONDS:.0f} s, {NODES} nodes of {cpus:.2f} processors: {doubts} suspicions, all of them void")
        assert all(len(view["nodes"]) == NODES and not view["dead"] for view in views)
        load = max(row["load"] * row["speed"] for row in views[0]["nodes"])
        assert load > TIMES * 0.8, "the nodes had less to do than they were to have"
