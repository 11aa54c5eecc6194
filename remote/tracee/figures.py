"""What a process uses of its node."""

from __future__ import annotations

import os
from pathlib import Path


def bytes_read(pid: int) -> int:
    """Return how many it has read by calls that it has made here, 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/io", "rb") as source:
            return int(source.readline().partition(b":")[2])
    except (OSError, ValueError):
        return 0


def cpu_seconds(pid: int) -> float:
    """Return user and system time of all threads of a process, 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> int:
    """Return its resident bytes, 0 if it is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
