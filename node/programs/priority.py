"""Who has a processor first where many programs want one: the daemon, and a deputy while a move of its process is under way.

A node that is to be relieved has more to do than it can: there the daemon would come late, and a process would stand still for as long
as its deputy waits for its turns. Both need little. Where it is not allowed, everything goes on as it is.
"""

from __future__ import annotations

import contextlib
import os

FIRST = -10
"""Nice value: about nine times the weight of others."""


def come_first() -> None:
    """This program, but not what it starts."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, FIRST)


def put_first(pid: int, first: bool = True) -> None:
    """All threads of a program that we have started, or (first=False) none of them any more."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), FIRST if first else 0)
