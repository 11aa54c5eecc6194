"""Whether a thread has written a part of what it wants to write, and waits to write the rest.

Stopping it ends such a call with what it has written so far, as a signal would: programs have to expect that, and few do. So a move
waits for it, for a while.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kernel_helpers.syscalls import SYS

PATIENCE = 2.0
"""Seconds that a move waits for such a call to end."""
_ATOMIC = 4096
"""PIPE_BUF: no more than that is written at once or not at all"""
_OF_BYTES = (SYS.write, SYS.sendto)
_OF_VECTORS = (SYS.writev, SYS.sendmsg)


def is_under_way(pid: int) -> bool:
    """Whether any thread waits in such a call; a process that has ended does not."""
    return any(_waits_in_write(pid, task) for task in Path(f"/proc/{pid}/task").glob("[0-9]*"))


def _waits_in_write(pid: int, task: Path) -> bool:
    try:
        words = (task / "syscall").read_text().split()
        if words[0] == "running" or int(words[0]) not in (*_OF_BYTES, *_OF_VECTORS):
            return False
        if int(words[0]) in _OF_BYTES and int(words[3], 16) <= _ATOMIC:
            return False
        mode = os.stat(f"/proc/{pid}/fd/{int(words[1], 16)}").st_mode
    except (OSError, ValueError, IndexError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)
