"""A cluster under virtual time that runs the very code of the nodes: estimator, gossip and decisions.

Processes share the cores of the node they are on; a move costs what `MoveCost` says and freezes the process meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from balancer.cost import MoveCost
from balancer.decide import HOME, Process, Settings, decide, next_interval, recheck
from balancer.gossip import PERIOD, Gossip
from balancer.load import SAMPLES_PER_SECOND, LoadEstimator

TICK = 1.0 / SAMPLES_PER_SECOND
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Machine:
    """A node of a simulation; speed 1.0 is the yardstick, memory in bytes."""

    cores: float = 1.0
    speed: float = 1.0
    memory: int = 16 * GIB
    lending: bool = True


@dataclass(slots=True)
class Job:
    """A process of a simulation: `work` in seconds of yardstick cpu, `home` and `where` indexes of machines."""

    home: int
    work: float
    memory: int = 50 << 20
    born: float = 0.0
    where: int = -1
    done: float = 0.0
    ended: float | None = None
    arrived: float = 0.0
    moved: list[float] = field(default_factory=list)
    moving_to: int | None = None
    moving_until: float = 0.0
    not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a simulation; times in seconds of virtual time.

    `bound` is the least makespan that any schedule could have: all work on all speed, or the longest job on the
    fastest core.
    """

    makespan: float
    bound: float
    responses: tuple[float, ...]
    moves: tuple[int, ...]
    moved_again: int
    refused: int
    average_age: float

    @property
    def over_bound(self) -> float:
        return self.makespan / self.bound


class Simulation:
    """One run, given by its machines, jobs and seed; `loss` is the share of gossip messages that never arrive."""

    def __init__(
        self,
        machines: Sequence[Machine],
        jobs: Sequence[Job],
        seed: int,
        settings: Settings | None = None,
        loss: float = 0.0,
    ) -> None:
        self.now = 0.0
        self.machines = list(machines)
        self.jobs = list(jobs)
        self.settings = settings or Settings(cost=MoveCost())
        self.loss = loss
        self.rng = random.Random(seed)
        self.refused = 0
        self._ages: list[float] = []
        self._ticks = 0
        self.names = [f"n{index + 1}" for index in range(len(self.machines))]
        self._index = {name: index for index, name in enumerate(self.names)}
        self.estimators = [LoadEstimator(m.cores, m.speed, self._clock) for m in self.machines]
        self.gossips = [Gossip(name, self._clock, random.Random(self.rng.random())) for name in self.names]
        for gossip in self.gossips:
            gossip.learn(self.names[0], "10.0.0.1", 7226)
        self._next_gossip = [self.rng.uniform(0, PERIOD) for _ in self.machines]
        self._next_decision = [self.rng.uniform(0, PERIOD) for _ in self.machines]

    def _clock(self) -> float:
        return self.now

    def run(self, limit: float = 3600.0) -> Outcome:
        """Run until every job has ended. Errors: TimeoutError after `limit` seconds of virtual time."""
        while any(job.ended is None for job in self.jobs):
            if self.now > limit:
                raise TimeoutError(f"the simulation is not over after {limit:.0f} s")
            self.step()
        return self._outcome()

    def step(self) -> None:
        """Let one tick of virtual time pass."""
        self._ticks += 1
        self.now = self._ticks * TICK
        self._arrive()
        self._work()
        for index in range(len(self.machines)):
            self._sample(index)
        for index in range(len(self.machines)):
            if self.now >= self._next_gossip[index]:
                self._next_gossip[index] += PERIOD * self.rng.uniform(0.9, 1.1)
                self._talk(index)
            if self.now >= self._next_decision[index]:
                self._next_decision[index] += next_interval(PERIOD, self.rng)
                self._decide(index)

    def running(self, index: int) -> list[Job]:
        """Return the jobs that use the cpu of this machine now."""
        return [
            j for j in self.jobs if j.where == index and j.ended is None and j.born <= self.now and j.moving_to is None
        ]

    def _arrive(self) -> None:
        for job in self.jobs:
            if job.where < 0 and job.born <= self.now:
                job.where, job.arrived = job.home, self.now
            if job.moving_to is not None and self.now >= job.moving_until:
                self.estimators[job.where].relieve()
                job.where, job.moving_to, job.arrived = job.moving_to, None, self.now
                job.moved.append(self.now)

    def _work(self) -> None:
        for index, machine in enumerate(self.machines):
            active = self.running(index)
            for job in active:
                job.done += TICK * machine.speed * min(1.0, machine.cores / len(active))
                if job.done >= job.work:
                    job.ended = self.now

    def _sample(self, index: int) -> None:
        memory = self.machines[index].memory
        present = [job for job in self.jobs if job.where == index and job.ended is None]
        self.estimators[index].sample(len(self.running(index)), memory - sum(job.memory for job in present), memory)
        guests = sum(1 for job in present if job.home != index)
        vector = self.estimators[index].vector(
            name=self.names[index],
            incarnation=1,
            address=f"10.0.{index >> 8}.{index & 255}",
            port=7226,
            guests=guests,
            lending=self.machines[index].lending,
            blocked=False,
        )
        self.gossips[index].update_self(vector)

    def _talk(self, index: int) -> None:
        for peer, payload in self.gossips[index].outgoing():
            if self.rng.random() >= self.loss:
                self.gossips[self._index[peer]].receive(payload)
        self._ages.extend(entry.age for entry in self.gossips[index].view().others())

    def _decide(self, index: int) -> None:
        mine = [job for job in self.jobs if job.home == index and job.ended is None and job.where >= 0]
        processes = [
            Process(
                pid=number,
                cpu_seconds=job.done,
                memory=job.memory,
                where=HOME if job.where == index else self.names[job.where],
                arrived=job.arrived,
                moved=tuple(job.moved),
                moving=job.moving_to is not None,
                not_before=job.not_before,
            )
            for number, job in enumerate(mine)
        ]
        for decision in decide(self.gossips[index].view(), processes, self.now, self.rng, self.settings):
            if decision.target is not None:
                self._move(mine[decision.pid], index if decision.target == HOME else self._index[decision.target])

    def _move(self, job: Job, target: int) -> None:
        fresh = self.gossips[target].view().own
        here = self.gossips[job.where].view().own
        if fresh is None or here is None or (target != job.home and recheck(fresh, here.slowdown_with(0.0), 1.0)):
            self.refused += 1
            job.not_before = self.now + PERIOD
            return
        cost = self.settings.cost.of(job.memory)
        job.moving_to, job.moving_until = target, self.now + cost
        self.estimators[target].inflate(hold=cost)

    def _outcome(self) -> Outcome:
        speed = sum(m.cores * m.speed for m in self.machines)
        fastest = max(m.speed * min(1.0, m.cores) for m in self.machines)
        ended = [(job, job.ended) for job in self.jobs if job.ended is not None]
        return Outcome(
            makespan=max(end for _, end in ended) - min(job.born for job in self.jobs),
            bound=max(sum(job.work for job in self.jobs) / speed, max(job.work for job in self.jobs) / fastest),
            responses=tuple(end - job.born for job, end in ended),
            moves=tuple(len(job.moved) for job in self.jobs),
            moved_again=sum(
                sum(1 for a, b in zip(job.moved, job.moved[1:], strict=False) if b - a < 10) for job in self.jobs
            ),
            refused=self.refused,
            average_age=sum(self._ages) / len(self._ages) if self._ages else 0.0,
        )
