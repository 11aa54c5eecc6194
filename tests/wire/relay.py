"""A relay between two ends of data connections: it sees every byte, keeps what it has seen, changes one on request, or keeps the rest
back."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Relay:
    """Listens at `address`, and passes what comes on to `target`. Bytes 0 are those of callers, bytes 1 those of the listener's side."""

    def __init__(self, target: tuple[str, int], host: str = "127.0.0.1") -> None:
        self._target = target
        self._listener = socket.create_server((host, 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self.seen = (bytearray(), bytearray())
        self.flips = [-1, -1]
        """how many bytes, from now on, still pass before one is changed, by direction; -1: none is"""
        self.flipped = threading.Event()
        self._halts = [-1, -1]
        self._going = (threading.Event(), threading.Event())
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
                other = socket.create_connection(self._target, timeout=10)
            except OSError:
                return
            other.settimeout(None)
            self._ends += [caller, other]
            for way, (source, target) in enumerate(((caller, other), (other, caller))):
                target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass, args=(way, source, target), daemon=True).start()

    def _pass(self, way: int, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := bytearray(source.recv(65536)):
                self.seen[way].extend(data)
                if 0 <= self.flips[way] < len(data):
                    data[self.flips[way]] ^= 1
                    self.flips[way] = -1
                    self.flipped.set()
                elif self.flips[way] >= 0:
                    self.flips[way] -= len(data)
                if 0 <= self._halts[way] < len(data):
                    target.sendall(data[: self._halts[way]])
                    del data[: self._halts[way]]
                    self._halts[way] = -1
                    self._going[way].wait()
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def hold(self, way: int, after: int) -> None:
        """Lets `after` more bytes that way pass, and keeps the rest until let_go()."""
        self._halts[way] = after

    def let_go(self, way: int) -> None:
        self._going[way].set()

    def cut(self) -> None:
        """All connections; new ones are let through."""
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for way in (0, 1):
            self.let_go(way)
        self.cut()
        for end in self._ends:
            end.close()
