"""Single threads of the programs of the file tree, held up as a busy machine may hold them up."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ptrace.binding import ptrace_attach, ptrace_detach

EPOLL_WAIT, FUTEX = "232", "202"
WALL = 0x40000000
SETTLES = 0.2
"""Seconds for which nothing changes when threads have got to where they wait."""


def watcher(server: int) -> int:
    """The thread of an mfs-server that hears from the kernel what others have changed. Errors: ValueError if there is not just one."""
    waiting = [task.name for task in Path(f"/proc/{server}/task").iterdir() if (task / "syscall").read_text().split()[0] == EPOLL_WAIT]
    (thread,) = waiting
    return int(thread)


def waiting(server: int) -> set[int]:
    """Returns the threads of a program that wait for others of its threads, once it is settled which ones do."""
    found, before = _waiting(server), None
    while found != before:
        time.sleep(SETTLES)
        found, before = _waiting(server), found
    return found


def _waiting(server: int) -> set[int]:
    found = set()
    for task in Path(f"/proc/{server}/task").iterdir():
        with suppress(OSError):  # it has just ended
            if (task / "syscall").read_text().split()[0] == FUTEX:
                found.add(int(task.name))
    return found


@contextmanager
def stopped(thread: int) -> Iterator[None]:
    """Stops that thread meanwhile; the others of its process go on."""
    ptrace_attach(thread)
    try:
        os.waitpid(thread, WALL)
        yield
    finally:
        ptrace_detach(thread)
