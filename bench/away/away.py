"""What a process pays for being away: births, small calls, and programs that people run; without and with a distance, in time and in trips.

runner.c does all of it, at home and then on another node, in a lab that is fresh for each round: what is done there first the node has
never seen, and what is done again it has.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from bench.away.programs import FILES, PROGRAMS, REPOSITORY, Program, prepare
from bench.common import peers
from bench.common.nodes import bench_lab, build, checked, migrate, rounds
from bench.common.result import BenchFailed, Result

if TYPE_CHECKING:
    from lab import Lab

ROUNDS = 3
DELAY = 0.0002
"""Seconds, each way: as between machines of one room."""
BIRTHS = 20
LINES = 300
PLACE = "/tmp/bench-away"
JOB = "bench-away"
PATIENCE = 300.0
"""Seconds for one command."""
SETTLED, MOST_WAITS = 0.05, 100
"""Seconds in which no trip is made when a case is over, and how often that is waited for."""
TIMES = ("first", "again")


@dataclass(frozen=True)
class Case:
    """A command of the runner. calls: that each of its parts makes at home; 0: strace counts them."""

    name: str
    command: str
    count: int
    calls: int = 0

    @property
    def unit(self) -> str:
        """Of its times."""
        return "us" if self.calls else "ms"


SMALL = (
    Case("thread", f"thread {BIRTHS}", BIRTHS, 1),
    Case("fork", f"fork {BIRTHS}", BIRTHS, 1),
    Case("vfork", f"vfork {BIRTHS}", BIRTHS, 1),
    Case("posix_spawn", f"spawn {BIRTHS}", BIRTHS, 1),
    Case("open, fstat, read, close", f"read {FILES} read", FILES, 4),
    Case("stat of a name", f"stat {FILES} stat", FILES, 1),
    Case("stat of no name", f"stat {FILES} absent", FILES, 1),
    Case("write of 100 bytes", f"log {LINES} log", LINES, 1),
)
LARGE = {program.name: Case(program.name, "run 1 " + "\t".join(program.words), 1) for program in PROGRAMS}


class Runner:
    """runner.c under mosrun on n1. Errors, of all it does: BenchFailed."""

    def __init__(self, lab: Lab, process: subprocess.Popen[str]) -> None:
        self._lab = lab
        self._process = process
        self.is_away = False
        self.pid = 0
        self.overhead = 0
        """Trips of a command that does nothing."""

    def go_away(self) -> None:
        """To n2."""
        migrate(self._lab, JOB, "n2")
        self.is_away = True
        self.overhead = self.do(Case("nothing", "nothing 1", 1, 1)).trips

    def do(self, case: Case) -> Sample:
        """Have it done."""
        before = self._trips()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(case.command + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            raise BenchFailed(f"{case.name} took more than {PATIENCE:.0f} s")
        took = [int(word) for word in self._process.stdout.readline().split()]
        if len(took) != case.count:
            raise BenchFailed(f"{case.name} did not end as it should")
        scale = 1e3 if case.unit == "us" else 1e6
        return Sample(median(took) / scale, max(0, self._trips() - before - self.overhead))

    def _trips(self) -> int:
        """All so far, when there are no more: what a case leaves to be done later (effects, the ends of children) is its own."""
        if not self.is_away:
            return 0
        before, trips = -1, self._trips_now()
        for _ in range(MOST_WAITS):
            if trips == before:
                break
            time.sleep(SETTLED)
            before, trips = trips, self._trips_now()
        return trips

    def _trips_now(self) -> int:
        return int(self._lab.node("n1").ask_mosd("why", pid=self.pid)["trips"])


@dataclass(frozen=True)
class Sample:
    """The median of what the parts of a command took, in its case's unit, and the trips of all of them."""

    took: float
    trips: int


@dataclass
class Samples:
    """Of all rounds, by the case, and whether it was done first or again."""

    home: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    away: dict[tuple[str, str], list[Sample]] = field(default_factory=lambda: defaultdict(list))

    def results(self, case: Case, ending: str) -> Iterator[Result]:
        """The times of a case against those at home."""
        for time_ in TIMES:
            away = [sample.took for sample in self.away[case.name, time_]]
            yield Result.of(f"{case.name}, {time_}{ending}", away, self.home[case.name, time_], unit=case.unit, baseline_name="at home")

    def trips(self, case: Case, calls: int) -> Iterator[Result]:
        """The trips of each part of a case against its calls at home."""
        for time_ in TIMES:
            trips = [sample.trips / case.count for sample in self.away[case.name, time_]]
            yield Result.of(f"{case.name}, {time_}, trips", trips, [calls], unit="trips", baseline_name="calls at home")


@contextmanager
def lab_with_runner(delay: float) -> Iterator[tuple[Lab, Runner]]:
    """A fresh lab of two equal nodes, the files, and the runner at home."""
    with bench_lab(2, delay=delay) as lab:
        n1 = lab.node("n1")
        prepare(n1.root / PLACE.removeprefix("/"))
        checked(n1, ["sh", "-c", f"cd {PLACE} && {REPOSITORY.strip()}"])
        command = ["mosrun", "-L", "-J", JOB, build("away/runner")]
        with n1.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PLACE) as process:
            runner = Runner(lab, process)
            try:
                runner.pid = process.node_pid
                yield lab, runner
            finally:
                process.kill()


def measure(runner: Runner, cases: Collection[Case], samples: Samples) -> None:
    """One round: each case at home, where everything is in memory, and then away."""
    for case in cases:
        runner.do(case)
        for time_ in TIMES:
            samples.home[case.name, time_].append(runner.do(case).took)
    runner.go_away()
    for case in cases:
        for time_ in TIMES:
            samples.away[case.name, time_].append(runner.do(case))


def calls_at_home(lab: Lab, program: Program) -> int:
    """All calls that a program makes, its children too. Errors: BenchFailed."""
    words = ["strace", "-f", "-c", "-o", "calls", *program.words]
    checked(lab.node("n1"), ["sh", "-c", f'cd {PLACE} && exec "$@" > output', "sh", *words])
    lines = (lab.node("n1").root / PLACE.removeprefix("/") / "calls").read_text().splitlines()
    total = next((line.split() for line in lines if line.endswith(" total")), None)
    if total is None:
        raise BenchFailed(f"strace has not counted the calls of {program.name}")
    return int(total[3])


def chosen() -> list[Case]:
    """Those that FARHOME_BENCH_CASES names, else all. Errors: BenchFailed."""
    known = {case.name: case for case in (*SMALL, *LARGE.values())}
    names = [name for name in os.environ.get("FARHOME_BENCH_CASES", "").split(";") if name] or list(known)
    for name in names:
        if name not in known:
            raise BenchFailed(f"FARHOME_BENCH_CASES names {name!r}; there are {'; '.join(known)}")
    return [known[name] for name in names]


def run() -> list[Result]:
    """Measure. Errors: BenchFailed."""
    peers.require("calls", ["strace"])
    cases, near, far = chosen(), Samples(), Samples()
    calls: dict[str, int] = {case.name: case.calls for case in cases}
    for number in range(rounds(ROUNDS)):
        for delay, samples in ((0.0, near), (DELAY, far)):
            with lab_with_runner(delay) as (lab, runner):
                measure(runner, cases, samples)
                if not number and not delay:
                    calls |= {program.name: calls_at_home(lab, program) for program in PROGRAMS if program.name in calls}
    return [*_trips(cases, near, calls), *_times(cases, near, ""), *_times(cases, far, f", {DELAY * 1e3:g} ms far")]


def _trips(cases: Collection[Case], samples: Samples, calls: Mapping[str, int]) -> list[Result]:
    return [result for case in cases for result in samples.trips(case, calls[case.name])]


def _times(cases: Collection[Case], samples: Samples, ending: str) -> list[Result]:
    return [result for case in cases for result in samples.results(case, ending)]
