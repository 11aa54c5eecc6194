"""A bare TCP stream between two nodes: `stream.py take WHAT ADDRESS BYTES` says its port, `stream.py give WHAT ADDRESS BYTES PORT` the
seconds that they took.

WHAT is `piece`: one megabyte, which stays in the processors' caches, again and again, and read into another one; or `memory`: that many
bytes of memory into as much fresh memory, which is what a move has to do as well. With `-unpaced` behind it the stream has a congestion
control that does not pace (kernel_helpers/common/pacing.h), as a move's has; else the machine's.
"""

from __future__ import annotations

import mmap
import socket
import sys
import time

PIECE = 1 << 20
PATIENCE = 60
"""Seconds."""
UNPACED = b"reno"
"""Every kernel has it, and lets everybody have it."""


def _choose(fresh: socket.socket, what: str) -> None:
    """Before it is connected: a connection that has been paced once is paced for good."""
    if what.endswith("-unpaced"):
        fresh.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, UNPACED)


def _buffer(what: str, size: int) -> memoryview:
    return memoryview(mmap.mmap(-1, size if what.startswith("memory") else PIECE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def take(what: str, address: str, size: int) -> None:
    """Reads that many bytes of one caller, and says so in a byte."""
    buffer = _buffer(what, size)
    with socket.create_server((address, 0)) as listener:
        _choose(listener, what)
        listener.settimeout(PATIENCE)
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(PATIENCE)
            at = 0
            while at < size and (count := connection.recv_into(buffer[at % len(buffer) :], min(PIECE, len(buffer) - at % len(buffer)))):
                at += count
            connection.sendall(b"x")


def give(what: str, address: str, size: int, port: int) -> None:
    """Sends them, and waits until they have been read."""
    buffer = _buffer(what, size)
    for at in range(0, len(buffer), PIECE):
        buffer[at : at + PIECE] = bytes([at // PIECE % 255 + 1]) * PIECE
    with socket.socket() as connection:
        _choose(connection, what)
        connection.settimeout(PATIENCE)
        connection.connect((address, port))
        begun = time.monotonic()
        for at in range(0, size, PIECE):
            connection.sendall(buffer[at % len(buffer) :][: min(PIECE, size - at)])
        connection.recv(1)
        print(time.monotonic() - begun)


if __name__ == "__main__":
    if sys.argv[1] == "take":
        take(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        give(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
