"""A lab as the tests of moves use it: programs run on its first node, commands are typed there, what they say is typed here."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cli.common.exit_codes import REFUSED, UNAVAILABLE
from lab import Lab, LabError
from tests.sanitizers.slower import bound

T = TypeVar("T")
NUMBERS = itertools.count(1)
HOME = "n1"
SHOWN = ("Name", "State", "TracerPid", "NSpid", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt", "Seccomp")


def until(what: str, test: Callable[[], T | None], *, seconds: float = 10, every: float = 0.02) -> T:
    """Returns the first result of `test` that is true; asks each `every` seconds. TimeoutError names what did not come
    within `seconds`."""
    end = time.monotonic() + bound(seconds)
    while True:
        result = test()
        if result:
            return result
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(every)


@dataclass(frozen=True)
class Move:
    """One attempted `migrate`. `kind` is out, hop or home; times in milliseconds, `at` in seconds since the storm began."""

    at: float
    pid: int
    kind: str
    source: str
    target: str
    done: bool
    said: str
    frozen_ms: float = 0.0
    total_ms: float = 0.0
    engine: str = ""
    ahead: int = 0
    """bytes that went while the process ran"""
    follows: int = 0
    """bytes that went when it ran again, at most"""

    def __str__(self) -> str:
        times = f"frozen {self.frozen_ms:.0f} ms of {self.total_ms:.0f}, {self.engine}" if self.done else f"NOT DONE: {self.said}"
        return f"{self.at:7.2f} s  {self.pid} {self.kind:4} {self.source} -> {self.target}  {times}"


class NodePlace:
    """A node of the lab as a place for workloads (see outcome.Place)."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.lab, self.name = lab, name

    @property
    def root(self) -> Path:
        return self.lab.node(self.name).root

    def popen(self, argv: list[str], user: str, **options: Any) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = self.lab.node(self.name).popen(argv, user=user or None, **options)
        return process

    def run(self, *argv: str, user: str = "", timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end; its output is text."""
        done: subprocess.CompletedProcess[str] = self.lab.node(self.name).run(
            list(argv),
            user=user or None,
            timeout=timeout,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        return done


class Cluster:
    """Three nodes with mosd. Programs have their home on n1. FARHOME_TEST_CONFIGURATION: what is added to every node.toml, so that all
    tests can be run with what is off as a rule ('[mfs]\\ndirect = true')."""

    def __init__(self, nodes: int = 3, **options: Any) -> None:
        options["configuration"] = options.get("configuration", "") + os.environ.get("FARHOME_TEST_CONFIGURATION", "")
        self.lab = Lab.up(nodes, name=f"t{os.getpid() % 100000}-{next(NUMBERS)}", **options)
        self.names = [f"n{number + 1}" for number in range(nodes)]
        self.home = NodePlace(self.lab, HOME)

    def place(self, name: str) -> NodePlace:
        return NodePlace(self.lab, name)

    def down(self) -> None:
        self.lab.down()

    def processes(self, job: str) -> list[dict[str, Any]]:
        """Returns what `mosps --json -J JOB` shows to root on the home node, without the command: it is polled, and would take a processor
        from the tests beside."""
        answer = self.lab.node(HOME).ask_mosd("ps", timeout=20, job=job)
        if not answer.get("ok"):
            raise RuntimeError(f"mosd refused: {answer.get('error')}")
        found: list[dict[str, Any]] = answer["processes"]
        return found

    def process(self, pid: int, job: str) -> dict[str, Any] | None:
        return next((one for one in self.processes(job) if one["pid"] == pid), None)

    def guests(self, node: str) -> list[dict[str, Any]]:
        """Returns what `mosps --guests --json` shows to root on that node, likewise."""
        found: list[dict[str, Any]] = self.lab.node(node).ask_mosd("ps", timeout=20, guests=True)["guests"]
        return found

    def where(self, process: dict[str, Any]) -> str:
        """The node where it is; the home node's name when at home."""
        where = process["where"]
        return HOME if where in ("home", None, "") else str(where)

    def migrate(self, pid: int, source: str, target: str, *, at: float = 0, user: str = "", memory: str = "") -> Move:
        """Has a process moved, waits, and returns the result: a user by `migrate PID TARGET` at home; root by what that sends to mosd,
        for most moves are root's, and each command is a Python that starts. memory: with --memory."""
        kind = "home" if target == HOME else "out" if source == HOME else "hop"
        where = "home" if kind == "home" else target
        code, answer = self._command_migrate(pid, where, user, memory) if user else self._ask_migrate(pid, where, memory)
        if code:
            return Move(at, pid, kind, source, target, False, f"exit {code}: {answer['error']}")
        if not answer.get("moved"):
            return Move(at, pid, kind, source, target, False, "it is there already")
        return Move(at, pid, kind, source, target, True, json.dumps(answer), float(answer["frozen_ms"]), float(answer["total_ms"]),
                    str(answer.get("engine", "")), int(answer.get("ahead_bytes", 0)), int(answer.get("follows_bytes", 0)))  # fmt: skip

    def _command_migrate(self, pid: int, where: str, user: str, memory: str) -> tuple[int, dict[str, Any]]:
        """Returns its exit code, and the answer that it shows."""
        manner = ["--memory", memory] if memory else []
        done = self.home.run("migrate", str(pid), where, "--json", *manner, user=user)
        return done.returncode, {"error": (done.stderr or done.stdout).strip()} if done.returncode else json.loads(done.stdout)

    def _ask_migrate(self, pid: int, where: str, memory: str) -> tuple[int, dict[str, Any]]:
        """The same, of the same request: the exit code that the command would have."""
        fields = {"pid": pid, "target": where, "engine": "", "memory": memory, "async": False}
        try:
            answer = self.lab.node(HOME).ask_mosd("migrate", timeout=60, **fields)
        except LabError as error:
            return UNAVAILABLE, {"error": str(error)}
        return (0 if answer.get("ok") else int(answer.get("code", REFUSED))), answer

    def logs(self, directory: Path) -> None:
        """Copies what the node daemons, deputies and remotes have said, and what mosps shows."""
        for name in self.names:
            run = self.place(name).root / "run" / "farhome"
            for path in (*run.glob("*.log"), *run.glob("log/*")):
                copy = directory / name / path.name
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
            processes = directory / name / "processes"
            processes.write_text("".join(proc_evidence(self.place(name).root)))
        shown = self.home.run("mosps", "-a", timeout=20)
        (directory / "mosps").write_text(shown.stdout + shown.stderr)


def _tasks(process: Path) -> list[Path]:
    """A process's threads, none if it has ended."""
    try:
        return sorted((process / "task").iterdir())
    except OSError:
        return []


def proc_evidence(root: Path) -> Iterator[str]:
    """Reports what the kernel shows of each thread on a node: state, signals, system call and where it waits."""
    processes = sorted(Path(root, "proc").glob("[0-9]*"))
    for task in (task for process in processes for task in _tasks(process)):
        try:
            status = (task / "status").read_text()
            kept = [line for line in status.splitlines() if line.split(":")[0] in SHOWN]
            command = (task / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            where = [(task / name).read_text().strip() for name in ("syscall", "wchan", "stack")]
            yield "\n".join([str(task.relative_to(root)), command, *kept, *where, "", ""])
        except OSError:
            continue
