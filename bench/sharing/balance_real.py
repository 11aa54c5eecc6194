"""How well real nodes share real work: four virtual nodes with quotas of processor, on this machine, in this run.

The nodes have one core each, all equal, or of speeds 1, 0.5, 1, 2; together less than the machine has. Jobs compute a fixed amount of
work. Ours are all started at once on the first node (`mosrun -b`). The least makespan that any schedule could have comes from
the speeds of the nodes, measured between the rounds with all of them busy at once. The others: GNU parallel over the nodes, and Slurm with
a slurmd on each, both with one slot a core; while they run our daemons stand still, and the other way round theirs have nothing to do.

The owner who returns does so at half of the least time, on a node of speed 1, and has his program compute there until all jobs have
ended. By our policy guests leave him alone. GNU parallel and Slurm know of no owner: his program competes with their job.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Protocol

import psutil

from bench.common.nodes import bench_lab, build, checked
from bench.common.peers import require
from bench.common.result import BenchFailed, Result
from bench.sharing.batch import forget_ends, measure_speeds, pareto
from bench.sharing.mosrun_nodes import HERE, Mosrun, run_started
from bench.sharing.parallel_nodes import parallel
from bench.sharing.slurm import PROGRAMS, slurm
from lab.cgroups import processor_seconds

if TYPE_CHECKING:
    from lab import Lab, Node

ROUNDS = 2
"""FARHOME_BENCH_ROUNDS says otherwise."""
BATCHES = 3
"""Of equal jobs, in each round, one with each of the systems first: the difference that counts is less than a machine differs from
itself."""
DRAWS = 8
"""Of sizes that nobody knows, in each round, once with an owner who returns and once without. Who happens to get the longest job first
makes more of a difference than all else: by the rules of list scheduling on these nodes the median of 8 draws is 0.6 to 1.5 of that of
400, of 16 draws 0.75 to 1.25.
"""
JOBS = 16
UNEQUAL_JOBS = 8
EQUAL_SECONDS, SPREAD_SECONDS, UNEQUAL_SECONDS = 60.0, 30.0, 30.0
"""The least makespans of the batches: a job has seven seconds of processor, so that moves cost it more than one that has minutes."""
YARDSTICK = 4.0
EQUAL = {"cpus": 0.45, "period": 0.1}
"""The period is the kernel's own: it shares processors by a clock of 250 ticks a second, and of two ticks in a lab's usual one it cannot
give each of four programs on a node as much."""
MIXED = {"cpus": 0.8, "speed": {"n1": 0.5, "n2": 0.25, "n3": 0.5, "n4": 1.0}}
OWNED = "n3"
INPUT = "/run/owner-input"
POLICY = f"""
[lend.owner]
input = ["{INPUT}"]
logins = false
busy_load = 0.2
idle_load = 0.1
"""
ALONE = "not balancing"


class System(Protocol):
    """What runs a batch of jobs on the nodes."""

    name: str

    def going(self) -> AbstractContextManager[None]:
        """It can run batches inside. Errors: BenchFailed."""

    def run(self, program: str, work: Sequence[int], bound: float) -> list[float]:
        """Seconds from the start of all to the end of each job. Errors: BenchFailed."""


@dataclass
class Times:
    """Of one case: makespans and mean responses in seconds, by system; and the shares of his node that the owner had."""

    makespans: dict[str, list[float]] = field(default_factory=dict)
    responses: dict[str, list[float]] = field(default_factory=dict)
    owned: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, ends: Sequence[float]) -> None:
        self.makespans.setdefault(name, []).append(max(ends))
        self.responses.setdefault(name, []).append(fmean(ends))


class Owner:
    """He returns to his node after so many seconds, and computes there."""

    def __init__(self, node: Node, program: str, after: float) -> None:
        self._node, self._program = node, program
        self._process: subprocess.Popen[str] | None = None
        self._timer = threading.Timer(after, self._return)
        self._timer.start()

    def _return(self) -> None:
        (self._node.root / INPUT.lstrip("/")).touch()
        self._process = self._node.popen([self._program, "for", "100000"], stdout=subprocess.PIPE, text=True)

    def leave(self) -> float:
        """The pieces a second that his program did. Errors: BenchFailed."""
        self._timer.cancel()
        self._timer.join()
        if self._process is None:
            raise BenchFailed("all jobs had ended before the owner returned")
        self._process.terminate()
        output, _ = self._process.communicate(timeout=30)
        done, nanoseconds, _ = map(int, output.split())
        return done / nanoseconds * 1e9


class Bench:
    """One lab, its systems, and the cases that are run on it."""

    def __init__(self, lab: Lab, program: str, stack: ExitStack) -> None:
        self.lab, self.program = lab, program
        self.ours = Mosrun(lab)
        self.others: list[System] = [stack.enter_context(parallel(lab)), stack.enter_context(slurm(lab))]
        self._first = self.speeds = measure_speeds(lab, program, YARDSTICK)
        self.granted: list[float] = []

    def next_round(self) -> None:
        """Measures the speeds anew."""
        self.speeds = measure_speeds(self.lab, self.program, YARDSTICK)
        self.granted.append(min(self.speeds.granted.values()))

    def work(self, sizes: Sequence[float], seconds: float) -> list[int]:
        """Work in these proportions, the same in all rounds; seconds: the least makespan."""
        return self._first.scaled(sizes, seconds)

    def batch(self, system: System, work: Sequence[int], times: Times, owned: bool = False) -> None:
        """One batch; owned: the owner returns in the middle of it. Errors: BenchFailed."""
        forget_ends(self.lab.nodes())
        with system.going(), ExitStack() as stack:
            if owned:
                owner = Owner(self.lab.node(OWNED), self.program, self._first.bound(work) / 2)
                stack.callback(lambda: times.owned.setdefault(system.name, []).append(owner.leave() / self.speeds.of[OWNED]))
            before, stolen = self._used(), psutil.cpu_times().steal
            times.add(system.name, system.run(self.program, work, self._first.bound(work)))
            used, stolen = self._used() - before, psutil.cpu_times().steal - stolen
        makespan = times.makespans[system.name][-1]
        _report(f"{len(work)} jobs{', owner' * owned}, {system.name}: {makespan:.1f} s, {used:.1f} s of processor, {stolen:.1f} s stolen")

    def _used(self) -> float:
        """Seconds of processor that all nodes have used: the same work that takes more of them was done by a slower machine."""
        return sum(processor_seconds(self.lab.name, node.name) for node in self.lab.nodes())

    def ours_and_bound(self, work: Sequence[int], times: Times) -> None:
        """One batch of ours, and what is the least for it."""
        self.batch(self.ours, work, times)
        times.makespans.setdefault("bound", []).append(self.speeds.bound(work))

    def against_others(self, work: Sequence[int], times: Times, number: int, owned: bool = False) -> None:
        """Each system in its turn, another first in each round."""
        systems = [self.ours, *self.others]
        for system in systems[number % 3 :] + systems[: number % 3]:
            self.batch(system, work, times, owned)

    def spread(self, work: Sequence[int], times: Times) -> None:
        """Jobs that are started evenly on all nodes, balanced by us and left alone."""
        nodes = self.lab.nodes()
        starts = {node.name: list(enumerate(work))[number :: len(nodes)] for number, node in enumerate(nodes)}
        forget_ends(nodes)
        with self.ours.going():
            times.add(self.ours.name, run_started(nodes, starts, HERE, self.program, self._first.bound(work)))
        forget_ends(nodes)
        times.add(ALONE, run_started(nodes, starts, (), self.program, self._first.bound(work)))
        _report(f"spread: {', '.join(f'{name} {found[-1]:.1f} s' for name, found in times.makespans.items())}")


def _report(what: str) -> None:
    print(f"bench balance: {what}", file=sys.stderr, flush=True)


def _granted(bench: Bench, which: str) -> Result:
    """Below 1 something else uses the machine, and the figures are not to be relied on."""
    return Result.of(f"{which} nodes have of their quotas", bench.granted, [1.0], unit="share", baseline_name="all, on a machine at rest")


def _against_best(case: str, found: Mapping[str, Sequence[float]], limit: float | None = None) -> list[Result]:
    """Ours against the better of the others, by their medians, and against each."""
    ours, *others = sorted(found, key=lambda name: (name != Mosrun.name, median(found[name])))
    allowed = "" if limit is None else f", the better of them: {limit:g} allowed"
    rows = [Result.of(case, found[ours], found[name], unit="s", baseline_name=name) for name in others]
    best = rows[0]
    return [Result(case, best.ours, "s", best.baseline, f"{best.baseline_name}{allowed}", best.ratio, best.n), *rows[1:]]


def _bounded(case: str, found: Mapping[str, Sequence[float]], limit: float) -> Result:
    return Result.of(case, found[Mosrun.name], found["bound"], unit="s", baseline_name=f"the least makespan: {limit:g} allowed")


def _equal(rounds: int, program: str) -> list[Result]:
    batches, spread = Times(), Times()
    with bench_lab(4, **EQUAL) as lab, ExitStack() as stack:
        bench = Bench(lab, program, stack)
        work = bench.work([1.0] * JOBS, EQUAL_SECONDS)
        for number in range(rounds):
            bench.next_round()
            for batch in range(number * BATCHES, (number + 1) * BATCHES):
                bench.against_others(work, batches, batch)
            batches.makespans.setdefault("bound", []).append(bench.speeds.bound(work))
            bench.spread(bench.work([1.0] * JOBS, SPREAD_SECONDS), spread)
    bound = batches.makespans.pop("bound")
    return [
        _bounded(f"{JOBS} equal jobs, equal nodes", batches.makespans | {"bound": bound}, 1.15),
        *_against_best(f"{JOBS} equal jobs, equal nodes", batches.makespans, 1.05),
        *_against_best("a start that is balanced already", spread.makespans, 1.03),
        _granted(bench, "equal"),
    ]


def _give_policy(node: Node) -> None:
    """Its owner comes first. Errors: BenchFailed."""
    with open(node.root / "etc/farhome/node.toml", "a", encoding="utf-8") as configuration:
        configuration.write(POLICY)
    checked(node, ["mosctl", "reload"])


def _mixed(rounds: int, program: str) -> list[Result]:
    equal, sizes, owned = Times(), Times(), Times()
    with bench_lab(4, **MIXED) as lab, ExitStack() as stack:
        _give_policy(lab.node(OWNED))
        bench = Bench(lab, program, stack)
        for number in range(rounds):
            bench.next_round()
            bench.ours_and_bound(bench.work([1.0] * JOBS, EQUAL_SECONDS), equal)
            for draw in range(number * DRAWS, (number + 1) * DRAWS):
                work = bench.work(pareto(UNEQUAL_JOBS, draw), UNEQUAL_SECONDS)
                bench.against_others(work, sizes, draw)
                bench.against_others(work, owned, draw, owned=True)
    return [
        _bounded(f"{JOBS} equal jobs, speeds 0.5/1/1/2", equal.makespans, 1.2),
        *_against_best(f"{UNEQUAL_JOBS} of Pareto's sizes, speeds 0.5/1/1/2", sizes.makespans, 0.85),
        *_against_best("the same, mean response", sizes.responses),
        *_against_best("the same, the owner returns", owned.makespans, 0.85),
        *_against_best("the owner returns, mean response", owned.responses),
        *(
            Result.of("share of his node that the owner has", owned.owned[Mosrun.name], owned.owned[name], unit="share", baseline_name=name)
            for name in owned.owned
            if name != Mosrun.name
        ),
        _granted(bench, "mixed"),
    ]


def run() -> list[Result]:
    """Measure in two fresh labs, one after the other; two hours. Errors: BenchFailed."""
    chosen = os.environ.get("FARHOME_BENCH_ROUNDS", "")
    rounds = int(chosen) if chosen.isdigit() and int(chosen) > 0 else ROUNDS
    require("schedulers", [*PROGRAMS, "parallel"])
    program = build("sharing/batch")
    return [*_equal(rounds, program), *_mixed(rounds, program)]
