"""How long a build takes on four nodes with equal quotas of processor, of this machine, in one run: by make on one node, by `mosrun make`,
and by distcc with its servers on the other nodes; against the least time that it could take, its work over all quotas.

All files are on the first node. What is built must be the same, byte for byte, by both. While others build, our daemons stand
still.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.common.nodes import bench_lab, rounds
from bench.common.peers import require
from bench.common.result import BenchFailed, Result
from bench.make.distcc import PROGRAMS, servers
from bench.make.project import PROJECTS, contents
from bench.sharing.mosrun_nodes import Mosrun
from lab.cgroups import processor_seconds

if TYPE_CHECKING:
    from lab import Lab

ROUNDS = 1
FILES = 60
"""FARHOME_BENCH_FILES says otherwise, for a try."""
NODES = 4
SHARE = 0.8
"""Of the machine, for all nodes."""
JOBS = 14
"""What make starts at a time, where there are several nodes: those that distcc has places for."""
JOBS_HERE = 4
ALONE, HERE, OURS, DISTCC = "make -j1", "make -j", "mosrun make -j", "distcc"
PLACE = "/tmp/bench-make"
PATIENCE = 60.0
"""Seconds for each file, and as many for all."""


@dataclass
class Samples:
    """Of one project, in seconds, by who has built it: how long it took; and what all nodes, and those without the files, have used of
    processors for it, which says the same however busy the machine is otherwise."""

    took: dict[str, list[float]] = field(default_factory=dict)
    used: dict[str, list[float]] = field(default_factory=dict)
    used_away: dict[str, list[float]] = field(default_factory=dict)

    @property
    def work(self) -> list[float]:
        """What the build itself uses."""
        return self.used[ALONE]


class Builder:
    """Builds a project again and again on n1. Errors, of all it does: BenchFailed."""

    def __init__(self, lab: Lab, make_project: Callable[[Path], None], files: int) -> None:
        self._lab, self._patience = lab, PATIENCE * (files + 1)
        self._place = lab.node("n1").root / PLACE.lstrip("/")
        self._place.mkdir(exist_ok=True)
        self._make_project = make_project
        self._built: Mapping[str, str] = {}

    def build(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> float:
        """Return the seconds that it took."""
        project = self._place / "project"
        self._make_project(project)
        script = f'cd {PLACE}/project && exec "$@" > ../output 2>&1'
        words = [*(f"{name}={value}" for name, value in (environment or {}).items()), *command]
        begun = time.monotonic()
        try:
            done = self._lab.node("n1").run(["sh", "-c", script, "sh", "env", *words], timeout=self._patience)
        except subprocess.TimeoutExpired as error:
            raise BenchFailed(f"{' '.join(command)} took more than {self._patience:.0f} s") from error
        took = time.monotonic() - begun
        if done.returncode:
            said = (self._place / "output").read_text(errors="replace").strip().splitlines()
            raise BenchFailed(f"{' '.join(command)} ended with {done.returncode}: {'; '.join(said[-2:]) or 'no word of why'}")
        self._compare(command, contents(project))
        shutil.rmtree(project)
        return took

    def _compare(self, command: Sequence[str], built: Mapping[str, str]) -> None:
        self._built = self._built or built
        different = sorted({name for name, digest in {*self._built.items()} ^ {*built.items()}})
        if different:
            raise BenchFailed(f"{' '.join(command)} has built another {different[0]} than make -j1 ({len(different)} files differ)")


def build_all(lab: Lab, ours: Mosrun, builder: Builder, samples: Samples, with_distcc: bool = True) -> None:
    """One round of a project: each way once. Errors: BenchFailed."""
    home, *others = lab.nodes()

    def take(name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        before = [processor_seconds(lab.name, node.name) for node in (home, *others)]
        samples.took.setdefault(name, []).append(builder.build(command, environment))
        used = [processor_seconds(lab.name, node.name) - start for node, start in zip((home, *others), before, strict=True)]
        samples.used.setdefault(name, []).append(sum(used))
        samples.used_away.setdefault(name, []).append(sum(used[1:]))

    take(ALONE, ["make", "-j1"])
    take(HERE, ["make", f"-j{JOBS_HERE}"])
    with ours.going():
        take(OURS, ["mosrun", "make", f"-j{JOBS}"])
    if with_distcc:
        with servers(home, others) as environment:
            take(DISTCC, ["make", f"-j{JOBS}", "CC=distcc gcc"], environment)


def results(project: str, samples: Samples, quotas: float) -> Iterator[Result]:
    """Of one project; quotas: processors that all nodes may use."""
    bound = [work / quotas for work in samples.work]
    for name, took in samples.took.items():
        yield Result.of(f"{project}: {name}", took, bound, unit="s", baseline_name="work over all quotas")
    if DISTCC in samples.took:
        yield Result.of(f"{project}: {OURS}, to distcc", samples.took[OURS], samples.took[DISTCC], unit="s", baseline_name="distcc")
    for name in sorted(samples.used.keys() - {ALONE, HERE}, reverse=True):
        yield Result.of(f"{project}: {name}, processors", samples.used[name], samples.work, unit="s", baseline_name="make -j1")
        yield Result.of(
            f"{project}: {name}, processors of others", samples.used_away[name], samples.work, unit="s", baseline_name="make -j1"
        )


@contextmanager
def lab_of_equals() -> Iterator[tuple[Lab, float]]:
    """A fresh lab, and the processors that its nodes may use together."""
    share = min(1.0, round(SHARE * len(os.sched_getaffinity(0)) / NODES, 2))
    with bench_lab(NODES, cpus=share) as lab:
        yield lab, share * NODES


def size() -> int:
    """How many files a project has. Errors: BenchFailed."""
    text = os.environ.get("FARHOME_BENCH_FILES", str(FILES))
    if not text.isdigit() or not 2 <= int(text) <= 1000:
        raise BenchFailed(f"FARHOME_BENCH_FILES is a number from 2 to 1000, and not {text!r}")
    return int(text)


def run() -> list[Result]:
    """Measure. Errors: BenchFailed."""
    files = size()
    require("compilers", PROGRAMS)
    found: list[Result] = []
    with lab_of_equals() as (lab, quotas):
        ours = Mosrun(lab)
        for name, make_project in PROJECTS.items():
            samples = Samples()
            builder = Builder(lab, lambda place, make=make_project: make(place, files), files)  # type: ignore[misc]
            for _ in range(rounds(ROUNDS)):
                build_all(lab, ours, builder, samples)
            found += results(name, samples, quotas)
    return found
