"""The owner of a node returns: how long until guests are held back, stand still and have gone, and what they cost him meanwhile.

Two guests of 256 MB, which write to all of it as fast as they can, are on n2 when its owner uses his keyboard (a file that stands for it
is touched), or starts a program of his own that computes, from one moment to the next. All times are from that moment on, seen from outside
of the node, in its control groups: the guests are in the idle class and have their quota; all their processes stand still; their groups are
gone. The baseline is what is allowed. At the end each guest has verified all of its memory at home.

`owner's program`: the time of its pieces of work in the ten seconds from the return on, against the same program on the same node without
guests, before and after. `used there`: processor time of all else on the node in those ten seconds, farhome's own programs and guests.

The machine's first processor is the home's and the bench's own, the last is the owner's node: real nodes share no processors, and the work
that the home does when its processes come back would otherwise be taken from the owner's. The owner's node has only the one, all of which
his program wants: whatever is done there for guests is his loss. Memory and caches beyond the first two levels are shared still.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from bench.common.nodes import bench_lab, build, checked, wait_until
from bench.common.result import BenchFailed, Result
from bench.processes.cpu import Pieces
from lab import cgroups
from node.guests.cgroups import GuestGroups

if TYPE_CHECKING:
    from lab import Lab, Node

GUESTS, MEGABYTES = 2, 256
ROUNDS = 5
"""Returns of each kind; FARHOME_BENCH_ROUNDS says otherwise."""
ALLOWED_SHARE = 0.05
"""Of the owner's processor."""
ALLOWED = {"throttled": 100.0, "frozen": 250.0, "gone": 10_000.0}
"""Milliseconds."""
PATIENCE = 60.0
PROCESS_CLOCK = 2
"""Of another process: CPUCLOCK_SCHED, see clock_getcpuclockid(3)."""
AWHILE = 2.0
"""Seconds that guests compute before the owner returns."""
WORK = 10.0
"""Seconds of the owner's work that are looked at."""
QUIET = 0.05
"""Processors."""
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
    used: list[float] = field(default_factory=list)

    def results(self, kind: str) -> list[Result]:
        """Of all rounds."""
        results, what = [], f"{GUESTS} guests of {MEGABYTES} MB"
        for stage, allowed in ALLOWED.items():
            case, times = f"{kind}: {what} {stage}", self.stages[stage]
            results.append(Result.of(case, times, [allowed], unit="ms", baseline_name="allowed, a median"))
            results.append(Result.of(f"{case}, the longest", [max(times)], [allowed], unit="ms", baseline_name="allowed"))
        case = f"{kind}: owner's program, a piece on average"
        results.append(Result.of(case, [fmean(self.meanwhile)], [fmean(self.alone)], unit="ms", baseline_name="alone"))
        allowed = 1e3 * WORK * ALLOWED_SHARE
        results.append(Result.of(f"{kind}: used there in {WORK:.0f} s", self.used, [allowed], unit="ms", baseline_name="allowed"))
        return results


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

    def cpu(self) -> float:
        """Seconds of processor that have been used on the node. Errors: BenchFailed."""
        used = self._groups.cpu_of_node()
        if used is None:
            raise BenchFailed("nothing here shows how much of the processors a node uses")
        return used

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


def is_quiet(node: Node) -> bool:
    """Whether it lends, and has nothing of its own to do any more: it has just been started."""
    reported = node.ask_mosd("owner")
    return reported["stage"] == "lending" and reported["load"] is not None and reported["load"] < QUIET


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
    """It computes on the owner's node, and reports the time of each piece of its work."""

    def __init__(self, node: Node, program: str) -> None:
        self._process = node.popen([program], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._pieces = Pieces(self._process.stdout)

    def cpu(self) -> float:
        """Seconds of processor that it has used."""
        return time.clock_gettime(~self._process.host_pid << 3 | PROCESS_CLOCK)

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
        before, begun = watch.cpu(), time.monotonic()
        if kind == "input":
            _use(node, 0.0)
        program = OwnersProgram(node, work)
        for stage, passed in watch.times(begun).items():
            times.stages[stage].append(passed)
        time.sleep(max(0.0, begun + WORK - time.monotonic()))
        times.used.append(1e3 * (watch.cpu() - before - program.cpu()))
        times.meanwhile += program.pieces()


def run() -> list[Result]:
    """Measure in a fresh lab of two nodes. Errors: BenchFailed."""
    chosen = os.environ.get("FARHOME_BENCH_ROUNDS", "")
    rounds = int(chosen) if chosen.isdigit() and int(chosen) > 0 else ROUNDS
    guest, work = build("moves/freeze"), build("processes/cpu")
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        raise BenchFailed("two nodes that share nothing need two processors")
    home, owners = {processors[0]}, {processors[-1]}
    results = []
    with bench_lab(2, configuration=POLICY, processors={"n1": home, "n2": owners}) as lab:
        os.sched_setaffinity(0, home)
        try:
            for kind in ("input", "load"):
                times = Times()
                _use(lab.node("n2"), 3600.0)
                wait_until(lambda: is_quiet(lab.node("n2")), "n2's lending", 60)
                times.alone += _work_alone(lab.node("n2"), work)
                for _ in range(rounds):
                    returns(lab, kind, guest, work, times)
                times.alone += _work_alone(lab.node("n2"), work)
                results += times.results(kind)
        finally:
            os.sched_setaffinity(0, processors)
    return results
