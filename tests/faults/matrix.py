"""A move that is stopped at a step, something that fails there, and what becomes of the process: a cell of the tables in docs/moving.md."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.faults import stops
from tests.faults.running import HOME, Running, log_lines
from tests.faults.stops import Stop
from tests.moves.cluster import Cluster, until
from tests.moves.figures import Figures, more, read, settled

LINK_TIMEOUT = 6
DOCUMENT = Path(__file__).parents[2] / "docs" / "moving.md"
BEATS = 0x200000000
"""Address of the counter of tests/programs/kinds.c."""
OUTCOME_TIMEOUT = 50.0
MOMENT = 2.0
"""Seconds of a short cut."""
LASTING = ("processes", "namespaces", "mounts", "cgroups", "listening sockets", "files")
"""Figures that are the same when a daemon is another."""

PLACES = {"out": (HOME, "n2"), "hop": ("n2", "n3"), "home": ("n2", HOME)}
"""Source and target of each way."""
HOLDERS = {"asked": "home mosd", "reserved": "target mosd", "commit said": "deputy", "out": "deputy", "hop": "deputy", "home": "deputy",
           "arrival": "target remote", "departure": "left remote"}  # fmt: skip
"""The program that reaches a step, by the step's name or its beginning."""


@dataclass(frozen=True)
class Cell:
    """`way`: out, hop or home; `actor`: what fails when the move has come to `step`; `outcome`: here (where it was), there (where it goes),
    either, ends (as by SIGKILL) or lost (likewise, and it is said)."""

    way: str
    engine: str
    step: str
    actor: str
    outcome: str

    def __str__(self) -> str:
        return f"{self.way} by {self.engine}, {self.step}, {self.actor}"

    @property
    def holder(self) -> str:
        """The program that reaches the step."""
        if self.step == "round":
            return "deputy" if self.way == "out" else "left remote"
        return HOLDERS[self.step.partition(":")[0]]

    def node(self, actor: str) -> str:
        """Returns the node of an actor."""
        source, target = PLACES[self.way]
        return {"left": source, "target": target}.get(actor.partition(" ")[0], HOME)


def cells(text: str) -> Iterator[Cell]:
    """Yields the cells of the tables under headings `#### WAY, ENGINE`: a row for each step, a column for each actor; a dash where there is
    none yet, or none any more."""
    way = engine = ""
    actors: list[str] = []
    for line in text.splitlines():
        heading = re.fullmatch(r"#### (\w+), (\w+)", line)
        if line.startswith("#"):
            way, engine = (heading[1].lower(), heading[2]) if heading else ("", "")
        if not line:
            actors = []
        elif way and line.startswith("|") and not line.startswith("| ---"):
            first, *others = (field.strip() for field in line.strip("|").split("|"))
            if not actors:
                actors = others
            else:
                yield from (Cell(way, engine, first.strip("`"), *pair) for pair in zip(actors, others, strict=True) if pair[1] != "-")


class Lab:
    """Three nodes whose moves can be stopped, and what they had before the first."""

    def __init__(self) -> None:
        self.cluster = Cluster(configuration=f'link_timeout = {LINK_TIMEOUT}\nmemory = "precopy"\n')
        try:
            stops.prepare(self.cluster)
            for node in self.cluster.names:
                self.restart(node)
            with Running(self.cluster, "kinds", "beats 8 20") as process:
                for target in ("n2", "n3", HOME):
                    until("it moves", lambda target=target: process.move(target).done, seconds=30, every=0.5)  # type: ignore[misc]
                for target in ("n2", "n3"):  # which makes directories for images
                    assert self.cluster.home.run("migrate", str(process.pid), target, "--engine", "criu").returncode == 0
                process.moved(HOME)
                (process.directory / "enough").touch()
                process.end()
            self.before: Figures = settled(self.cluster)
        except BaseException:
            self.cluster.down()
            raise

    def restart(self, node: str) -> None:
        """Kills the node's daemon, and starts another."""
        self.cluster.lab.node(node).stop_mosd(signal.SIGKILL)
        self.cluster.lab.node(node).start_mosd()

    def left(self) -> list[str]:
        """Lists the resources that have grown, after a time in which leftovers may disappear."""
        before = {node: {what: have[what] for what in LASTING} for node, have in self.before.items()}
        return more(settled(self.cluster, before), before)

    def commands(self) -> dict[str, list[bytes]]:
        """Returns what runs on each node that is up."""
        nodes = [node for node in self.cluster.names if self.cluster.lab.node(node).is_alive()]
        return {node: sorted(read(path) for path in (self.cluster.place(node).root / "proc").glob("[0-9]*/cmdline")) for node in nodes}


class Watch:
    """Observes from outside which copies of a process run: several at a time must never do."""

    def __init__(self, process: Running) -> None:
        self._process = process
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.both: set[frozenset[int]] = set()
        """copies that ran at the same time"""

    def _run(self) -> None:
        counts: dict[int, bytes] = {}
        before: set[int] = set()
        while not self._over.wait(0.02):
            now = {pid: beats for pid in self._process.host_pids() if (beats := _beats(pid))}
            ran = {pid for pid in now if pid in counts and now[pid] != counts[pid]}
            together = before & ran  # in two spans of time one after the other: none has given way to the other
            if len(together) > 1:
                self.both.add(frozenset(together))
            counts, before = now, ran

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _beats(pid: int) -> bytes:
    """Returns the value of its counter; nothing if it does not have that memory."""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(BEATS)
            return memory.read(8)
    except OSError:
        return b""


class Play:
    """A process that is moved as a cell says."""

    def __init__(self, lab: Lab, cell: Cell, process: Running) -> None:
        self.lab, self.cell, self.process = lab, cell, process
        self.cluster = lab.cluster
        self.source, self.target = PLACES[cell.way]

    def run(self) -> None:
        """Up to the outcome, and what can be seen of it afterwards. Errors: AssertionError, TimeoutError."""
        cell, process = self.cell, self.process
        if cell.way != "out":
            process.moved(self.source)
        process.works()
        stop = Stop(self.cluster, cell.node(cell.holder), cell.step)
        with Watch(process) as watch, ThreadPoolExecutor(1) as pool, stop:
            move = pool.submit(self._move)
            stop.wait(lambda: move.done() and move.result())
            struck = len(process.lines())
            with self._fails():
                stop.go_on()
                self._await_outcome(struck, move)
            if cell.outcome not in ("ends", "lost"):
                self._ends_well()
            else:
                assert process.end().splitlines()[-1] == "status 137"
        assert not watch.both, "two copies of it have run at the same time"
        lines = process.lines()
        assert lines == [str(number) for number in range(1, len(lines) + 1)]
        assert not (left := self.lab.left()), (left, self.lab.commands())

    def _move(self) -> subprocess.CompletedProcess[str]:
        target = "home" if self.target == HOME else self.target
        engine = [] if self.target == HOME else ["--engine", self.cell.engine]
        return self.cluster.home.run("migrate", str(self.process.pid), target, *engine, "--json", timeout=90)

    @contextmanager
    def _fails(self) -> Iterator[None]:
        """The actor does."""
        where, what = self.cell.actor.split(maxsplit=1) if " " in self.cell.actor else ("", self.cell.actor)
        if what in ("cut", "cut off"):
            first, second = (self.cell.node(end) for end in where.split("-"))
            self.cluster.lab.cut(first, second, MOMENT if what == "cut" else None)
            try:
                yield
            finally:
                self.cluster.lab.heal(first, second)
        elif what == "mosd":
            self.lab.restart(self.cell.node(self.cell.actor))
            yield
        else:
            place, pid = self.cluster.place(self.cell.node(self.cell.actor)), self._pid(what)
            assert place.run("kill", "-KILL", str(pid)).returncode == 0
            until(f"the {self.cell.actor} has died", lambda: stops.has_died(place.root / "proc" / str(pid)))
            yield

    def _pid(self, what: str) -> int:
        """Returns the pid of an actor on its node."""
        if what == "process":
            return self.process.pid
        root = self.cluster.place(self.cell.node(self.cell.actor)).root
        if what == "guest":
            return _inside(root, self.process.pid)
        wanted = [what.encode(), b"--pid", str(self.process.pid).encode()]
        return next(int(path.name) for path in (root / "proc").glob("[0-9]*") if set(wanted) <= set(read(path / "cmdline").split(b"\0")))

    def _await_outcome(self, struck: int, move: Future[subprocess.CompletedProcess[str]]) -> None:
        seen = ""

        def is_sure() -> bool:
            nonlocal seen
            seen = self._outcome(struck, move)
            return seen in (self.cell.outcome, "lost") or (seen == "ends" and self.cell.outcome != "lost")

        with suppress(TimeoutError):
            until("its outcome", is_sure, seconds=OUTCOME_TIMEOUT, every=0.1)
        said = move.result() if move.done() else "nothing yet"
        assert seen == self.cell.outcome, f"{self.cell}: {seen or 'not to be found'}, and not {self.cell.outcome}; migrate says: {said}"

    def _outcome(self, struck: int, move: Future[subprocess.CompletedProcess[str]]) -> str:
        """Returns the fate of the process by now, or nothing while it is not sure. struck: how many lines it had written at the failure."""
        process = self.process
        if process.process.poll() is not None:
            return "lost" if log_lines(self.cluster, HOME, f"process {process.pid} is lost") else "ends"
        if not move.done() or len(process.lines()) < struck + 5:
            return ""
        shown = process.shown()
        if shown is None or shown["state"] not in ("home", "away"):
            return ""
        return "either" if self.cell.outcome == "either" else {self.source: "here", self.target: "there"}[self.cluster.where(shown)]

    def _ends_well(self) -> None:
        """It can be moved as ever, and has all of its memory."""
        for target in (self.target, self.source):
            until(f"it moves to {target}", lambda target=target: self._moved(target), seconds=40, every=0.5)  # type: ignore[misc]
            self.process.works(20)
        (self.process.directory / "enough").touch()
        assert self.process.end(60) == "all is as it was\nstatus 0\n"

    def _moved(self, target: str) -> bool:
        return self.process.where() == target or self.process.move(target).done


def _inside(root: Path, pid: int) -> int:
    """The process that is `pid` in a sandbox of that node."""
    for status in (root / "proc").glob("[0-9]*/status"):
        numbers = re.search(r"^NSpid:(.*)$", read(status).decode(errors="replace"), re.MULTILINE)
        if numbers and len(numbers[1].split()) > 1 and int(numbers[1].split()[-1]) == pid:
            return int(status.parent.name)
    raise LookupError(f"no process {pid} in a sandbox")


def play(lab: Lab, cell: Cell) -> None:
    """Errors: AssertionError, TimeoutError: it is not as the table says."""
    begun = time.monotonic()
    with Running(lab.cluster, "kinds", "beats 8 20") as process:
        Play(lab, cell, process).run()
    print(f"{cell}: {cell.outcome}, {time.monotonic() - begun:.1f} s")
