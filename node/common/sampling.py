"""What this node looks like now: runnable threads, memory, cores, speed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from balancer.load.load import CALIBRATION_SECONDS, SAMPLES_PER_SECOND, effective_cores, speed_of, yardstick_round
from kernel_helpers.usage.sampler import Sampler

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the machine's own pid namespace (PROC_PID_INIT_INO of the kernel)."""


def calibrate_speed(seconds: float = CALIBRATION_SECONDS) -> float:
    """Speed of one core against the yardstick; takes that many seconds of cpu time."""
    rounds, begun = 0, time.thread_time()
    while (spent := time.thread_time() - begun) < seconds:
        yardstick_round()
        rounds += 1
    return speed_of(rounds, spent)


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="ascii")
    except OSError:
        return None


def cores() -> float:
    """Cores that this node may use: its cpus, less where a cgroup quota says so."""
    cpus = len(os.sched_getaffinity(0))
    for quota_file, period_file in (("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),):
        quota, period = _read(quota_file), _read(period_file)
        if quota and period:
            return max(0.01, effective_cores(cpus, int(quota), int(period)))
    limits = _read("/sys/fs/cgroup/cpu.max")
    if limits:
        first, second = limits.split()
        if first != "max":
            return max(0.01, effective_cores(cpus, int(first), int(second)))
    return float(cpus)


class RunnableThreads:
    """Counts threads that run or want to, SAMPLES_PER_SECOND times a second, the daemon's own not among them, nor, where they can be known
    apart, those of farhome's other programs: what they do in moves, and for files, is no load that could be elsewhere."""

    def __init__(self, own: Callable[[], Iterable[int]]) -> None:
        """own: process ids of those."""
        self._own = own
        self._known: frozenset[int] = frozenset()
        self._sampler: Sampler | None = None

    def start(self) -> None:
        """Begins with a sample at once. Errors: OSError."""
        # What the kernel counts is of the whole machine; a virtual node sees its own processes only in /proc.
        is_machine = os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE
        self._sampler = Sampler(is_machine, 1 / SAMPLES_PER_SECOND)

    def take(self) -> list[tuple[float, int]]:
        """Return when (of time.monotonic) and how many, of each sample since the last call."""
        if self._sampler is None:
            return []
        before, self._known = self._known, frozenset(self._own())
        return self._sampler.take(before | self._known)  # who has ended since may be in a sample

    def stop(self) -> None:
        """Counts no more."""
        if self._sampler is not None:
            self._sampler.stop()


def memory() -> tuple[int, int]:
    """Return bytes that are free to use, and bytes in all."""
    figures = {}
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            figures[name] = int(value.split()[0]) << 10
    return figures["MemAvailable"], figures["MemTotal"]
