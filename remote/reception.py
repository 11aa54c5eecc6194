"""Where the home of one guest connects.

Callers are let in, and have to prove themselves, in threads of their own: neither does one that says nothing hold up the guest's
signals, nor has a deputy to wait for a loop that is busy with another guest of the same tree. A caller speaks first. One that says nothing
costs a descriptor, until it has been silent for long, or others are, too; of those that have begun only so many are heard at once.
"""

from __future__ import annotations

import logging
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from kernel_helpers.stream.stream import Connection, Encrypted
from wire import channel
from wire.frames import WireError
from wire.logs import start_thread
from wire.waking import ready

log = logging.getLogger("remote")

SILENT_MOST = 64
"""Callers that have not said anything; of more, the oldest is dropped."""
GREETED_MOST = 16
"""Callers that are about to prove themselves; of more, the oldest is dropped."""
LOOK = 5.0
"""Seconds between two checks for callers that have been silent for too long."""
REFUSAL_LINES = 60.0
"""Seconds between two lines of the log about callers that were refused."""

Caller = tuple[Connection, str]
"""A proven connection and its role."""


class Reception:
    """Listens on a port of its own. wake is called when a caller waits. Errors: OSError."""

    def __init__(self, address: str, secret: bytes, wake: Callable[[], None], selector: selectors.BaseSelector | None = None) -> None:
        """selector: of the loop, if nobody calls for a while, or ever: that of the first caller is used."""
        self._secret = secret
        self._wake = wake
        self._waiting: queue.SimpleQueue[Caller] = queue.SimpleQueue()
        self._listener = channel.listen(address)
        self._is_open = True
        self._lock = threading.Lock()
        self._greeted: list[socket.socket] = []
        self._refused = 0
        self._next_line = 0.0
        self.take_pages: Callable[[Encrypted], None] | None = None
        """who has a connection of role page at once: the loop may wait for a page itself"""
        self.port = int(self._listener.getsockname()[1])
        self._selector = selector
        if selector is None:
            start_thread("reception", self._accept)
        else:
            selector.register(self._listener, selectors.EVENT_READ, self._begin_accepting)

    def _begin_accepting(self) -> None:
        self._leave_loop()
        start_thread("reception", self._accept)

    def _leave_loop(self) -> None:
        if self._selector is not None:
            self._selector.unregister(self._listener)
            self._selector = None

    def _accept(self) -> None:
        silent: dict[socket.socket, float] = {}
        number = self._listener.fileno()
        try:
            while self._is_open:
                heard = ready([number, *(connection.fileno() for connection in silent)], LOOK)
                if not self._is_open:
                    return
                self._hear(silent, set(heard))
                if number in heard:
                    self._let_in(silent)
        finally:
            for connection in silent:
                connection.close()

    def _let_in(self, silent: dict[socket.socket, float]) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if self._is_open:
                log.warning("a caller did not get in: %s", error)  # no descriptor is left, say
                time.sleep(0.1)
            return
        if len(silent) >= SILENT_MOST:
            self._drop_silent(silent, next(iter(silent)))
        silent[connection] = time.monotonic()

    def _hear(self, silent: dict[socket.socket, float], heard: set[int]) -> None:
        for connection, since in list(silent.items()):
            if connection.fileno() in heard:
                del silent[connection]
                self._begin(connection)
            elif time.monotonic() - since > channel.HELLO_TIMEOUT:
                self._drop_silent(silent, connection)

    def _drop_silent(self, silent: dict[socket.socket, float], connection: socket.socket) -> None:
        del silent[connection]
        connection.close()
        self._note("it said nothing")

    def _begin(self, connection: socket.socket) -> None:
        with self._lock:
            if len(self._greeted) >= GREETED_MOST:
                with suppress(OSError):
                    self._greeted.pop(0).shutdown(socket.SHUT_RDWR)  # its thread closes it
            self._greeted.append(connection)
        start_thread("greeting", self._greet, connection)

    def _greet(self, connection: socket.socket) -> None:
        try:
            encrypted = channel.greet(connection, self._secret)
        except (OSError, WireError) as error:
            self._note(str(error))
            return
        finally:
            with self._lock:
                if connection in self._greeted:
                    self._greeted.remove(connection)
        if encrypted.role == "page" and (take := self.take_pages) is not None:
            take(encrypted)
            return
        self._waiting.put((encrypted, encrypted.role))
        if not self._is_open:
            self._drop()
        self._wake()

    def _note(self, reason: str) -> None:
        """In the log, but not for each stranger."""
        with self._lock:
            self._refused += 1
            if time.monotonic() < self._next_line:
                return
            self._next_line = time.monotonic() + REFUSAL_LINES
            count = self._refused
        log.warning("a caller was refused (the %dth of them): %s", count, reason)

    def next(self) -> Caller | None:
        """Return the next caller, if one waits."""
        with suppress(queue.Empty):
            return self._waiting.get_nowait()
        return None

    def close(self) -> None:
        """Lets nobody in any more."""
        self._is_open = False
        self._leave_loop()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for callers
        self._listener.close()
        self._drop()

    def _drop(self) -> None:
        while (caller := self.next()) is not None:
            caller[0].close()
