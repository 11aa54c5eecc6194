"""Which signals a process reads by signalfds. While it is away such a signal waits at home where its threads block it: the descriptors are
the stub's, and home's kernel sees in them what waits for the stub.

    deputy/requests/signalfds.py  the stub's threads block what the guest's do, of these signals
    remote/tracee/masks.py        what the guest's threads block
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

NAME = "anon_inode:[signalfd]"
"""What the link of such a descriptor says."""
UNCATCHABLE = 1 << signal.SIGKILL - 1 | 1 << signal.SIGSTOP - 1
"""What nobody blocks (a mask; bit n-1 is signal n)."""
_MASK = b"sigmask:"


def read_by(pid: int, descriptors: Iterable[str]) -> int:
    """Return the signals that these signalfds of a process read (a mask). Errors: OSError."""
    mask = 0
    for descriptor in descriptors:
        with open(f"/proc/{pid}/fdinfo/{descriptor}", "rb") as lines:
            mask |= next((int(line[len(_MASK) :], 16) for line in lines if line.startswith(_MASK)), 0)
    return mask & ~UNCATCHABLE


__all__ = ["NAME", "UNCATCHABLE", "read_by"]
