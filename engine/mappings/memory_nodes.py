"""Nodes of memory (NUMA) of a machine."""

from __future__ import annotations

from pathlib import Path

ONE = "0"
"""What a machine says that has one."""


def memory_nodes() -> str:
    """Return which this machine has, as its kernel reports them; "": it does not."""
    try:
        return Path("/sys/devices/system/node/has_memory").read_text().strip()
    except OSError:
        return ""
