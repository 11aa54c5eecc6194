"""A storm of moves over a running workload, and the verdict: is everything as it is natively?"""

from __future__ import annotations

import os
import random
import re
import shutil
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.moves.cluster import HOME, Cluster, Move
from tests.moves.outcome import Outcome, differences, run
from tests.moves.watchdog import Hang, Watchdog
from tests.moves.workloads import Workload

BUNDLES = Path(os.environ.get("FARHOME_BUNDLES", Path(__file__).resolve().parents[2] / ".build" / "bundles"))

EXCUSED = re.compile("the process ended|it has ended|there already|only just being started")
"""Why a move may not have been done: the process ended meanwhile, or has gone where it was to go by itself."""

SOON = (0.05, 0.3)
"""Seconds before the first move, and after one that was not done: a program may be movable between two things that keep it, and soon be
over."""
TRIES = 4
"""Number of immediate retries with another process when one has just ended: a script's processes are short."""


def new_seed() -> int:
    """FARHOME_SEED if it is set (to see a storm again), else a new one."""
    return int(os.environ.get("FARHOME_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)


class Mover(threading.Thread):
    """Moves random processes of a job to random places, `every` (shortest, longest) seconds, until stop() is called.

    Who, where to and when come from the seed alone, but which processes are there at that moment does not; so a seed
    gives the same kind of storm, not the same instants. A kind of move that has not been done yet is preferred, so that
    a short storm has every kind. A watchdog runs meanwhile.
    """

    def __init__(self, cluster: Cluster, job: str, seed: int, every: tuple[float, float] = (0.3, 2.0)) -> None:
        super().__init__(name=f"mover of {job}", daemon=True)
        self.cluster, self.job, self.every = cluster, job, every
        self.chance = random.Random(seed)
        self.moves: list[Move] = []
        self.failure: Exception | None = None
        self.over = threading.Event()
        self.watchdog = Watchdog(cluster)

    def run(self) -> None:
        began = time.monotonic()
        self.watchdog.start()
        try:
            while not self.over.wait(self.chance.uniform(*(self.every if self.moves and self.moves[-1].done else SOON))):
                for _ in range(TRIES):
                    move = self.step(time.monotonic() - began)
                    if move is None or move.done or not EXCUSED.search(move.said):
                        break
        except Exception as failure:  # stop() raises it in the test
            self.failure = failure

    def step(self, at: float) -> Move | None:
        """Makes one move; returns None if there is nothing to move."""
        processes = sorted(self.cluster.processes(self.job), key=lambda process: int(process["pid"]))
        if not processes:
            return None
        # The others may be short; the first of a job is there as long as it is.
        process = self.chance.choice(processes) if any(move.done for move in self.moves) else processes[0]
        source = self.cluster.where(process)
        move = self.cluster.migrate(process["pid"], source, self.target(source), at=at)
        if not move.done and self.cluster.process(process["pid"], self.job) is None:
            move = replace(move, said=f"{move.said} (the process ended)")
        self.moves.append(move)
        return move

    def done(self) -> list[Move]:
        """The moves that have been made."""
        return [move for move in self.moves if move.done]

    def target(self, source: str) -> str:
        away = [name for name in self.cluster.names if name not in (HOME, source)]
        if source == HOME:
            return self.chance.choice(away)
        wanted = [kind for kind in ("hop", "home") if not any(move.kind == kind and move.done for move in self.moves)]
        kind = wanted[0] if wanted else self.chance.choice(["hop", "home"])
        return HOME if kind == "home" else self.chance.choice(away)

    def stop(self) -> list[Move]:
        """Ends the storm and returns what was tried. The last `migrate` is waited for. Errors: Hang, if anything hung."""
        self.over.set()
        self.join(90)
        self.watchdog.stop()
        if self.is_alive():
            raise TimeoutError(f"a migrate of job {self.job} did not come back within 90 s")
        if self.failure:
            raise self.failure
        return self.moves


TOO_LATE = "not one move was done"


@dataclass(frozen=True)
class Verdict:
    """Results of a storm. `wrong` has a line for every difference and for every move that should have been done."""

    workload: Workload
    user: str
    seed: int
    native: Outcome = field(repr=False)
    moved: Outcome = field(repr=False)
    moves: list[Move] = field(repr=False)
    wrong: list[str]

    def __str__(self) -> str:
        done = [move for move in self.moves if move.done]
        kinds = ", ".join(f"{sum(move.kind == kind for move in done)} {kind}" for kind in ("out", "hop", "home"))
        head = (
            f"{self.workload.name} as {self.user or 'root'}, seed {self.seed}: {self.native.seconds:.1f} s natively,"
            f" {self.moved.seconds:.1f} s moved; {kinds}, {len(self.moves) - len(done)} not done"
        )
        return "\n".join([head, *map(str, self.moves), *self.wrong])


_native: dict[tuple[Cluster, str, str, float], Outcome] = {}


def native_outcome(cluster: Cluster, workload: Workload, user: str, scale: float) -> Outcome:
    """Runs the workload on the home node without mosrun, once: the same node, the same path, the same user."""
    key = cluster, workload.name, user, scale
    if key not in _native:
        outcome = run(cluster.home, workload, scale=scale, user=user, timeout=600)
        if outcome.timed_out:
            raise TimeoutError(f"{workload.name} did not end natively")
        _native[key] = outcome
    return _native[key]


def storm(
    cluster: Cluster,
    workload: Workload,
    *,
    user: str = "",
    scale: float = 1,
    seed: int = 0,
    every: tuple[float, float] = (0.3, 1.2),
    slack: float = 12,
) -> Verdict:
    """Runs the workload natively and then under moves; the second may take `slack` times as long and a minute more. Did it end as it
    should before the first move was made, then all again with twice as much of it."""
    verdict = _storm(cluster, workload, user, scale, seed, every, slack)
    if verdict.wrong == [TOO_LATE]:
        verdict = _storm(cluster, workload, user, 2 * scale, seed, every, slack)
    if verdict.wrong:
        keep(cluster, verdict)
    return verdict


def _storm(
    cluster: Cluster, workload: Workload, user: str, scale: float, seed: int, every: tuple[float, float], slack: float
) -> Verdict:  # fmt: skip
    seed = seed or new_seed()
    native = native_outcome(cluster, workload, user, scale)
    job = f"{workload.name.replace(' ', '-')}-{seed}"
    mover = Mover(cluster, job, seed, every)
    hung: list[str] = []
    mover.start()
    try:
        moved = run(
            cluster.home,
            workload,
            scale=scale,
            user=user,
            launcher=f"mosrun -L -J {job} --",
            timeout=native.seconds * slack + 60,
            on_timeout=lambda: cluster.logs(bundle_of(workload, seed) / "while hanging"),
        )
    finally:
        try:
            moves = mover.stop()
        except Hang as hang:
            moves, hung = mover.moves, [str(hang)]
    wrong = differences(native, moved) + hung
    if not any(move.done for move in moves):
        wrong.append(TOO_LATE)
    wrong += [
        f"a move was not done: {move}"
        for move in moves
        if not move.done and not EXCUSED.search(move.said) and not re.search(workload.refusals, move.said)
    ]
    return Verdict(workload, user, seed, native, moved, moves, wrong)


def bundle_of(workload: Workload, seed: int) -> Path:
    return BUNDLES / f"{workload.name.replace(' ', '-')}-{seed}"


def keep(cluster: Cluster, verdict: Verdict) -> None:
    """Keeps all that is needed to find out what went wrong; FARHOME_BUNDLES says where."""
    directory = bundle_of(verdict.workload, verdict.seed)
    for name in ("native", "moved"):
        shutil.rmtree(directory / name, ignore_errors=True)
    verdict.native.save(directory / "native")
    verdict.moved.save(directory / "moved")
    cluster.logs(directory)
    (directory / "verdict").write_text(f"{verdict}\n")
    verdict.wrong.append(f"kept in {directory}")
