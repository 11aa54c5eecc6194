"""Whose program is at the other end of a connection over loopback: by the kernel's table of sockets."""

from __future__ import annotations

import socket
from pathlib import Path

TABLE = Path("/proc/net/tcp")


def uid_of_peer(connection: socket.socket) -> int | None:
    """The user whose socket is at the other end of a TCP connection (IPv4) on this machine; None if that is not known.

    A socket that is gone from the table, or whose program has closed it, has no user any more.
    """
    try:
        wanted = [_written(*connection.getpeername()[:2]), _written(*connection.getsockname()[:2])]
        for line in TABLE.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1:3] == wanted and fields[9] != "0":
                return int(fields[7])
    except (OSError, ValueError, IndexError):
        pass
    return None


def _written(host: str, port: int) -> str:
    """An address as the kernel writes it: the four bytes as one number of this machine, port, both hexadecimal."""
    return f"{int.from_bytes(socket.inet_aton(host), 'little'):08X}:{port:04X}"
