"""The owner of a node returns: how long until guests are held back, stand still and have gone, and what they cost him meanwhile.

Two guests of 256 MB, which write to all of it as fast as they can, are on n2 when its owner uses his keyboard (a file that stands for it
is touched), or starts a program of his own that computes, from one moment to the next. All times are from that moment on, seen from outside
of the node, in its control groups: the guests are in the idle class and have their quota; all their processes stand still; their groups are
gone. The baseline is what is allowed. At the end each guest has verified all of its memory at home.

`owner's program`: the time of its pieces of work in the ten seconds from the return on, against the same program on the same node without
guests, before and after.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.cpu import Pieces
from bench.nodes import bench_lab, build, checked, wait_until
from bench.result import BenchFailed, Result
from lab import cgroups
from node.cgroups import GuestGroups

if TYPE_CHECKING:
    from lab import Lab, Node

GUESTS, MEGABYTES = 2, 256
ROUNDS = 5
"""Returns of each kind; FARHOME_BENCH_ROUNDS says otherwise."""
ALLOWED = {"throttled": 100.0, "frozen": 250.0, "gone": 10_000.0}
"""Milliseconds."""
PATIENCE = 60.0
AWHILE = 2.0
"""Seconds that guests compute before the owner returns."""
WORK = 10.0
"""Seconds of the owner's work that are looked at."""
INPUT = "run/owner-input"
POLICY = f"""
[balance]
enabled = false
[lend]
idle_after = 30
[lend.owner]
input = ["/{INPUT}"]
logins = false
busy_load = 0.5
calm = 0.5
"""


@dataclass
class Times:
    """What the rounds of one kind have shown, in ms."""

    stages: dict[str, list[float]] = field(default_factory=lambda: {stage: [] for stage in ALLOWED})
    alone: list[float] = field(default_factory=list)
    meanwhile: list[float] = field(default_factory=list)


class Watch:
    """Looks from outside what becomes of the guests of a node."""

    def __init__(self, lab: Lab, keys: list[str]) -> None:
        self._groups = GuestGroups(cgroups.directories(lab.name, "n2"))
        self._keys = keys

    def _stage(self, stage: str) -> bool:
        if stage == "throttled":
            return self._groups.is_held_back()
        if stage == "frozen":
            return all(self._groups.stands_still(key) or not self._groups.exists(key) for key in self._keys)
        return not any(self._groups.exists(key) for key in self._keys)

    def times(self, begun: float) -> dict[str, float]:
        """Milliseconds from `begun` (of time.monotonic) to each stage. Errors: BenchFailed."""
        found: dict[str, float] = {}
        for stage in ALLOWED:
            while not self._stage(stage):
                if time.monotonic() - begun > PATIENCE:
                    raise BenchFailed(f"the guests were not {stage} within {PATIENCE:.0f} s after their owner's return")
                time.sleep(0.001)
            found[stage] = (time.monotonic() - begun) * 1e3
        return found


def _said(node: Node, path: str) -> str:
    try:
        return (node.root / path.lstrip("/")).read_text()
    except OSError:
        return ""


def _use(node: Node, ago: float) -> None:
    """The owner has used the node so many seconds ago."""
    path = node.root / INPUT
    path.touch()
    os.utime(path, (time.time() - ago,) * 2)


def _lends(node: Node) -> bool:
    return bool(node.ask_mosd("owner")["stage"] == "lending")


@contextmanager
def guests(lab: Lab, program: str) -> Iterator[list[str]]:
    """Has guests compute on n2; gives their keys. Afterwards they are at home, and have found their memory as it should be.
    Errors: BenchFailed."""
    home = lab.node("n1")
    paths = [f"/tmp/guest-{number}" for number in range(GUESTS)]
    with ExitStack() as stack:
        processes = []
        for path in paths:
            (home.root / path.lstrip("/")).unlink(missing_ok=True)
            argv = ["mosrun", "-L", program, str(MEGABYTES), path, "-1"]
            processes.append(stack.enter_context(home.popen(argv, stdout=subprocess.DEVNULL)))
            stack.callback(processes[-1].kill)
        wait_until(lambda: all(_said(home, path) == "ready\n" for path in paths), "the programs that are to be guests", 60)
        for process in processes:
            checked(home, ["migrate", str(process.node_pid), "n2"], 120)
        time.sleep(AWHILE)
        yield [f"n1-{process.node_pid}" for process in processes]
        for process, path in zip(processes, paths, strict=True):
            checked(home, ["migrate", str(process.node_pid), "home"], 120)
            process.terminate()
            if process.wait(60) != 0 or not _said(home, path).startswith("intact "):
                raise BenchFailed(f"a guest found its memory damaged, or ended with {process.returncode}")


class OwnersProgram:
    """It computes on the owner's node, and tells the time of each piece of its work."""

    def __init__(self, node: Node, program: str) -> None:
        self._process = node.popen([program], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._pieces = Pieces(self._process.stdout)

    def pieces(self) -> list[float]:
        """Ends it; the times in ms."""
        self._process.kill()
        self._process.wait(10)
        if not self._pieces.times:
            raise BenchFailed("the owner's program did not get through one piece of its work")
        return self._pieces.times


def _work_alone(node: Node, program: str, seconds: float = WORK) -> list[float]:
    work = OwnersProgram(node, program)
    time.sleep(seconds)
    return work.pieces()


def returns(lab: Lab, kind: str, guest: str, work: str, times: Times) -> None:
    """One return of the owner, by `input` or by `load`. Errors: BenchFailed."""
    node = lab.node("n2")
    _use(node, 3600.0)
    wait_until(lambda: _lends(node), "n2's lending", 30)
    with guests(lab, guest) as keys:
        watch = Watch(lab, keys)
        begun = time.monotonic()
        if kind == "input":
            _use(node, 0.0)
        program = OwnersProgram(node, work)
        for stage, passed in watch.times(begun).items():
            times.stages[stage].append(passed)
        time.sleep(max(0.0, begun + WORK - time.monotonic()))
        times.meanwhile += program.pieces()


def run() -> list[Result]:
    """Measure in a fresh lab of two nodes. Errors: BenchFailed."""
    chosen = os.environ.get("FARHOME_BENCH_ROUNDS", "")
    rounds = int(chosen) if chosen.isdigit() and int(chosen) > 0 else ROUNDS
    guest, work = build("freeze"), build("cpu")
    results = []
    with bench_lab(2, configuration=POLICY) as lab:
        for kind in ("input", "load"):
            times = Times()
            times.alone += _work_alone(lab.node("n2"), work)
            for _ in range(rounds):
                returns(lab, kind, guest, work, times)
            times.alone += _work_alone(lab.node("n2"), work)
            what = f"{GUESTS} guests of {MEGABYTES} MB"
            for stage, allowed in ALLOWED.items():
                case = f"{kind}: {what} {stage}"
                results.append(Result.of(case, times.stages[stage], [allowed], unit="ms", baseline_name="allowed, a median"))
                results.append(Result.of(f"{case}, the longest", [max(times.stages[stage])], [allowed], unit="ms", baseline_name="allowed"))
            mean = [sum(times.meanwhile) / len(times.meanwhile)]
            alone = [sum(times.alone) / len(times.alone)]
            results.append(Result.of(f"{kind}: owner's program, a piece on average", mean, alone, unit="ms", baseline_name="alone"))
    return results
