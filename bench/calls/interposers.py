"""What other programs that stand between a process and its kernel take for a call, those that are installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

#: Command, and the kinds of calls (tests/link/guest.c) that it really stands before; the kernel makes others by itself.
INTERPOSERS: Mapping[str, tuple[list[str], str]] = {
    "strace --seccomp-bpf": (
        ["strace", "--seccomp-bpf", "-f", "-qq", "-o", "/dev/null", "-e", "trace=getppid,pwrite64,stat,newfstatat"], "gws"),
    "proot": (["proot"], "s"),
    "runsc (ptrace)": (["runsc", "--platform=ptrace", "--network=none", "do"], "gws"),
}  # fmt: skip
PATIENCE = 60
"""Seconds for one run."""


def timed(command: list[str], directory: str, prefix: list[str]) -> list[int] | None:
    """Nanoseconds per call of each round that the command prints; None if it cannot run here."""
    try:
        done = subprocess.run([*prefix, *command], cwd=directory, capture_output=True, text=True, timeout=PATIENCE, check=False)
        return [int(line) for line in done.stdout.split()] or None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def measure(guest: Path, kind: str, count: int, directory: str) -> dict[str, list[int]]:
    """Nanoseconds per call by interposer. All of them have one processor to themselves, ours: to each of those that trace,
    a switch to another one would cost more than the call."""
    found = {}
    for name, (command, kinds) in INTERPOSERS.items():
        if kind in kinds and shutil.which(command[0]):
            times = timed([*command, str(guest), "bench", kind, str(count)], directory, [])
            if times:
                found[name] = times
    return found
