"""The unix socket of a deputy or a remote, for its node daemon, in a single-threaded select loop.

The daemon may be killed and come back at any time: it connects again; answers and events with no daemon there are dropped,
``status`` reports the state anew.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections.abc import Callable
from pathlib import Path

from wire import frames
from wire.frames import Assembler, Message, WireError
from wire.waking import ready


class LocalServer:
    """Listens at path (mode 0600) and serves one node daemon at a time, the newest."""

    def __init__(self, path: Path, selector: selectors.BaseSelector, handle: Callable[[Message], None], waits: bool = False) -> None:
        """waits: only listen() is to make the socket."""
        self._path = path
        self._selector = selector
        self._handle = handle
        self._listener: socket.socket | None = None
        self._inode = 0
        self._connection: socket.socket | None = None
        self._assembler = Assembler()
        self._greeting: Message | None = None
        if not waits:
            self.listen()

    def listen(self) -> None:
        """Makes the socket, if there is none. Errors: OSError."""
        if self._listener is not None:
            return
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._path))
        os.chmod(self._path, 0o600)
        self._inode = self._path.stat().st_ino
        self._listener.listen(8)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def greet(self, message: Message) -> None:
        """A message that every daemon that connects gets first (and the present one now)."""
        self._greeting = message
        self.send(message)

    @property
    def is_connected(self) -> bool:
        """Whether a daemon is there."""
        return self._connection is not None

    @property
    def descriptors(self) -> list[int]:
        """Descriptors that become readable when a daemon connects or sends a message, for a caller that polls outside of the loop."""
        return [end.fileno() for end in (self._listener, self._connection) if end is not None]

    def serve(self, descriptor: int) -> None:
        """Take what has come to one of `descriptors`, which is readable."""
        if self._connection is not None and self._connection.fileno() == descriptor:
            self._read()
        elif self._listener is not None and self._listener.fileno() == descriptor:
            self._accept()

    def _accept(self) -> None:
        assert self._listener is not None
        if not ready([self._listener.fileno()], 0):  # serve() has taken it since the loop's select()
            return
        connection, _ = self._listener.accept()
        self._drop()
        connection.settimeout(2.0)
        self._connection = connection
        self._assembler = Assembler()
        self._selector.register(connection, selectors.EVENT_READ, self._read)
        if self._greeting is not None:
            self.send(self._greeting)

    def _read(self) -> None:
        connection = self._connection
        if connection is None or not ready([connection.fileno()], 0):
            return
        try:
            data = connection.recv(65536)
            if not data:
                raise WireError("the daemon closed the connection")
            messages = self._assembler.feed(data)
        except (OSError, WireError):
            self._drop()
            return
        for message in messages:
            self._handle(message)

    def send(self, message: Message) -> None:
        """Sends to the daemon if one is there."""
        if self._connection is None:
            return
        try:
            frames.send(self._connection, message)
        except (OSError, WireError):
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._selector.unregister(self._connection)
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Stops listening and removes the socket's file."""
        self._drop()
        if self._listener is None:
            return
        self._selector.unregister(self._listener)
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:  # else it is a later one's
                self._path.unlink()
