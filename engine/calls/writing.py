"""Whether a thread has written a part of what it wants to write, and waits to write the rest.

Stopping it ends such a call with what it has written so far, as a signal would: programs have to expect that, and few do. So a move
waits for it, for a while.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kernel_helpers.inspection import tasks
from kernel_helpers.process.syscalls import SYS

PATIENCE = 2.0
"""Seconds that a move waits for such a call to end."""
_LOOKS, _PAUSE = 3, 0.0002
"""How often a thread is looked at that runs, and the seconds between: it may be about to write on, somebody having read"""
_ATOMIC = 4096
"""PIPE_BUF: no more than that is written at once or not at all"""
_OF_BYTES = (SYS.write, SYS.sendto)
_OF_VECTORS = (SYS.writev, SYS.sendmsg)
_OF_FILES = (SYS.sendfile,)


def is_under_way(pid: int, tids: Sequence[int] | None = None) -> bool:
    """Return whether any thread waits in such a call, or any of these; a process that has ended does not."""
    try:
        reported = tasks.texts(pid, "syscall") if tids is None else _reported(pid, tids)
    except OSError:
        return False
    running: list[Path] = []
    for tid, text in reported.items():
        waits = _waits_in_write(pid, text.split())
        if waits:
            return True
        if waits is None:
            running.append(Path(f"/proc/{pid}/task/{tid}/syscall"))
    for _ in range(_LOOKS - 1 if running else 0):
        time.sleep(_PAUSE)
        found = [(task, _looks(pid, task)) for task in running]
        if any(waits for _, waits in found):
            return True
        running = [task for task, waits in found if waits is None]
        if not running:
            break
    return False


def _reported(pid: int, tids: Sequence[int]) -> dict[int, bytes]:
    """What the file `syscall` of each of a few threads says; of one that has ended, nothing."""
    reported = {}
    for tid in tids:
        with suppress(OSError):
            reported[tid] = Path(f"/proc/{pid}/task/{tid}/syscall").read_bytes()
    return reported


def can_be_cut(pid: int, number: int, descriptor: int) -> bool:
    """Return whether the call `number` with that descriptor may be one that a stop ends in the middle."""
    if number not in (*_OF_BYTES, *_OF_VECTORS, *_OF_FILES):
        return False
    try:
        mode = os.stat(f"/proc/{pid}/fd/{descriptor}").st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)


def is_waited_for(pid: int, descriptor: int) -> bool:
    """Return whether a call waits until such a descriptor takes, or has, more."""
    try:
        mode = os.stat(f"/proc/{pid}/fd/{descriptor}").st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)):
            return False
        lines = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().splitlines()
        flags = next(line for line in lines if line.startswith("flags:"))
        return not int(flags.split()[1], 8) & os.O_NONBLOCK
    except (OSError, ValueError, StopIteration):
        return False


def runs(pid: int, tid: int) -> bool:
    """Return whether a thread does not wait: the kernel does not report what call it is in, if any."""
    try:
        return Path(f"/proc/{pid}/task/{tid}/syscall").read_text().startswith("running")
    except OSError:
        return False


def _looks(pid: int, task: Path) -> bool | None:
    """_waits_in_write() of one thread, by that file."""
    try:
        return _waits_in_write(pid, task.read_bytes().split())
    except OSError:
        return False


def _waits_in_write(pid: int, words: list[bytes]) -> bool | None:
    """By what the file `syscall` of a thread says. None: it runs."""
    try:
        if words[0] == b"running":
            return None
        number = int(words[0])
        if number in _OF_BYTES and int(words[3], 16) <= _ATOMIC:
            return False
        return can_be_cut(pid, number, int(words[1], 16))
    except (OSError, ValueError, IndexError):
        return False
