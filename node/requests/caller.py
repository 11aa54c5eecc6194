"""Who is at the other end of a unix socket: the process that connected, and no other that has its number by now."""

from __future__ import annotations

import array
import errno
import os
import select
import socket
import struct
from dataclasses import dataclass

from engine.leaving.permission import Owner, owner_of_user
from node.common import process

_SO_PEERGROUPS, _SO_PEERPIDFD = 59, 77
_MOST_GROUPS = 256


@dataclass
class Caller:
    """pid and owner as of connect(2). The process is held by its pidfd (Linux 6.5), or known by when it was started."""

    pid: int
    owner: Owner
    _pidfd: int = -1
    _started: int | None = None

    @classmethod
    def of(cls, connection: socket.socket) -> Caller:
        """Errors: OSError."""
        pid, uid, gid = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        caller = cls(pid, Owner(uid, gid, _groups(connection, uid)))
        try:
            caller._pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError as error:
            if error.errno == errno.ENOPROTOOPT:  # an older kernel
                stat = process.read_stat(pid)
                caller._started = stat.starttime if stat is not None else None
            # else it has ended, and been waited for
        return caller

    def read_stat(self) -> process.ProcessStat | None:
        """Returns what the kernel reports of it now; None: it has ended, even if another process has its number."""
        stat = process.read_stat(self.pid)
        if self._pidfd < 0:
            return stat if stat is not None and stat.starttime == self._started else None
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return stat if not poll.poll(0) else None  # it was alive when it was read

    def close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def _groups(connection: socket.socket, uid: int) -> tuple[int, ...]:
    try:
        reported = array.array("I")
        reported.frombytes(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _MOST_GROUPS))
        return tuple(reported)
    except OSError:  # more than that, or Linux before 4.13
        return owner_of_user(uid).groups


__all__ = ["Caller"]
