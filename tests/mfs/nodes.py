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
"""One administration: everything, to everybody's root."""


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

    def __init__(self, count: int = 2, settings: str = "", timeout: int = TIMEOUT, shown: str = SHOWN, encryption: bool = True) -> None:
        """shown: what of [mfs] says what nodes see of one another."""
        settings = shown + settings
        more = f"encryption = {str(encryption).lower()}\n[balance]\nenabled = false\n[mfs]\ntimeout = {timeout}\n{settings}"
        self.lab = Lab.up(count, name=f"f{os.getpid() % 100000}-{next(NUMBERS)}", configuration=more)
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
        """Where files of other nodes are mounted there."""
        lines = Path(f"/proc/{node.state.pid}/mountinfo").read_text().splitlines()
        return [line.split()[4] for line in lines if " - fuse.mfs " in line]

    def wait_mounted(self, node: Node) -> None:
        """Until it has the files of all others."""
        wanted = {f"/mfs/{other.name}" for other in self.nodes} - {f"/mfs/{node.name}"}
        until(lambda: wanted <= set(self.mounts(node)), f"mounts of {node.name}")

    def pids(self, node: Node) -> dict[str, int]:
        """Of the programs of the file tree there, as the node has them: `server`, and one for each node that is mounted."""
        told = node.ask_mosd("mfs")
        return {"server": told["server"], **{one["node"]: one["pid"] for one in told["mounts"]}}

    def kill(self, node: Node, what: str) -> int:
        """Kills one of pids(), once it runs: until then it is 0, and that would be whoever asks for it. Returns its id."""
        pid = int(until(lambda: self.pids(node).get(what, 0), f"{what} runs"))
        node.run(["kill", "-9", str(pid)], check=True)
        return pid

    def python(self, number: int, program: str, *arguments: str, user: str | None = None, timeout: float = 30) -> str:
        """What a Python program says on that node; it must succeed."""
        done = self[number].run([PYTHON, "-c", program, *arguments], user=user, text=True, timeout=bound(timeout))
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def start(self, number: int, program: str, *arguments: str, **options: Any) -> NodeProcess:
        """A Python program on that node, its ends open."""
        argv = [PYTHON, "-u", "-c", program, *arguments]
        return self[number].popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)

    def sh(self, number: int, command: str, user: str | None = None, timeout: float = 30) -> str:
        """What a command says on that node; it must succeed."""
        done = self[number].run(command, user=user, text=True, timeout=bound(timeout))
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return str(done.stdout)
