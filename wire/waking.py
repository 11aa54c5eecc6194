"""What makes the select loop of a deputy or a remote turn besides its sockets: signals, and other threads."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import selectors
import signal
import threading
from collections.abc import Callable, Iterable

MISHAPS = 20
"""So many in a row, and the loop gives up."""


leases_broken = 0
"""How often the kernel has reported one."""


def _note_lease(*_: object) -> None:
    global leases_broken
    leases_broken += 1


def ready(descriptors: Iterable[int], timeout: float) -> list[int]:
    """Those that are readable, or closed, within `timeout` seconds. Any number of a descriptor is right, unlike with select(2)."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(max(0.0, timeout) * 1000)]


class Waker:
    """A pipe in the loop's selector. Every signal that Python handles writes to the one of the main thread, SIGCHLD (a ptrace stop) and
    SIGIO (a lease is to be given back) among them; a host (wire/host.py) passes that on to those of its other threads.

    One for each thread that has a loop, to be made there.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._is_closed = False
        selector.register(self._read, selectors.EVENT_READ, self.drain)
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            signal.signal(signal.SIGCHLD, lambda *_: None)
            signal.signal(signal.SIGIO, _note_lease)

    def fileno(self) -> int:
        """The end that becomes readable, for who waits elsewhere than in the loop."""
        return self._read

    def wake(self) -> None:
        """Makes the loop turn, if it is not over; callable from any thread."""
        with self._lock, contextlib.suppress(BlockingIOError):  # full: it will turn
            if not self._is_closed:
                os.write(self._write, b"w")

    def close(self) -> None:
        """The loop is over. Not for the main thread's, which signals write to."""
        with self._lock:
            self._is_closed = True
            os.close(self._read)
            os.close(self._write)

    def drain(self) -> None:
        """Takes what was written; the loop does so by itself."""
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            pass


class Turns:
    """Turns a select loop on which a process's life hangs: what nobody expected is logged and survived, unless it comes time
    after time."""

    def __init__(self, selector: selectors.BaseSelector, log: logging.Logger) -> None:
        self._selector = selector
        self._log = log
        self._mishaps = 0

    def turn(self, timeout: float, tick: Callable[[], None]) -> None:
        """Calls the handlers of what is ready within timeout (seconds), then tick. Errors: whatever went wrong MISHAPS times in
        a row."""
        try:
            for key, _ in self._selector.select(timeout):
                key.data()
            tick()
            self._mishaps = 0
        except Exception:
            self._mishaps += 1
            if self._mishaps >= MISHAPS:
                raise
            self._log.exception("this should not have happened; going on")
