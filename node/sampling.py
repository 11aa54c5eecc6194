"""What this node looks like now: runnable threads, memory, cores, speed."""

from __future__ import annotations

import ctypes
import functools
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

from balancer.load import CALIBRATION_SECONDS, effective_cores, speed_of, yardstick_round
from kernel_helpers.library import functions

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


class RunnableCounter:
    """Counts threads that run or want to, the daemon's own not among them, nor, where they can be told apart, those of farhome's other
    programs: what they do in moves, and for files, is no load that could be elsewhere."""

    def __init__(self, own: Callable[[], Iterable[int]]) -> None:
        """own: process ids of those."""
        self._programs = own
        self._whole_machine = os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE
        self._own = os.getpid()

    def count(self) -> int:
        """Runnable threads now."""
        if self._whole_machine:
            with open("/proc/stat", "rb") as source:
                for line in source:
                    if line.startswith(b"procs_running"):
                        return max(0, int(line.split()[1]) - 1)
            return 0
        # procs_running and loadavg are of the whole machine; a virtual node sees its own processes only in /proc.
        without = [self._own, *self._programs()]
        return max(0, int(_runnable()((ctypes.c_int * len(without))(*without), len(without))))


@functools.cache
def _runnable() -> Any:
    """kernel_helpers/runnable.c."""
    return functions(("farhome_runnable", ctypes.c_int, [ctypes.POINTER(ctypes.c_int), ctypes.c_int])).farhome_runnable


def memory() -> tuple[int, int]:
    """Bytes that are free to use, and bytes in all."""
    figures = psutil.virtual_memory()
    return int(figures.available), int(figures.total)
