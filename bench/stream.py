"""A bare TCP stream between two nodes: `stream.py take ADDRESS BYTES` says its port, `stream.py give ADDRESS BYTES PORT` the seconds
that they took."""

from __future__ import annotations

import socket
import sys
import time

PIECE = 1 << 20


def take(address: str, size: int) -> None:
    """Reads that many bytes of one caller, and says so in a byte."""
    with socket.create_server((address, 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
        with connection:
            room, left = bytearray(PIECE), size
            while left and (count := connection.recv_into(room, min(left, PIECE))):
                left -= count
            connection.sendall(b"x")


def give(address: str, size: int, port: int) -> None:
    """Sends them, and waits until they have been read."""
    piece = memoryview(bytearray(b"x" * PIECE))
    with socket.create_connection((address, port), timeout=60) as connection:
        begun = time.monotonic()
        for at in range(0, size, PIECE):
            connection.sendall(piece[: size - at])
        connection.recv(1)
        print(time.monotonic() - begun)


if __name__ == "__main__":
    if sys.argv[1] == "take":
        take(sys.argv[2], int(sys.argv[3]))
    else:
        give(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
