"""How a traced process ends: it is killed, and its threads' ends are taken."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from kernel_helpers.process import tracing
from kernel_helpers.process.tracing import Cause
from wire.waking import ready

REAP_PATIENCE = 5.0
"""Seconds for the threads of a killed guest to end."""


def ends_by(pid: int, number: int) -> bool:
    """Return whether a process as a whole is being ended by that signal, or has been (the last field of /proc/PID/stat, its exit code)."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().split()[-1]) & 0x7F == number
    except (OSError, ValueError):
        return True


def end_traced(pid: int, tids: list[int]) -> None:
    """Kills a process that this thread traces and takes its threads' ends: what is traced stays a zombie until its tracer looks,
    and would hold up the end of its pid namespace."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    left = set(tids)
    end = time.monotonic() + REAP_PATIENCE
    pidfd = _pidfd(pid)
    while left and time.monotonic() < end:
        for stop in tracing.poll(list(left)):
            if stop.cause in (Cause.EXITED, Cause.KILLED):
                left.discard(stop.tid)
            else:
                tracing.proceed(stop.tid)
        if left:
            ready([pidfd] if pidfd is not None else [], 0.005)
    if pidfd is not None:
        os.close(pidfd)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
