"""Data connections between a deputy and a remote (or, for a hop, between two remotes).

The remote listens. Who connects, and who listens, prove to each other by a TLS handshake (kernel_helpers/stream/tls.c) that they hold the
one-time secret that went over the mutually authenticated control connection of the two node daemons; nothing is read before. A connection
is of one role, which the handshake reports: ``move`` (msgpack frames and byte streams of one move), ``imgs`` (the stream of a hop),
``link`` (handed to the C session) or ``page`` (memory that follows, engine/pour/postcopy.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from kernel_helpers.common.pacing import settle_pace, unpaced
from kernel_helpers.stream.stream import Connection, Encrypted, NotProven, holds, open_encrypted
from wire import frames
from wire.frames import Message, WireError
from wire.waking import ready

ROLES = ("move", "imgs", "link", "page")
HELLO_TIMEOUT = 10.0
"""Seconds that the whole handshake may take."""
SILENCE = 10
"""Seconds of waiting for word from a peer whose kernel does not answer either, after which it is dead to a move: a process may be
standing still for it. (The link has a heartbeat of its own.)"""
SECRET = 32
"""Bytes of a secret."""
REHEARSED_FOR = 0.001
"""Seconds."""
UNREAD = 15
"""Seconds that what was sent to a peer may stay unread."""

MOST_IMAGES = 4096
"""Images of one process."""
FREE = 20
"""Such a part of where images come to stays free."""
_CHUNK = 1 << 20
_IMAGE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_STREAM = struct.Struct("!Q")


_plain = False


def need_not_be_secret() -> None:
    """From now on connections of this program are encrypted only if the other side wants it (`encryption = false` in the configuration).
    Both sides are proven, and no byte can be changed, in any case."""
    global _plain
    _plain = True


def _watch(connection: socket.socket, role: str) -> None:
    """Makes the kernel ask a silent peer whether it lives, and end the connection after SILENCE seconds, or UNREAD seconds while
    something is on its way to it: a peer that only does not read (a restore takes its time) looks the same then."""
    if role == "link":
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD * 1000)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE // 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, SILENCE - SILENCE // 2)


def _reach(address: tuple[str, int], timeout: float) -> socket.socket:
    family, kind, protocol, _, found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
    connection = socket.socket(family, kind, protocol)
    try:
        connection.settimeout(timeout)
        unpaced(connection)
        connection.connect(found)
    except BaseException:
        connection.close()
        raise
    return connection


def connect(address: tuple[str, int], role: str, secret: bytes, timeout: float = 10.0) -> Encrypted:
    """Return a proven connection of that role, with timeout (seconds) on every operation.

    Errors: OSError if nobody is there, WireError if the listener does not hold the secret.
    """
    connection = _reach(address, min(timeout, HELLO_TIMEOUT))
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        encrypted = open_encrypted(connection, secret, role, min(timeout, HELLO_TIMEOUT), _plain)
        settle_pace(connection)
        _watch(connection, role)
        encrypted.settimeout(timeout)
        return encrypted
    except NotProven:
        connection.close()
        raise WireError("the peer does not hold the secret of this move") from None
    except BaseException:
        connection.close()
        raise


def rehearse() -> None:
    """Begins a handshake with itself, of which the first in a program takes 3 ms more than others: for a program that is forked from."""
    with contextlib.ExitStack() as ends:
        for connection, role in zip(socket.socketpair(), (ROLES[0], None), strict=True):
            ends.enter_context(connection)
            with contextlib.suppress(OSError):  # nobody answers
                open_encrypted(connection, bytes(SECRET), role, REHEARSED_FOR)


def listen(address: str) -> socket.socket:
    """Return where the home of a guest connects; a free port. Errors: OSError."""
    listener = socket.create_server((address, 0), backlog=8)
    unpaced(listener)
    return listener


def greet(connection: socket.socket, secret: bytes, timeout: float = 10.0) -> Encrypted:
    """Return the connection of an accepted caller that proves itself; it has timeout (seconds) on every operation.

    Errors: WireError, TimeoutError, OSError: it does not; the connection is closed.
    """
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        encrypted = open_encrypted(connection, secret, None, HELLO_TIMEOUT, _plain)
        if encrypted.role not in ROLES:
            encrypted.close()
            raise WireError("the caller wants something unknown")
        settle_pace(connection)
        _watch(connection, encrypted.role)
        encrypted.settimeout(timeout)
        return encrypted
    except NotProven:
        connection.close()
        raise WireError("the caller does not hold the secret of this guest") from None
    except BaseException:
        connection.close()
        raise


def _has_room(directory: Path, size: int) -> bool:
    """Whether a part of what the directory lies on stays free for whatever else needs it."""
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize - size >= disk.f_blocks * disk.f_frsize // FREE


class Refused(WireError):
    """The other side said why it will not."""


class Channel:
    """One move's conversation: messages with an ``op``, and byte streams between them."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def has_word(self) -> bool:
        """Return whether something of the other side's is here, or it has gone. Never waits."""
        return holds(self.connection) or bool(ready([self.connection.fileno()], 0.0))

    def send(self, op: str, **fields: object) -> None:
        """Errors: OSError, TimeoutError."""
        frames.send(self.connection, {"op": op, **fields})

    def next(self, timeout: float | None = None) -> Message:
        """Return the next message. Errors: Refused with the peer's sentence, WireError, TimeoutError."""
        if timeout is not None:
            self.connection.settimeout(timeout)
        message = frames.receive(self.connection)
        if message.get("op") == "refused":
            raise Refused(str(message.get("reason")))
        if not isinstance(message.get("op"), str):
            raise WireError("a message says nothing")
        return message

    def expect(self, op: str, timeout: float | None = None) -> Message:
        """The next message, which must be op. Errors: as next()."""
        message = self.next(timeout)
        if message.get("op") != op:
            raise WireError(f"the peer said {message.get('op')!r} where {op!r} was due")
        return message

    def send_directory(self, directory: Path) -> int:
        """Streams the plain files of a directory; returns their bytes."""
        total = 0
        for path in sorted(directory.iterdir()):
            size = path.stat().st_size
            self.send("file", name=path.name, size=size)
            with path.open("rb") as source:
                if self.connection.sendfile(source, 0, size) != size:
                    raise WireError(f"{path.name} became shorter while it was sent")
            total += size
        self.send("end", bytes=total)
        return total

    def receive_directory(self, directory: Path, most: int) -> int:
        """Files of a stream into directory, plain names only, `most` bytes of them; returns their bytes. Errors: WireError: there are more,
        or there is no room, before a byte of what is too much is taken."""
        total = 0
        for _ in range(MOST_IMAGES + 1):
            message = frames.receive(self.connection)
            if message.get("op") == "end":
                return total
            name, size = message.get("name"), message.get("size")
            if message.get("op") != "file" or not isinstance(name, str) or not _IMAGE.fullmatch(name) or type(size) is not int or size < 0:
                raise WireError("the stream of images is broken")
            total += size
            if total > most:
                raise WireError(f"its images are larger than {most:,} bytes, which is what a process of its announced size may bring")
            if not _has_room(directory, size):
                raise WireError(f"the node has no room for images of {size:,} bytes")
            try:
                with (directory / name).open("xb", buffering=0) as target:
                    for chunk in self.chunks(size):
                        view = memoryview(chunk)
                        while view:
                            view = view[target.write(view) :]
            except FileExistsError:
                raise WireError("the stream of images is broken") from None
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise WireError(f"the node has no room for images of {size:,} bytes") from None
        raise WireError(f"it brings more than {MOST_IMAGES} images")

    def chunks(self, size: int) -> Iterator[bytes]:
        """size bytes of the stream, piece by piece. Errors: WireError if it ends early."""
        buffer = memoryview(bytearray(min(size, _CHUNK) or 1))
        left = size
        while left:
            count = self.connection.recv_into(buffer[: min(left, len(buffer))])
            if count == 0:
                raise WireError("the peer closed the connection in the middle of a stream")
            yield bytes(buffer[:count])
            left -= count

    def send_block(self, data: bytes) -> None:
        """One block of bytes with its length in front."""
        self.connection.sendall(_STREAM.pack(len(data)) + data)

    def receive_block(self, limit: int) -> bytes:
        """Return the block that send_block sent. Errors: WireError, before anything is read, if it is longer than limit (bytes)."""
        (size,) = _STREAM.unpack(frames.receive_exactly(self.connection, _STREAM.size))
        if size > limit:
            raise WireError(f"the peer announced a block of {size} bytes, more than {limit}")
        return frames.receive_exactly(self.connection, size)

    def send_stream(self, size: int, read: Callable[[int], bytes]) -> None:
        """size bytes got piece by piece from read(limit)."""
        left = size
        while left:
            data = read(min(left, _CHUNK))
            if not data:
                raise WireError("a file became shorter while it was sent")
            self.connection.sendall(data)
            left -= len(data)

    def close(self) -> None:
        """Closes the connection; the other side takes that as the end of this move."""
        self.connection.close()
