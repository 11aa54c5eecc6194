"""What makes the select loop of a deputy or a remote turn besides its sockets: signals, and other threads."""

from __future__ import annotations

import os
import selectors
import signal


class Waker:
    """A pipe in the loop's selector. Every signal that Python handles writes to it, SIGCHLD (a ptrace stop) among them.

    To be made in the main thread, one for each process.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        selector.register(self._read, selectors.EVENT_READ, self.drain)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def fileno(self) -> int:
        """The end that becomes readable, for who waits elsewhere than in the loop."""
        return self._read

    def wake(self) -> None:
        """Makes the loop turn; callable from any thread."""
        try:
            os.write(self._write, b"w")
        except BlockingIOError:
            pass  # full: it will turn

    def drain(self) -> None:
        """Takes what was written; the loop does so by itself."""
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            pass
