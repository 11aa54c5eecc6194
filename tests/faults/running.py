"""A program under mosrun with a shell as its parent, watched while things break around it."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.moves.cluster import HOME, Cluster, Move, until
from tests.moves.outcome import PATH, kill_session
from tests.moves.storm import BUNDLES
from tests.programs.build import program

NUMBERS = itertools.count(1)


class Running:
    """One program on the home node, in a fresh directory of that node, started by a bash that writes its exit status
    (as the shell sees it: 128 and the signal's number) into `said`, after all that the program and the shell have said.

    `command`: what is run instead of the program, `{name}` in it is its name. The program is copied under a name of its own, so that its
    processes on any node can be found by it.
    """

    def __init__(self, cluster: Cluster, name: str, arguments: str, user: str = "", mosrun: str = "mosrun -L", command: str = "") -> None:
        self.cluster = cluster
        self.name = f"{name[:6]}{os.getpid() % 10000}x{next(NUMBERS)}"  # 15 bytes at most: what the kernel keeps of a command's name
        self.job = f"job-{self.name}"
        self.directory = cluster.home.root / "tmp" / self.name
        self.directory.mkdir(mode=0o777)
        self.directory.chmod(0o777)
        copy = self.directory / self.name
        self.binary = f"/tmp/{self.name}/{self.name}"
        """Returns its path in the node."""
        shutil.copyfile(program(name), copy)
        copy.chmod(0o755)
        self.output = tempfile.NamedTemporaryFile()  # noqa: SIM115
        run = command.replace("{name}", self.name) or f"./{self.name} {arguments}"
        script = f'cd /tmp/{self.name} && {mosrun} -J {self.job} -- {run}; echo "status $?"'
        argv = ["env", "-i", f"PATH={PATH}", "LC_ALL=C.UTF-8", "setsid", "--wait", "bash", "-c", script]
        self.process = cluster.home.popen(argv, user, stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output)
        self.pid = int(until(f"{self.name} is registered", lambda: next(iter(cluster.processes(self.job)), None))["pid"])

    @property
    def said(self) -> str:
        return Path(self.output.name).read_text()

    def shown(self) -> dict[str, Any] | None:
        """Returns the row that mosps shows for it now."""
        return self.cluster.process(self.pid, self.job)

    def where(self) -> str:
        shown = self.shown()
        assert shown is not None, f"mosps does not show {self.name} any more; it said: {self.said}"
        return self.cluster.where(shown)

    def move(self, target: str, memory: str = "") -> Move:
        move = self.cluster.migrate(self.pid, self.where(), target, memory=memory)
        print(move)
        return move

    def moved(self, target: str, memory: str = "") -> Move:
        """Moves it; fails the test when that is not done."""
        move = self.move(target, memory)
        assert move.done, str(move)
        assert self.where() == target
        return move

    def lines(self) -> list[str]:
        """Returns the content of the file `lines` in its directory."""
        path = self.directory / "lines"
        return path.read_text().splitlines() if path.exists() else []

    def works(self, seconds: float = 10) -> None:
        """Waits until it has written more."""
        before = len(self.lines())
        until(f"{self.name} goes on; it said {self.said!r}", lambda: len(self.lines()) > before, seconds=seconds)

    def host_pids(self) -> list[int]:
        """The processes of its name on all nodes, as the machine that carries the lab numbers them."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if Path(f"/proc/{pid}/comm").read_text().strip() == self.name:
                    found.append(int(pid))
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found

    def waits(self) -> bool:
        """Returns whether it has threads, here or there, and none of them has a processor or waits for one."""
        threads = self._threads()
        return bool(threads) and all(fields[0] != "R" for fields in threads)

    def stands(self) -> bool:
        """Returns whether it stands still for a while, and uses no processor time."""
        if not self.waits():
            return False
        before = self._ticks()
        time.sleep(0.4)
        return self.waits() and self._ticks() == before

    def _ticks(self) -> int:
        """Returns how much all of them have computed, in units of 10 ms."""
        return sum(int(fields[11]) + int(fields[12]) for fields in self._threads())

    def _threads(self) -> list[list[str]]:
        """/proc/PID/task/TID/stat of each, from the state on."""
        found = []
        for pid in self.host_pids():
            with suppress(FileNotFoundError, ProcessLookupError):
                for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
                    found.append(stat.read_text().rpartition(")")[2].split())
        return found

    def stub(self) -> int:
        """The process at home, as the machine that carries the lab numbers it; a guest has a namespace of its own for its pid besides its
        node's. Errors: LookupError."""
        own = len(numbers_of("self"))
        for pid in self.host_pids():
            numbers = numbers_of(pid)
            if len(numbers) == own + 1 and int(numbers[-1]) == self.pid:
                return pid
        raise LookupError(self.name)

    def end(self, seconds: float = 60) -> str:
        """Waits for its end. Returns what it and its shell have said."""
        self.process.wait(seconds)
        return self.said

    def __enter__(self) -> Running:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            print(f"{self.name} said: {self.said}")
            self.cluster.logs(BUNDLES / self.name)
            print(f"what all nodes said is kept in {BUNDLES / self.name}")
        if self.process.poll() is None:
            kill_session(self.process.pid)
            self.process.wait(10)
        self.output.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def numbers_of(pid: int | str) -> list[str]:
    """Returns the pids of a process in each of its namespaces, from ours on."""
    return Path(f"/proc/{pid}/status").read_text().split("NSpid:", 1)[1].split("\n", 1)[0].split()


def log_lines(cluster: Cluster, node: str, *words: str) -> list[str]:
    """Returns the lines of the node daemon's log whose messages have all these words. A word is no part of a longer word or number, and
    nothing of a line's date counts: pids of a lab are short."""
    log = cluster.place(node).root / "run" / "farhome" / "mosd.log"
    whole = [re.compile(rf"(?<![\w,.]){re.escape(word)}(?!\w)") for word in words]
    return [line for line in log.read_text(errors="replace").splitlines() if all(word.search(_undated(line)) for word in whole)]


def _undated(line: str) -> str:
    """Returns a line of a log without the date and time at its begin; a line of a traceback has none."""
    return re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ", "", line)


__all__ = ["HOME", "Running", "log_lines"]
