"""Read leases (fcntl(2), F_SETLEASE) on the files that a process has mapped, while it is away: of what somebody writes into such a file its
guest would see nothing. Who opens one for writing, or truncates it, waits in that call until the process is at home, where it sees all.

The kernel reports it by SIGIO, which makes the loops turn (wire/waking.py); then all leases are looked at. It lets the writer go on after
/proc/sys/fs/lease-break-time at the latest. Files of the system are left alone: they are replaced, not written.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from engine.files.files import FileMapping, by_mapping
from engine.memory.written import can_be_written, is_file
from kernel_helpers.common.errors import FarhomeError
from wire import waking

_Inode = tuple[int, int]
"""st_dev, st_ino"""


class OpenForWriting(FarhomeError):
    """it has {path} mapped, which is open for writing"""

    def __init__(self, path: str) -> None:
        super().__init__(f"it has {path} mapped, which is open for writing")


class Leases:
    """Those of a process, and of the children that it has had away: all of these have its mappings."""

    def __init__(self) -> None:
        self._held: dict[_Inode, int] = {}
        self._users = 1
        self._seen = 0

    @classmethod
    def of(cls, pid: int, named: Sequence[FileMapping]) -> Leases:
        """Of all files that a process has mapped; named: its named_mappings(). Errors: OpenForWriting, OSError; nothing is held then."""
        leases = cls()
        seen = set()
        try:
            for m in named:
                if (m.device, m.inode) not in seen and is_file(m):
                    seen.add((m.device, m.inode))
                    with suppress(FileNotFoundError):
                        leases._take_if_written(pid, by_mapping(pid, m.start, m.end), m.path.removesuffix(" (deleted)"))
        except BaseException:
            leases.let_go()
            raise
        return leases

    def take(self, link: str, path: str) -> None:
        """Of one more file, by a link to it in /proc, unless it is the system's. A file system that has no leases is left at that. Errors:
        OpenForWriting, OSError."""
        status = os.stat(link)
        inode = (status.st_dev, status.st_ino)
        if inode in self._held or not stat.S_ISREG(status.st_mode) or is_systems(status, path):
            return
        descriptor = os.open(link, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except OSError as error:
            os.close(descriptor)
            if error.errno == errno.EAGAIN:
                raise OpenForWriting(path) from None
        else:
            self._held[inode] = descriptor

    def _take_if_written(self, pid: int, link: str, path: str) -> None:
        """As take(); a file that is open for writing only as what it is mapped by, with nobody to write it, has no lease."""
        try:
            self.take(link, path)
        except OpenForWriting:
            status = os.stat(link)
            if can_be_written(pid, status.st_dev, status.st_ino):
                raise

    def inherit(self) -> Leases:
        """For a child."""
        self._users += 1
        return self

    def broken(self) -> bool:
        """Return whether somebody wants to write one of the files."""
        if self._seen == waking.leases_broken or not self._held:
            return False
        seen = waking.leases_broken
        if any(fcntl.fcntl(descriptor, fcntl.F_GETLEASE) == fcntl.F_UNLCK for descriptor in self._held.values()):
            return True
        self._seen = seen
        return False

    def let_go(self) -> None:
        """One of those who have them is at home, or has ended."""
        self._users -= 1
        if self._users > 0:
            return
        held, self._held = self._held, {}
        for descriptor in held.values():
            os.close(descriptor)

    def __del__(self) -> None:
        self._users = 0
        self.let_go()


LOADERS_CACHE = "/etc/ld.so.cache"
"""What each program maps first; ldconfig(8) puts another one in its place."""


def is_systems(status: os.stat_result, path: str) -> bool:
    """Return whether a file is a part of the system, which is replaced and not written."""
    return (path.startswith("/usr/") or path == LOADERS_CACHE) and status.st_uid == 0 and not status.st_mode & 0o022


__all__ = ["Leases", "OpenForWriting", "is_systems"]
