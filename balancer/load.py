"""The load vector of a node, and the estimator that makes it from samples.

One unit of load is one runnable thread for each core of the yardstick's speed: ``load = runnable / (cores * speed)``.
The average of the kernel is not used: its time constant of 60 s is too slow, and it counts threads that wait for a
disk.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

Clock = Callable[[], float]

SAMPLES_PER_SECOND = 10
RISE_SECONDS = 2.0
FALL_SECONDS = 5.0

#: What a node of speed 1.0 does of `yardstick_round` in one second of cpu time.
YARDSTICK_ROUNDS_PER_SECOND = 2000.0
CALIBRATION_SECONDS = 0.2

NAME_LIMIT = 64
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
    """What a node tells of itself. Memory in bytes, load in load units, cores may be a fraction under a quota."""

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

    def slowdown_with(self, more: float) -> float:
        """Return the slowdown here if so many more threads (fewer if negative) wanted to run."""
        return slowdown(max(0.0, self.runnable + more), self.cores, self.speed)

    def with_more(self, more: float) -> LoadVector:
        """Return the vector as it will be with so many more runnable threads."""
        runnable = max(0.0, self.runnable + more)
        return replace(self, runnable=runnable, load=runnable / (self.cores * self.speed))

    @property
    def accepts_guests(self) -> bool:
        return self.lending and not self.blocked

    def to_fields(self) -> list[object]:
        """Return the vector as the list that goes over the wire, in the order of the class."""
        return [getattr(self, field.name) for field in fields(self)]

    @classmethod
    def from_fields(cls, values: Sequence[object]) -> LoadVector:
        """Return the vector that came over the wire. Errors: ValueError, one sentence, if anything in it cannot be."""
        if not isinstance(values, (list, tuple)) or len(values) != len(fields(cls)):
            raise ValueError(f"load vector: it does not have exactly {len(fields(cls))} fields")
        (name, incarnation, sequence, address, port, runnable, load, cores, speed, memory_free, memory_total,
         guests, lending, blocked, version) = values  # fmt: skip
        return cls(
            name=_text("name", name),
            incarnation=_whole("incarnation", incarnation),
            sequence=_whole("sequence", sequence),
            address=_text("address", address),
            port=_port("port", port),
            runnable=_amount("runnable", runnable),
            load=_amount("load", load),
            cores=_capacity("cores", cores),
            speed=_capacity("speed", speed),
            memory_free=_whole("memory_free", memory_free),
            memory_total=_whole("memory_total", memory_total),
            guests=_whole("guests", guests),
            lending=_truth("lending", lending),
            blocked=_truth("blocked", blocked),
            version=_whole("version", version),
        )


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= NAME_LIMIT or not value.isprintable():
        raise ValueError(f"load vector: {name} is not a name of at most {NAME_LIMIT} printable characters")
    return value


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError(f"load vector: {name} is not a whole number of 0 or more")
    return value


def _port(name: str, value: object) -> int:
    if not 0 < _whole(name, value) < 65536:
        raise ValueError(f"load vector: {name} is not a port number")
    return _whole(name, value)


def _amount(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e9:
        raise ValueError(f"load vector: {name} is not a number between 0 and 1e9")
    return float(value)


def _capacity(name: str, value: object) -> float:
    # Divided by later; a node of next to no cores or speed would have an infinite load.
    if _amount(name, value) < 1e-3:
        raise ValueError(f"load vector: {name} is too small to be real")
    return _amount(name, value)


def _truth(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"load vector: {name} is neither true nor false")
    return value


@dataclass(frozen=True, slots=True)
class _Correction:
    weight: float
    until: float
    decay: float


class LoadEstimator:
    """Load of this node from samples of its runnable threads: quick to rise, slow to fall.

    An accepted guest counts at once, before it runs, so that not all nodes pile on the same idle one. The correction
    is held for `hold` seconds (the move) and then fades exactly as fast as the average learns of the thread itself.
    """

    def __init__(self, cores: float, speed: float, clock: Clock) -> None:
        if cores <= 0 or speed <= 0:
            raise ValueError("a node needs cores and speed above zero")
        self.cores = cores
        self.speed = speed
        self._clock = clock
        self._average = 0.0
        self._sampled: float | None = None
        self._corrections: list[_Correction] = []
        self._memory_free = 0
        self._memory_total = 0
        self._sequence = 0

    def sample(self, runnable: float, memory_free: int, memory_total: int | None = None) -> None:
        """Take one sample: threads that run or want to, and bytes of memory that are free to use."""
        now = self._clock()
        if self._sampled is None:
            self._average = float(runnable)
        else:
            tau = RISE_SECONDS if runnable > self._average else FALL_SECONDS
            self._average += (runnable - self._average) * -math.expm1(-max(0.0, now - self._sampled) / tau)
        self._sampled = now
        self._memory_free = max(0, memory_free)
        if memory_total is not None:
            self._memory_total = memory_total

    def inflate(self, weight: float = 1.0, hold: float = 1.0) -> None:
        """Count a guest (or a process that comes home) that has been accepted and does not run yet."""
        self._corrections.append(_Correction(weight, self._clock() + hold, RISE_SECONDS))

    def relieve(self, weight: float = 1.0) -> None:
        """Count a process that has just left, or a guest that was accepted and did not come, as gone at once."""
        self._corrections.append(_Correction(-weight, self._clock(), FALL_SECONDS))

    @property
    def runnable(self) -> float:
        """Runnable threads now, with what is known to come and to have gone."""
        now = self._clock()
        total = self._average
        kept = []
        for correction in self._corrections:
            left = correction.weight * math.exp(-max(0.0, now - correction.until) / correction.decay)
            if abs(left) > 0.02:
                kept.append(correction)
                total += left
        self._corrections = kept
        return max(0.0, total)

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
    ) -> LoadVector:
        """Return the load vector of now; each has the next sequence number."""
        self._sequence += 1
        runnable = self.runnable
        return LoadVector(
            name=name,
            incarnation=incarnation,
            sequence=self._sequence,
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
        )
