"""Two nodes of a lab that see one another's files, as tests use them."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab import Lab
from lab.node import Node, NodeProcess
from tests.sanitizers.slower import bound

PYTHON = "/usr/bin/python3"
TIMEOUT = round(bound(2))
"""Seconds for which the nodes wait for one that is lost."""
NUMBERS = itertools.count(1)
SHOWN = 'exports = ["/"]\nroot = "root"\n'
"""Configuration of one administration: everything is exported, to root of all nodes."""


def until(test: Callable[[], Any], what: str, seconds: float = 15.0) -> Any:
    """The first true result. Errors: TimeoutError, naming what did not come."""
    end = time.monotonic() + bound(seconds)
    while not (result := test()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(0.02)
    return result


class Pair:
    """Nodes n1, n2, … with mosd."""

    def __init__(
        self, count: int = 2, settings: str = "", timeout: int = TIMEOUT, shown: str = SHOWN, encryption: bool = True, delay: float = 0.0
    ) -> None:
        """shown: what of [mfs] says what nodes see of one another; delay: seconds that a packet takes."""
        settings = shown + settings
        more = f"encryption = {str(encryption).lower()}\n[balance]\nenabled = false\n[mfs]\ntimeout = {timeout}\n{settings}"
        self.lab = Lab.up(count, name=f"f{os.getpid() % 100000}-{next(NUMBERS)}", configuration=more, delay=delay)
        self.nodes = self.lab.nodes()
        try:
            for node in self.nodes:
                self.wait_mounted(node)
        except BaseException:
            self.lab.down()
            raise

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number - 1]

    def mounts(self, node: Node) -> list[str]:
        """Returns the mount points of other nodes' files there."""
        lines = Path(f"/proc/{node.state.pid}/mountinfo").read_text().splitlines()
        return [line.split()[4] for line in lines if " - fuse.mfs " in line]

    def wait_mounted(self, node: Node) -> None:
        """Waits until the node has mounted the files of all others."""
        wanted = {f"/mfs/{other.name}" for other in self.nodes} - {f"/mfs/{node.name}"}
        until(lambda: wanted <= set(self.mounts(node)), f"mounts of {node.name}")

    def pids(self, node: Node) -> dict[str, int]:
        """Returns the pids of the file tree's programs there, as that node numbers them: `server`, and one for each mounted node."""
        status = node.ask_mosd("mfs")
        return {"server": status["server"], **{one["node"]: one["pid"] for one in status["mounts"]}}

    def kill(self, node: Node, what: str) -> int:
        """Kills one of pids() as soon as it runs (until then its id is 0, which would be the caller's process group). Returns its id."""
        pid = int(until(lambda: self.pids(node).get(what, 0), f"{what} runs"))
        node.run(["kill", "-9", str(pid)], check=True)
        return pid

    def python(self, number: int, program: str, *arguments: str, user: str | None = None, timeout: float = 30) -> str:
        """Returns the output of a Python program on that node; it must succeed."""
        done = self[number].run([PYTHON, "-c", program, *arguments], user=user, text=True, timeout=bound(timeout))
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def start(self, number: int, program: str, *arguments: str, **options: Any) -> NodeProcess:
        """A Python program on that node, its ends open."""
        argv = [PYTHON, "-u", "-c", program, *arguments]
        return self[number].popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)

    def sh(self, number: int, command: str, user: str | None = None, timeout: float = 30) -> str:
        """Returns the output of a command on that node; it must succeed."""
        done = self[number].run(command, user=user, text=True, timeout=bound(timeout))
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return str(done.stdout)
