"""Data connections, encrypted and proven by a secret."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import BinaryIO, Self

from kernel_helpers.common import library

ROLE_ROOM = 16
_CHUNK = 1 << 20


@functools.cache
def _native() -> ctypes.CDLL:
    pointer, i, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    return library.functions(
        ("farhome_stream_open", i, [i, i, ctypes.c_char_p, ctypes.c_char_p, size, i, i, pointer]),
        ("farhome_stream_read", ctypes.c_long, [pointer, pointer, size, i]),
        ("farhome_stream_wear_key", None, [pointer]),
        ("farhome_stream_write", i, [pointer, ctypes.c_char_p, size, i]), ("farhome_stream_is_secret", i, [pointer]),
        ("stream_plain", pointer, [i]), ("stream_release", None, [pointer]), ("stream_holds", ctypes.c_bool, [pointer]),
        ("stream_splices", ctypes.c_bool, [pointer]),
    )  # fmt: skip


class NotProven(Exception):
    """The other side does not hold the secret, or speaks another protocol."""


def _milliseconds(timeout: float | None) -> int:
    return -1 if timeout is None else int(max(0.0, timeout) * 1000)


def _raise(result: int, what: str) -> None:
    if result == -errno.ETIMEDOUT:
        raise TimeoutError(what)
    if result == -errno.EBADMSG:
        raise ConnectionError("what came was changed on its way")
    if result < 0:
        raise OSError(-result, f"{os.strerror(-result)}: {what}")


class Encrypted:
    """A data connection after its handshake. As a socket's: blocking, with a timeout (seconds) for each operation. One thread may read
    while another one writes, and any may close it."""

    def __init__(self, connection: socket.socket, handle: int, role: str) -> None:
        """Use open_encrypted()."""
        self.role = role
        self._socket = connection
        self._handle = handle
        self._timeout: float | None = None
        self._lock = threading.Lock()
        self._uses = 0
        self._is_closed = False
        self._finalizer = weakref.finalize(self, _native().stream_release, handle)
        self._finalizer.atexit = False  # threads may be at it

    @contextmanager
    def lend(self) -> Iterator[int]:
        """The C object, which is there meanwhile. Errors: OSError: it is closed."""
        with self._lock:
            if self._is_closed:
                raise OSError(errno.EBADF, "the connection is closed")
            self._uses += 1
        try:
            yield self._handle
        finally:
            with self._lock:
                self._uses -= 1
                if self._is_closed and not self._uses:
                    self._end()

    def give(self) -> int:
        """Return the C object, with its socket, for who ends it. Errors: OSError: it is closed, or in use."""
        with self._lock:
            if self._is_closed or self._uses:
                raise OSError(errno.EBADF, "the connection is closed, or in use")
            self._is_closed = True
            self._finalizer.detach()
            self._socket.detach()
            return self._handle

    def _end(self) -> None:
        self._finalizer()
        self._socket.close()

    def close(self) -> None:
        """Who uses it still finds it at its end. Twice is no error."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._uses:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            else:
                self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def fileno(self) -> int:
        """To wait at; -1 when it is closed. See also holds."""
        return -1 if self._is_closed else self._socket.fileno()

    def getpeername(self) -> tuple[str, int]:
        """Return address and port. Errors: OSError."""
        host, port, *_ = self._socket.getpeername()
        return str(host), int(port)

    def settimeout(self, timeout: float | None) -> None:
        """For what is read and written from now on; None: no bound."""
        self._timeout = timeout

    def shutdown(self, how: int) -> None:
        """Makes threads return that read or write. Errors: OSError."""
        self._socket.shutdown(how)

    @property
    def holds(self) -> bool:
        """Whether something has come that nobody has read, though nothing may come any more where fileno() waits."""
        with self.lend() as handle:
            return bool(_native().stream_holds(handle))

    @property
    def splices(self) -> bool:
        """Whether what is put into its socket goes through: the kernel encrypts."""
        with self.lend() as handle:
            return bool(_native().stream_splices(handle))

    @property
    def is_secret(self) -> bool:
        """Whether nobody can read what goes through. (Nobody can change it, in any case.)"""
        with self.lend() as handle:
            return bool(_native().farhome_stream_is_secret(handle))

    def wear_key(self) -> None:
        """Has another key encrypt what is written next, as happens after some million records."""
        with self.lend() as handle:
            _native().farhome_stream_wear_key(handle)

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """Some bytes into buffer; how many, 0 at the end. Errors: OSError, TimeoutError."""
        size = len(buffer)
        room = (ctypes.c_char * size).from_buffer(buffer)
        end = None if self._timeout is None else time.monotonic() + self._timeout
        with self.lend() as handle:
            while True:
                result = _native().farhome_stream_read(handle, room, size, _milliseconds(None if end is None else end - time.monotonic()))
                if result != -errno.EINTR:
                    break
        _raise(result, "nothing came")
        return int(result)

    def recv(self, most: int) -> bytes:
        """Some bytes; none at the end. Errors: as recv_into()."""
        buffer = bytearray(most)
        return bytes(buffer[: self.recv_into(buffer)])

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        """All of it; the timeout is for each time without progress. Errors: OSError, TimeoutError."""
        with self.lend() as handle:
            result = _native().farhome_stream_write(handle, bytes(data), len(data), _milliseconds(self._timeout))
        _raise(result, "what was sent is not taken")

    def sendfile(self, file: BinaryIO, offset: int, count: int) -> int:
        """So much of a file; how much there was. Errors: OSError, TimeoutError."""
        file.seek(offset)
        sent = 0
        while sent < count and (data := file.read(min(_CHUNK, count - sent))):
            self.sendall(data)
            sent += len(data)
        return sent


Connection = socket.socket | Encrypted
"""Sockets as they are serve tests, and the unix sockets of a node."""


def open_encrypted(connection: socket.socket, secret: bytes, role: str | None, timeout: float, plain: bool = False) -> Encrypted:
    """Make the handshake, within `timeout` seconds, by who has connected and wants that role, or (None) by who has accepted. plain: it
    need not be encrypted, if the other side does not want it either.

    Errors: NotProven, OSError (TimeoutError). The socket is the Encrypted's afterwards, but not after an error.
    """
    name = ctypes.create_string_buffer((role or "").encode(), ROLE_ROOM)
    made = ctypes.c_void_p()
    result = _native().farhome_stream_open(
        connection.fileno(), role is None, name, secret, len(secret), plain, _milliseconds(timeout), ctypes.byref(made)
    )
    if result == -errno.EPROTO:
        raise NotProven
    _raise(result, "the handshake of a data connection")
    assert made.value is not None
    return Encrypted(connection, made.value, name.value.decode("ascii", "replace"))


@contextmanager
def lent(connection: Connection | int) -> Iterator[int]:
    """The C object of a connection, for as long as it is used; a plain one of what is only a socket, or its descriptor. Errors: OSError."""
    if isinstance(connection, Encrypted):
        with connection.lend() as handle:
            yield handle
        return
    number = connection if isinstance(connection, int) else connection.fileno()
    handle = _native().stream_plain(number)
    if not handle:
        raise MemoryError("no memory for a connection")
    try:
        yield int(handle)
    finally:
        _native().stream_release(handle)


def given(connection: Connection | int) -> int:
    """Return the C object of a connection, for C code that keeps it, and closes it. Errors: OSError."""
    if isinstance(connection, Encrypted):
        return connection.give()
    handle = _native().stream_plain(connection if isinstance(connection, int) else connection.detach())
    if not handle:
        raise MemoryError("no memory for a connection")
    return int(handle)


def holds(connection: Connection) -> bool:
    """Return whether something can be read though the descriptor may not say so."""
    return isinstance(connection, Encrypted) and connection.fileno() >= 0 and connection.holds


def splices(connection: Connection) -> bool:
    """Return whether a pipe can be emptied into its socket."""
    return connection.splices if isinstance(connection, Encrypted) else True
