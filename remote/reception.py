"""Where the home of one guest connects.

Callers are let in, and have to prove themselves, in threads of their own: neither does one that says nothing hold up the guest's
signals, nor has a deputy to wait for a loop that is busy with another guest of the same tree.
"""

from __future__ import annotations

import logging
import queue
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from wire import channel
from wire.frames import WireError
from wire.logs import start_thread

log = logging.getLogger("remote")

Caller = tuple[socket.socket, str]
"""A proven connection and its role."""


class Reception:
    """Listens on a port of its own. wake is called when a caller waits. Errors: OSError."""

    def __init__(self, address: str, secret: bytes, wake: Callable[[], None]) -> None:
        self._secret = secret
        self._wake = wake
        self._waiting: queue.SimpleQueue[Caller] = queue.SimpleQueue()
        self._listener = channel.listen(address)
        self._is_open = True
        self.take_pages: Callable[[socket.socket], None] | None = None
        """who has a connection of role page at once: the loop may wait for a page itself"""
        self.port = int(self._listener.getsockname()[1])
        start_thread("reception", self._accept)

    def _accept(self) -> None:
        while self._is_open:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if not self._is_open:
                    return
                log.warning("a caller did not get in: %s", error)  # no descriptor is left, say
                time.sleep(0.1)
                continue
            start_thread("greeting", self._greet, connection)

    def _greet(self, connection: socket.socket) -> None:
        try:
            role = channel.greet(connection, self._secret)
        except (OSError, WireError) as error:
            log.warning("a caller was refused: %s", error)
            return
        if role == "page" and (take := self.take_pages) is not None:
            take(connection)
            return
        self._waiting.put((connection, role))
        if not self._is_open:
            self._drop()
        self._wake()

    def next(self) -> Caller | None:
        """The next caller, if one waits."""
        with suppress(queue.Empty):
            return self._waiting.get_nowait()
        return None

    def close(self) -> None:
        """Lets nobody in any more."""
        self._is_open = False
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept()
        self._listener.close()
        self._drop()

    def _drop(self) -> None:
        while (caller := self.next()) is not None:
            caller[0].close()
