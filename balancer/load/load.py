"""The load vector of a node, and the estimator that makes it from samples.

One unit of load is one runnable thread for each core of the yardstick's speed: ``load = runnable / (cores * speed)``.
The average of the kernel is not used: its time constant of 60 s is too slow, and it counts threads that wait for a
disk.
"""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

from balancer.lending.owner import Stage
from balancer.load.forecast import Forecaster

Clock = Callable[[], float]

SAMPLES_PER_SECOND = 10
RISE_SECONDS = 2.0
FALL_SECONDS = 5.0

#: What a node of speed 1.0 does of `yardstick_round` in one second of cpu time.
YARDSTICK_ROUNDS_PER_SECOND = 2000.0
CALIBRATION_SECONDS = 0.2

NAME_LIMIT = 64
"""Bytes of a name."""
MEMORY_SHORT = 0.05
PRESSURE_SHORT = 0.10
"""Memory is short below this share of it free, or when something waits for it for more than this share of the time."""
RECENT_SAMPLES = 5
"""The newest ones, by which it is judged whether less wants to run."""
CONTENDED = 0.02
"""Where something waits for a processor for less than this share of the time, threads do not slow one another down."""
_YARDSTICK_TEXT = b"".join(b"%d %x %o;" % (i * 7919, i * 104729, i) for i in range(2600))[:65536]


def yardstick_round() -> int:
    """Do one round of the fixed work that speeds are measured with; returns a checksum of it.

    Compression mixes integer work, branches and memory as ordinary programs do and runs in C, so that the version of
    the interpreter does not count.
    """
    return zlib.crc32(zlib.compress(_YARDSTICK_TEXT, 1))


def speed_of(rounds: int, cpu_seconds: float) -> float:
    """Return the speed (1.0 is the yardstick) of a node that did so many rounds in so many seconds of cpu time.

    Cpu time and not wall time: a node that is busy, or whose cgroup has a quota, is not slower for it; a quota counts
    in the number of cores.
    """
    if rounds <= 0 or cpu_seconds <= 0:
        raise ValueError("a speed needs at least one round and some cpu time")
    return rounds / cpu_seconds / YARDSTICK_ROUNDS_PER_SECOND


def effective_cores(cpus: int, quota_us: int, period_us: int) -> float:
    """Return how many cores a cgroup may really use; a quota of zero or less is none."""
    if quota_us <= 0 or period_us <= 0:
        return float(cpus)
    return min(float(cpus), quota_us / period_us)


def slowdown(runnable: float, cores: float, speed: float) -> float:
    """Return the wall seconds that one second of yardstick work takes where so many threads want to run.

    Never less than that of an idle node: a thread cannot use more than one core.
    """
    return max(runnable / cores, 1.0) / speed


@dataclass(frozen=True, slots=True)
class LoadVector:
    """What a node reports about itself. Memory in bytes, load in load units, cores may be a fraction under a quota.

    Of the runnable threads, `owner` are not of guests; `forecast` is how many they will be soon. Shares of time (0 to 1), as the
    kernel reports them (PSI), None where it does not: `cpu_pressure`, in which something waited for a processor; `memory_full` and
    `io_full`, in which nothing ran because all waited for memory, or for a disk. `stage` is how it is between owner and guests,
    `owner_idle` for how many seconds the owner has not used the node; `processor` stands for what its processors can do.
    """

    name: str
    incarnation: int
    sequence: int
    address: str
    port: int
    runnable: float
    load: float
    cores: float
    speed: float
    memory_free: int
    memory_total: int
    guests: int
    lending: bool
    blocked: bool
    version: int
    owner: float = 0.0
    memory_short: bool = False
    cpu_pressure: float | None = None
    memory_full: float | None = None
    io_full: float | None = None
    forecast: float = 0.0
    stage: Stage = Stage.LENDING
    owner_idle: float | None = None
    processor: int = 0

    def slowdown_with(self, more: float) -> float:
        """Return the slowdown here if so many more threads (fewer if negative) wanted to run."""
        return slowdown(max(0.0, self.runnable + more), self.cores, self.speed)

    def slowdown_soon(self, more: float) -> float:
        """Return the slowdown that is to be expected here with so many more threads: of now, or as foretold if that is more."""
        return slowdown(max(self.runnable, self.forecast) + more, self.cores, self.speed)

    def with_more(self, more: float) -> LoadVector:
        """Return the vector as it will be with so many more runnable threads."""
        runnable = max(0.0, self.runnable + more)
        forecast = max(0.0, self.forecast + more)
        return replace(self, runnable=runnable, forecast=forecast, load=runnable / (self.cores * self.speed))

    @property
    def accepts_guests(self) -> bool:
        return self.lending and not self.blocked

    @property
    def owner_active(self) -> bool:
        """Whether the owner has the node."""
        return self.stage is not Stage.LENDING

    @property
    def contending(self) -> float:
        """Runnable threads that slow one another down: no more than there are cores if the kernel says that none of them waits."""
        is_calm = self.cpu_pressure is not None and self.cpu_pressure < CONTENDED
        return min(self.runnable, self.cores) if is_calm else self.runnable

    @property
    def idle(self) -> bool:
        """Whether there is a core that nobody wants."""
        return self.runnable < min(0.5, self.cores / 2)


def is_urgent(before: LoadVector, now: LoadVector) -> bool:
    """Return whether all should hear at once that the owner is back or memory is short, or that a node wants work."""
    return (
        now.accepts_guests != before.accepts_guests or now.owner_active > before.owner_active
        or now.memory_short > before.memory_short or (now.accepts_guests and now.idle > before.idle)
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pressure:
    """Shares of time (0 to 1) in which something waited for a processor or for memory, and in which all waited for memory or for a
    disk; None where nothing reports it."""

    cpu: float | None = None
    memory: float | None = None
    memory_full: float | None = None
    io_full: float | None = None


@dataclass(frozen=True, slots=True)
class _Correction:
    of: Hashable
    weight: float
    until: float
    decay: float
    sure_until: float = math.inf
    """from samples of then on it counts only as far as they bear it out"""

    def at(self, now: float) -> float:
        """Return what is left of it."""
        return self.weight * math.exp(-max(0.0, now - self.until) / self.decay)


class LoadEstimator:
    """Load of this node from samples of its runnable threads: quick to rise, slow to fall.

    An accepted guest counts at once, before it runs, so that not all nodes pile on the same idle one. The correction
    is held for `hold` seconds (the move) and then fades exactly as fast as the average learns of the thread itself. Who
    has gone is taken off at once, too; but where another runs in its place the average never learns of that, so that it
    is not taken off below what the newest samples show.
    """

    def __init__(self, cores: float, speed: float, clock: Clock) -> None:
        if cores <= 0 or speed <= 0:
            raise ValueError("a node needs cores and speed above zero")
        self.cores = cores
        self.speed = speed
        self._clock = clock
        self._average = 0.0
        self._owner = 0.0
        self._sampled: float | None = None
        self._corrections: list[_Correction] = []
        self._recent: deque[float] = deque(maxlen=RECENT_SAMPLES)
        self._memory_free = 0
        self._memory_total = 0
        self._pressure = Pressure()
        self._forecaster = Forecaster()
        self._second: list[float] = []
        self._second_began = clock()

    def sample(
        self, runnable: float, memory_free: int, memory_total: int | None = None, guests: float = 0.0, at: float | None = None
    ) -> None:
        """Take one sample: threads that run or want to, of which so many are of guests, and bytes of memory free to use; `at`: when
        that was, if not now."""
        now = self._clock() if at is None else at
        passed = math.inf if self._sampled is None else max(0.0, now - self._sampled)
        self._average = _approach(self._average, float(runnable), passed)
        self._recent.append(float(runnable))
        self._forecast(float(runnable), now)
        self._owner = _approach(self._owner, max(0.0, runnable - guests), passed)
        self._sampled = now
        self._memory_free = max(0, memory_free)
        if memory_total is not None:
            self._memory_total = memory_total

    def _forecast(self, runnable: float, now: float) -> None:
        self._second.append(runnable)
        if now - self._second_began >= 1.0:
            self._forecaster.sample(math.fsum(self._second) / len(self._second))
            self._second.clear()
            self._second_began = now

    def feel(self, pressure: Pressure) -> None:
        """Take the kernel's newest word on how long things wait."""
        self._pressure = pressure

    def inflate(self, of: Hashable, weight: float = 1.0, hold: float = 1.0) -> None:
        """Count a guest that has been accepted and does not run yet, or a process that has just begun or comes home; `of`: which."""
        self._corrections.append(_Correction(of, weight, self._clock() + hold, RISE_SECONDS))

    def relieve(self, of: Hashable, weight: float = 1.0) -> None:
        """Count a process that has just left, or a guest that was accepted and did not come, as gone at once.

        What the average does not know of it yet has never been more than a correction; the rest falls as the average does.
        """
        self._take_off(of, weight, sure_for=RECENT_SAMPLES / SAMPLES_PER_SECOND)

    def end(self, of: Hashable) -> None:
        """Count a process that has ended as gone, as far as the newest samples bear it out: it may have waited, as a shell does for what it
        has started, and the next one may run in its place."""
        self._take_off(of, 1.0, sure_for=0.0)

    def _take_off(self, of: Hashable, weight: float, sure_for: float) -> None:
        now = self._clock()
        unknown = sum(one.at(now) for one in self._corrections if one.of == of and one.weight > 0)  # to the average
        self._corrections = [one for one in self._corrections if one.of != of or one.weight <= 0]
        self._corrections.append(_Correction(of, unknown - weight, now, FALL_SECONDS, now + sure_for))

    @property
    def runnable(self) -> float:
        """Runnable threads now, with what is known to come and to have gone."""
        return max(0.0, self._average + self._corrected())

    def _corrected(self) -> float:
        """Return what the average does not know yet of what is to come and has gone."""
        now = self._clock()
        sampled = -math.inf if self._sampled is None else self._sampled
        sure = unsure = 0.0
        kept = []
        for correction in self._corrections:
            left = correction.at(now)
            if abs(left) > 0.02:
                kept.append(correction)
                if sampled < correction.sure_until:
                    sure += left
                else:
                    unsure += left
        self._corrections = kept
        if unsure:
            unsure = max(unsure, min(0.0, math.fsum(self._recent) / len(self._recent) - self._average - sure))
        return sure + unsure

    @property
    def load(self) -> float:
        return self.runnable / (self.cores * self.speed)

    def vector(
        self,
        *,
        name: str,
        incarnation: int,
        address: str,
        port: int,
        guests: int,
        lending: bool,
        blocked: bool,
        version: int = 1,
        stage: Stage = Stage.LENDING,
        owner_idle: float | None = None,
        processor: int = 0,
    ) -> LoadVector:
        """Return the load vector of now; gossip numbers those that it reports."""
        runnable = self.runnable
        return LoadVector(
            name=name,
            incarnation=incarnation,
            sequence=0,
            address=address,
            port=port,
            runnable=runnable,
            load=runnable / (self.cores * self.speed),
            cores=self.cores,
            speed=self.speed,
            memory_free=self._memory_free,
            memory_total=self._memory_total,
            guests=guests,
            lending=lending,
            blocked=blocked,
            version=version,
            owner=min(self._owner, runnable),
            memory_short=self._memory_short(),
            cpu_pressure=self._pressure.cpu,
            memory_full=self._pressure.memory_full,
            io_full=self._pressure.io_full,
            forecast=max(0.0, self._forecaster.next + self._corrected()),
            stage=stage,
            owner_idle=owner_idle,
            processor=processor,
        )

    def _memory_short(self) -> bool:
        short = self._memory_total > 0 and self._memory_free < MEMORY_SHORT * self._memory_total
        return short or (self._pressure.memory or 0.0) > PRESSURE_SHORT


def _approach(average: float, sample: float, passed: float) -> float:
    """Return the average with a sample in it that came so many seconds after the last."""
    return average + (sample - average) * -math.expm1(-passed / (RISE_SECONDS if sample > average else FALL_SECONDS))
