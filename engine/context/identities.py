"""Ids of a process as it sees them itself, where we see others: it is in another user namespace."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Inside:
    """The lines of a map: first inside, first here, how many. None: ids are the same."""

    lines: tuple[tuple[int, int, int], ...] | None = None

    def id(self, here: int) -> int:
        """One that is here `here`. Errors: OSError when nobody has it inside."""
        if self.lines is None:
            return here
        for inside, outside, count in self.lines:
            if outside <= here < outside + count:
                return inside + here - outside
        raise OSError(f"id {here} is nobody's inside")


def users(pid: int) -> Inside:
    """Of a process's user ids. Errors: OSError."""
    return _inside(pid, "uid_map")


def groups(pid: int) -> Inside:
    """Of its group ids. Errors: OSError."""
    return _inside(pid, "gid_map")


def _inside(pid: int, name: str) -> Inside:
    theirs, ours = os.stat(f"/proc/{pid}/ns/user"), os.stat("/proc/self/ns/user")
    if (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino):
        return Inside()
    with open(f"/proc/{pid}/{name}", encoding="ascii") as lines:
        return Inside(tuple((int(inside), int(outside), int(count)) for inside, outside, count in map(str.split, lines)))
