"""Starts the processes of a lab itself, and ends what does not end with the lab's groups."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lab import cgroups, state
from lab.state import LabError


def start(lab: str, argv: Sequence[str], *, in_group: bool = True) -> int:
    """Start a detached process, in the lab's group of helpers as a rule; return its process id. Errors: LabError."""
    script = 'for group; do [ "$group" = -- ] && break; echo 0 > "$group/cgroup.procs"; shift; done; shift\n'
    script += 'setsid "$@" </dev/null >/dev/null 2>&1 & echo $!'
    groups = map(str, cgroups.process_directories(lab, cgroups.HELPERS)) if in_group else ()
    result = subprocess.run(["/bin/sh", "-c", script, "sh", *groups, "--", *argv], capture_output=True, text=True, timeout=20, check=False)
    if result.returncode:
        raise LabError(f"a helper of the lab does not start: {' '.join(result.stderr.split())}")
    return int(result.stdout)


def start_switch(lab: str, program: Sequence[str]) -> int:
    """Start a program in a new network namespace; return its process id. Errors: LabError."""
    pid = start(lab, ["unshare", "--net", *program])
    own = os.readlink("/proc/self/ns/net")
    deadline = time.monotonic() + 10
    while os.readlink(f"/proc/{pid}/ns/net") == own:
        if time.monotonic() > deadline:
            raise LabError("no new network namespace could be made.")
        time.sleep(0.001)
    return pid


def start_keeper(lab: str) -> None:
    """Start the process that takes the lab down when ours has ended: outside of the groups that it will end. Errors: LabError."""
    owner = os.getpid()
    argv = [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")), lab, str(owner), str(state.start_time(owner))]
    keeper = start(lab, argv, in_group=False)
    (state.directory(lab) / state.KEEPER).write_text(f"{keeper} {state.start_time(keeper)}")


def end(name: str, pid: int, start: int, timeout: float = 10.0) -> None:
    """Make sure that a process, and all of the node whose process 1 it is, is gone: where there are no cgroups nothing else ends it.

    Errors: TimeoutError.
    """
    deadline = time.monotonic() + timeout
    while state.start_time(pid) == start:
        os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid}, {name}, does not die")
        time.sleep(0.003)
