"""The unix socket of a deputy or a remote, for its node daemon, in a single-threaded select loop.

The daemon may be killed and come back at any time: it connects again; answers and events with no daemon there are dropped,
the state is told anew by ``status``.
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


class LocalServer:
    """Listens at path (mode 0600) and serves one node daemon at a time, the newest."""

    def __init__(self, path: Path, selector: selectors.BaseSelector, handle: Callable[[Message], None]) -> None:
        self._path = path
        self._selector = selector
        self._handle = handle
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        os.chmod(path, 0o600)
        self._inode = path.stat().st_ino
        self._listener.listen(8)
        self._connection: socket.socket | None = None
        self._assembler = Assembler()
        self._greeting: Message | None = None
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def greet(self, message: Message) -> None:
        """A message that every daemon that connects is told first (and the present one now)."""
        self._greeting = message
        self.tell(message)

    @property
    def is_connected(self) -> bool:
        """Whether a daemon is there."""
        return self._connection is not None

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        self._drop()
        connection.settimeout(2.0)
        self._connection = connection
        self._assembler = Assembler()
        self._selector.register(connection, selectors.EVENT_READ, self._read)
        if self._greeting is not None:
            self.tell(self._greeting)

    def _read(self) -> None:
        connection = self._connection
        if connection is None:
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

    def tell(self, message: Message) -> None:
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
        self._selector.unregister(self._listener)
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:  # else it is a later one's
                self._path.unlink()
