"""A cluster under virtual time that runs the very code of the nodes: estimator, gossip, membership, placement, decisions and
admission.

What node/ does around it is done here in the same order: what is counted at which end of a move, what home knows of a process
that is away (its use of processors, once a second), what a refusal reports. Processes share the cores of the node they are on. A
move takes the time that its memory takes, in which the process goes on; it stands still for a part of that only (`Transfer`),
as live moves are measured to do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from balancer.decisions.admission import recheck, retry_after
from balancer.decisions.decide import PERIOD, decide, next_interval
from balancer.decisions.placement import placings
from balancer.decisions.process import HOME, Decision, Process, Settings
from balancer.gossip.gossip import Gossip
from balancer.lending.owner import AT_ONCE, Stage
from balancer.load.load import SAMPLES_PER_SECOND, LoadEstimator, LoadVector
from balancer.load.view import View
from balancer.virtual import VirtualNetwork

TICK = 1.0 / SAMPLES_PER_SECOND
GIB = 1 << 30
BEGUN = 8 << 20
"""Bytes of memory of a program that has just begun."""
USAGE_TICKS = 2 * SAMPLES_PER_SECOND
"""Between two times that home asks what its processes that are away have used."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A node of a simulation; speed 1.0 is the yardstick, memory in bytes, `owner` the spans (from, to) in which its owner
    uses it: then it takes no guests, sends home those it has, and `owner_threads` of his own run."""

    cores: float = 1.0
    speed: float = 1.0
    memory: int = 16 * GIB
    lending: bool = True
    owner: tuple[tuple[float, float], ...] = ()
    owner_threads: float = 1.0

    def owned_at(self, now: float) -> bool:
        """Return whether the owner uses it then."""
        return any(start <= now < end for start, end in self.owner)


@dataclass(frozen=True, slots=True)
class Transfer:
    """What moves really take: seconds in all, and seconds in which the process stands still; a little by chance."""

    fixed: float = 0.2
    per_byte: float = 1 / 110e6
    still: float = 0.025
    still_per_byte: float = 0.01 / GIB
    spread: float = 0.2

    def of(self, memory: int, rng: random.Random) -> tuple[float, float]:
        """Return (seconds in all, seconds of standing still) of one move."""
        by_chance = rng.uniform(1 - self.spread, 1 + self.spread)
        return by_chance * (self.fixed + self.per_byte * memory), by_chance * (self.still + self.still_per_byte * memory)


STOPPED = Transfer(0.4, 1 / 110e6, 0.4, 1 / 110e6)
"""Moves of a process that stands still all the time, as checkpoint and restart do it."""


@dataclass(slots=True)
class Job:
    """A process of a simulation: `work` in seconds of yardstick cpu, `home` and `where` indexes of machines, `cpu` the seconds of
    processor time that it has used, and `reported` those that home knows of.

    `placed`: its user wants the best node at its start, when it has little memory yet.
    """

    home: int
    work: float
    memory: int = 50 << 20
    born: float = 0.0
    placed: bool = False
    where: int = -1
    done: float = 0.0
    cpu: float = 0.0
    reported: float = 0.0
    ended: float | None = None
    arrived: float = 0.0
    moved: list[float] = field(default_factory=list)
    moving_to: int | None = None
    moving_from: float = 0.0
    still_from: float = 0.0
    moving_until: float = 0.0
    not_before: float = 0.0
    coming: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a simulation; times in seconds of virtual time.

    `bound` is the least makespan that any schedule could have: all work on all speed, or the longest job on the
    fastest core. `vacated`: how long each return of an owner took until the last guest had gone.
    """

    makespan: float
    bound: float
    responses: tuple[float, ...]
    moves: tuple[int, ...]
    moved_again: int
    refused: int
    average_age: float
    vacated: tuple[float, ...] = ()

    @property
    def over_bound(self) -> float:
        return self.makespan / self.bound


class Simulation:
    """One run, given by its machines, jobs and seed; `loss` is the share of gossip datagrams that never arrive."""

    def __init__(
        self, machines: Sequence[Machine], jobs: Sequence[Job], seed: int, settings: Settings | None = None, loss: float = 0.0,
        transfer: Transfer | None = None,
    ) -> None:  # fmt: skip
        self.machines = list(machines)
        self.jobs = sorted(jobs, key=lambda job: job.born)
        self.rng = random.Random(seed)
        self.refused = 0
        self._transfer = transfer or Transfer()
        self._settings = [settings or Settings() for _ in self.machines]
        self._ages: list[float] = []
        self._ticks = 0
        self._unborn = 0
        self.names = [f"n{index + 1}" for index in range(len(self.machines))]
        self._index = {name: index for index, name in enumerate(self.names)}
        self.network = VirtualNetwork(self.rng.randrange(1 << 30), self._report, loss)
        self.estimators = [LoadEstimator(m.cores, m.speed, self.network.clock) for m in self.machines]
        self.gossips = [self.network.add(name) for name in self.names]
        for gossip in self.gossips:
            gossip.learn(self.names[0], "10.0.0.1", 7226)
        self.present: list[list[Job]] = [[] for _ in self.machines]
        self._homes: list[list[Job]] = [[] for _ in self.machines]
        self._moving: list[Job] = []
        self._next_decision = [self.rng.uniform(0, PERIOD) for _ in self.machines]
        self._owned: list[float | None] = [None for _ in self.machines]
        self._vacated: list[float] = []

    @property
    def now(self) -> float:
        return self.network.now

    def run(self, limit: float = 7200.0) -> Outcome:
        """Run until every job has ended. Errors: TimeoutError after `limit` seconds of virtual time."""
        while self._unborn < len(self.jobs) or any(self._homes):
            if self.now > limit:
                raise TimeoutError(f"the simulation is not over after {limit:.0f} s")
            self.step()
        return self._outcome()

    def step(self) -> None:
        """Let one tick of virtual time pass."""
        self._ticks += 1
        self.network.run(self._ticks * TICK)
        self._arrive()
        self._work()
        for index, machine in enumerate(self.machines):
            self._sample(index)
            self._owner(index, machine)
            if self.now >= self._next_decision[index]:
                self._next_decision[index] += next_interval(PERIOD, self.rng)
                self._decide(index)
        if self._ticks % SAMPLES_PER_SECOND == 0:
            self._ages.extend(self.network.ages())

    def running(self, index: int) -> list[Job]:
        """Return the jobs that use the cpu of this machine now."""
        return [job for job in self.present[index] if job.moving_to is None or self.now < job.still_from]

    def _arrive(self) -> None:
        while self._unborn < len(self.jobs) and self.jobs[self._unborn].born <= self.now:
            job = self.jobs[self._unborn]
            self._unborn += 1
            job.where, job.arrived = job.home, self.now
            self.present[job.home].append(job)
            self._homes[job.home].append(job)
            self.estimators[job.home].inflate(id(job), hold=0.0)
            if job.placed:
                self._place(job)
        for job in [job for job in self._moving if self.now >= job.moving_until]:
            self._end_move(job)

    def _end_move(self, job: Job) -> None:
        assert job.moving_to is not None
        self._moving.remove(job)
        self.estimators[job.where].relieve(id(job))
        self.present[job.where].remove(job)
        job.where, job.moving_to, job.arrived, job.not_before, job.reported = job.moving_to, None, self.now, 0.0, job.cpu
        self.present[job.where].append(job)
        job.moved.append(self.now)
        home = job.home
        if job.where == home:
            self.estimators[home].inflate(id(job), hold=0.0)
        cost = self._settings[home].cost.learn(job.moving_until - job.still_from, job.moving_until - job.moving_from, job.coming)
        self._settings[home] = replace(self._settings[home], cost=cost)

    def _work(self) -> None:
        for index, machine in enumerate(self.machines):
            active = self.running(index)
            owner = machine.owner_threads if machine.owned_at(self.now) else 0.0
            for job in active:
                # Guests get what the owner leaves, of each core a little at least.
                share = min(1.0, max(machine.cores - owner, 0.02 * machine.cores) / len(active))
                job.done += TICK * machine.speed * share
                job.cpu += TICK * share
                if job.where == job.home or self._ticks % USAGE_TICKS == 0:
                    job.reported = job.cpu
                if job.done >= job.work:
                    self._end(job)

    def _end(self, job: Job) -> None:
        job.ended = self.now
        self.present[job.where].remove(job)
        self._homes[job.home].remove(job)
        if job.moving_to is not None:
            self._moving.remove(job)
            if job.moving_to != job.home:
                self.estimators[job.moving_to].relieve(id(job))
        if job.where != job.home:
            self.estimators[job.where].relieve(id(job))  # mosd learns at once of the end of a guest
        else:
            self.estimators[job.home].end(id(job))

    def _sample(self, index: int) -> None:
        machine, present = self.machines[index], self.present[index]
        running = self.running(index)
        guests = sum(job.home != index for job in running)
        owner = machine.owner_threads if machine.owned_at(self.now) else 0.0
        free = machine.memory - sum(job.memory for job in present)
        self.estimators[index].sample(len(running) + owner, free, machine.memory, guests=guests)

    def _report(self, gossip: Gossip) -> None:
        gossip.update_self(self._vector(self._index[gossip.name]))

    def _vector(self, index: int) -> LoadVector:
        machine = self.machines[index]
        owned = machine.owned_at(self.now)
        return self.estimators[index].vector(
            name=self.names[index], incarnation=1, address=f"10.0.{index >> 8}.{index & 255}", port=7226,
            guests=sum(job.home != index for job in self.present[index]), lending=machine.lending and not owned, blocked=False,
            stage=Stage.OWNER if owned else Stage.LENDING,
        )  # fmt: skip

    def _owner(self, index: int, machine: Machine) -> None:
        """Send guests home, a few at a time, when the owner is back."""
        if not machine.owner:
            return
        guests = [job for job in self.present[index] if job.home != index]
        if not machine.owned_at(self.now):
            self._owned[index] = None
            return
        if self._owned[index] is None:
            self._owned[index] = self.now
            self._report(self.gossips[index])
        elif self._owned[index] != math.inf and not guests:
            self._vacated.append(self.now - (self._owned[index] or 0.0))
            self._owned[index] = math.inf
        going = sum(job.moving_to is not None for job in guests)
        for job in [job for job in guests if job.moving_to is None][: max(0, AT_ONCE - going)]:
            self._start_move(job, job.home, job.memory)

    def _process(self, number: int, job: Job, index: int) -> Process:
        return Process(
            pid=number, cpu_seconds=job.reported, memory=job.memory,
            where=HOME if job.where == index else self.names[job.where], arrived=job.arrived, moved=tuple(job.moved),
            moving=job.moving_to is not None, not_before=job.not_before,
        )  # fmt: skip

    def _place(self, job: Job) -> None:
        process = replace(self._process(0, job, job.home), memory=min(BEGUN, job.memory))
        for decision in placings(lambda: self._view_ahead(job.home), process, self.rng, self._settings[job.home]):
            if decision.target is None or self._act(job, decision, process.memory):
                break

    def _view_ahead(self, index: int) -> View:
        """What a node knows, less its processes that are on their way out: not all are to leave what the first of them leave idle."""
        return self._view(index).with_own(-float(sum(job.where == job.home == index for job in self._moving)))

    def _view(self, index: int) -> View:
        self._report(self.gossips[index])
        return self.gossips[index].known.view()

    def _decide(self, index: int) -> None:
        mine = self._homes[index]
        if not mine:
            return
        processes = [self._process(number, job, index) for number, job in enumerate(mine)]
        for decision in decide(self._view(index), processes, self.now, self.rng, self._settings[index]):
            if decision.target is not None:
                self._act(mine[decision.pid], decision, mine[decision.pid].memory)

    def _act(self, job: Job, decision: Decision, memory: int) -> bool:
        """Make the move that was decided if its target takes the guest; returns whether it does."""
        if decision.target == HOME:
            self._start_move(job, job.home, memory)
            return True
        name, settings = decision.target or "", self._settings[job.home]
        self.gossips[job.home].known.sent(name, 1.0)
        target = self._index[name]
        fresh, coming = self._vector(target), sum(other.coming for other in self._moving if other.moving_to == target)
        refusal = None
        if decision.slowdown is not None:
            refusal = recheck(fresh, decision.slowdown, 1.0, memory, coming, self._settings[target])
        if refusal or not fresh.accepts_guests:
            self.refused += 1
            self.gossips[job.home].known.not_taken(name, 1.0)
            job.not_before = self.now + retry_after(fresh.accepts_guests, self.rng, settings)
            self._report(self.gossips[target])
            self.network.send(name, self.gossips[target].greet(self.names[job.home]))
            return False
        self.estimators[target].inflate(id(job), hold=self._settings[target].cost.takes(memory))
        self._start_move(job, target, memory)
        return True

    def _start_move(self, job: Job, target: int, memory: int) -> None:
        taken, still = self._transfer.of(memory, self.rng)
        job.moving_to, job.moving_from, job.coming = target, self.now, memory
        job.moving_until, job.still_from = self.now + taken, self.now + taken - still
        self._moving.append(job)

    def _outcome(self) -> Outcome:
        speed = sum(m.cores * m.speed for m in self.machines)
        fastest = max(m.speed * min(1.0, m.cores) for m in self.machines)
        ended = [(job, job.ended) for job in self.jobs if job.ended is not None]
        return Outcome(
            makespan=max(end for _, end in ended) - min(job.born for job in self.jobs),
            bound=max(sum(job.work for job in self.jobs) / speed, max(job.work for job in self.jobs) / fastest),
            responses=tuple(end - job.born for job, end in ended),
            moves=tuple(len(job.moved) for job in self.jobs),
            moved_again=sum(sum(1 for a, b in zip(job.moved, job.moved[1:], strict=False) if b - a < 10) for job in self.jobs),
            refused=self.refused,
            average_age=sum(self._ages) / len(self._ages) if self._ages else 0.0,
            vacated=tuple(self._vacated),
        )
