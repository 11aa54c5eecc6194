"""What `mon` costs anyone who looks: time to the first picture, time until it takes keys, and its share of a processor at 64 nodes.

The nodes are simulated: their load vectors go through the real gossip's view, change at every look, and are reported on a socket as the
node daemon reports them, together with processes and moves. The baseline is `top` on the same kind of terminal, at the same pace.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import random
import select
import shutil
import signal
import socket
import struct
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from balancer.load.load import LoadVector
from balancer.load.view import Entry, View
from bench.common.result import BenchFailed, Result
from wire.frames import WireError, receive, send

ROOT = Path(__file__).resolve().parents[2]
NODES = 64
PROCESSES = 32
STARTS = 15
SETTLING, SECONDS = 3.0, 20.0
"""Before the share of a processor is measured, and while it is."""
PATIENCE = 30.0
LIVE = b"\x1b[?1000h"
"""The terminal is asked to report the mouse: from then on keys do something."""
TICKS = os.sysconf("SC_CLK_TCK")


class SimulatedDaemon:
    """Answers `watch` with a cluster that is another one each time."""

    def __init__(self, path: Path, nodes: int = NODES, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._nodes = nodes
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> SimulatedDaemon:
        self._listener.settimeout(0.1)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError, WireError, OSError):
                connection, _ = self._listener.accept()
                with connection:
                    connection.settimeout(5)
                    receive(connection)
                    send(connection, self.answer())

    def answer(self) -> dict[str, Any]:
        """A picture of all nodes: loads and ages at random, a few of them silent."""
        now = time.time()
        names = [f"n{number}" for number in range(1, self._nodes + 1)]
        view = View("n1", {name: Entry(self._vector(name), self._random.expovariate(0.3)) for name in names})
        processes = [self._process(4000 + number) for number in range(PROCESSES)]
        events = [
            {"at": now - 30 * number, "pid": 4000 + number % 8, "what": "moved", "source": "home", "target": "n2", "reason": "balance"}
            for number in range(16)
        ]
        return {"ok": True, "node": "n1", "at": now, "nodes": view.rows(), "processes": processes, "events": events}

    def _vector(self, name: str) -> LoadVector:
        runnable = self._random.uniform(0, 8)
        return LoadVector(
            name=name, incarnation=1, sequence=1, address="10.0.0.1", port=7226, runnable=runnable, load=runnable / 2, cores=2.0, speed=1.0,
            memory_free=self._random.randrange(1 << 34), memory_total=1 << 34, guests=1, lending=True, blocked=False, version=1,
        )  # fmt: skip

    def _process(self, pid: int) -> dict[str, Any]:
        where = f"n{self._random.randrange(2, self._nodes + 1)}"
        return {"pid": pid, "user": "root", "where": where, "state": "away", "seconds": 5.0, "moves": 3, "command": "simulation --all"}


class Terminal:
    """A program on a terminal of 80 by 24, and what it writes."""

    def __init__(self, argv: Sequence[str], environment: dict[str, str]) -> None:
        self.output = b""
        self.begun = time.monotonic()
        self.pid, self._descriptor = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
            os.execve(argv[0], list(argv), environment)

    def read_for(self, seconds: float, until: bytes | None = None) -> float:
        """Milliseconds from the start until it has written that; reads on for so many seconds if it is to write nothing in particular.
        Errors: BenchFailed if it has ended, or does not write that."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self._descriptor], [], [], left)[0]:
                break
            try:
                self.output += os.read(self._descriptor, 1 << 16)
            except OSError:
                raise BenchFailed(f"the program on the terminal ended: {self.output[-200:]!r}") from None
            if until is not None and until in self.output:
                return (time.monotonic() - self.begun) * 1000
        if until is not None:
            raise BenchFailed(f"the program on the terminal has not written {until!r}")
        return 0.0

    def cpu_seconds(self) -> float:
        """What it has used of processors."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def end(self) -> None:
        """Ends it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._descriptor)


@contextlib.contextmanager
def shown(argv: Sequence[str], environment: dict[str, str]) -> Iterator[Terminal]:
    """The program runs on a terminal inside."""
    terminal = Terminal(argv, environment)
    try:
        yield terminal
    finally:
        terminal.end()


def share(argv: Sequence[str], environment: dict[str, str]) -> float:
    """Percent of one processor that a program uses that is only looked at."""
    with shown(argv, environment) as terminal:
        terminal.read_for(SETTLING)
        before, begun = terminal.cpu_seconds(), time.monotonic()
        terminal.read_for(SECONDS)
        return (terminal.cpu_seconds() - before) / (time.monotonic() - begun) * 100


def run() -> list[Result]:
    """Return the results. Errors: BenchFailed."""
    top = shutil.which("top")
    if top is None:
        raise BenchFailed("top is missing: install procps")
    first: list[float] = []
    live: list[float] = []
    other: list[float] = []
    with tempfile.TemporaryDirectory() as directory, SimulatedDaemon(Path(directory) / "mosd.sock"):
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "TERM": "xterm-256color", "FARHOME_RUN": directory}
        mon, baseline = [str(ROOT / "bin" / "mon")], [top, "-d", "1"]
        for _ in range(STARTS):
            with shown(mon, environment) as terminal:
                first.append(terminal.read_for(PATIENCE, b"Enter processes"))
                live.append(terminal.read_for(PATIENCE, LIVE))
            with shown(baseline, environment) as terminal:
                other.append(terminal.read_for(PATIENCE, b"PID"))
        ours, theirs = share(mon, environment), share(baseline, environment)
    return [
        Result.of(f"first paint, {NODES} nodes", first, other, unit="ms", baseline_name="first paint of top"),
        Result.of(f"takes keys, {NODES} nodes", live, other, unit="ms", baseline_name="first paint of top"),
        Result.of(f"share of a core, {NODES} nodes, once a second", [ours], [theirs], unit="%", baseline_name="top -d 1"),
    ]
