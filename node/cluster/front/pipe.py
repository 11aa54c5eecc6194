"""Whole messages, and descriptors, over the socket between mosd and its front. Neither side waits for the other."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence

CHUNK = 1 << 16
MOST_DESCRIPTORS = 8
"""That one message brings."""
HIGH = 1 << 20
"""Bytes that wait to be sent, from which on who can wait does so, and datagrams are lost."""
MOST_WAITING = 32 << 20
"""Bytes that wait to be sent, from which on the other side counts as lost."""

_HEAD = struct.Struct("!IB")


class Pipe:
    """One end. `take` is given each message, with the descriptors that came with it; `ended` is called once, with the reason."""

    def __init__(
        self, sock: socket.socket, longest: int, take: Callable[[bytes, list[int]], None], ended: Callable[[str], None],
        descriptors: bool = False,
    ) -> None:  # fmt: skip
        """longest: bytes of a message from the other side; descriptors: whether any are taken. take raises ValueError for nonsense."""
        sock.setblocking(False)
        self._socket = sock
        self._longest = longest
        self._take = take
        self._ended = ended
        self._accepts = descriptors
        self._loop = asyncio.get_running_loop()
        self._read = bytearray()
        self._received: deque[int] = deque()
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._room = asyncio.Event()
        self._room.set()
        self.waiting = 0
        """bytes that are not sent yet"""
        self.closed = False
        self._loop.add_reader(sock, self._on_readable)

    # -- out -------------------------------------------------------------------------------------------------------------

    def send(self, body: bytes, descriptors: Sequence[int] = ()) -> None:
        """Sends a message as soon as it can be; the descriptors are the pipe's from now on, and closed once they are sent."""
        if self.closed:
            _close_all(descriptors)
            return
        self._unsent.append((_HEAD.pack(len(body), len(descriptors)) + body, tuple(descriptors)))
        self.waiting += _HEAD.size + len(body)
        if len(self._unsent) == 1:
            self._flush()
        if self.waiting > MOST_WAITING:
            self._end("it does not take what it is sent")

    async def has_room(self) -> None:
        """Waits until little waits to be sent."""
        await self._room.wait()

    def _flush(self) -> None:
        while self._unsent and not self.closed:
            data, descriptors = self._unsent[0]
            try:
                sent = socket.send_fds(self._socket, [data], descriptors) if descriptors else self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._socket, self._flush)
                break
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:  # descriptors that the other side has not taken yet: there is a bound on them
                    self._loop.call_later(0.05, self._flush)
                    break
                self._end(_why(error))
                return
            _close_all(descriptors)
            self.waiting -= sent
            if sent < len(data):
                self._unsent[0] = data[sent:], ()
            else:
                self._unsent.popleft()
        if self.closed:
            return
        if not self._unsent:
            self._loop.remove_writer(self._socket)
        if self.waiting < HIGH:
            self._room.set()
        else:
            self._room.clear()

    # -- in --------------------------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        try:
            if self._accepts:
                data, received, _, _ = socket.recv_fds(self._socket, CHUNK, MOST_DESCRIPTORS)
                self._received.extend(received)
            else:
                data = self._socket.recv(CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(_why(error))
            return
        if not data:
            self._end("it has ended")
            return
        self._read += data
        try:
            while not self.closed and (message := self._next()) is not None:
                self._take(*message)
        except ValueError as error:
            self._end(f"it sent nonsense: {str(error)[:200]}")

    def _next(self) -> tuple[bytes, list[int]] | None:
        """The next whole message. Errors: ValueError."""
        if len(self._read) < _HEAD.size:
            return None
        length, count = _HEAD.unpack_from(self._read)
        if length > self._longest or count > (MOST_DESCRIPTORS if self._accepts else 0):
            raise ValueError(f"a message of {length} bytes and {count} descriptors")
        end = _HEAD.size + length
        if len(self._read) < end:
            return None
        if count > len(self._received):
            raise ValueError("a message without its descriptors")
        body = bytes(self._read[_HEAD.size : end])
        del self._read[:end]
        return body, [self._received.popleft() for _ in range(count)]

    # -- end -------------------------------------------------------------------------------------------------------------

    def _end(self, why: str) -> None:
        if not self.closed:
            self.close()
            self._ended(why)

    def close(self) -> None:
        """Neither says nor hears anything any more. Safe to call twice."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        _close_all(self._received)
        for _, descriptors in self._unsent:
            _close_all(descriptors)
        self._unsent.clear()
        self._room.set()


def _why(error: OSError) -> str:
    """How the other side ended: with or without having read what it was sent."""
    return "it has ended" if error.errno in (errno.ECONNRESET, errno.EPIPE) else error.strerror or "it is gone"


def _close_all(descriptors: Sequence[int] | deque[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
