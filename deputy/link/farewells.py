"""Ends guests whose processes have ended: each remote is informed over a link that stays until the remote has heard it.

A connection that closes may take with it what the other side has not read, and one that is inside of another guest's ends with that guest.
The loop waits for neither.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from deputy.link.guestlink import GuestLink
from kernel_helpers.common.errors import FarhomeError
from wire.control import Control
from wire.logs import start_thread
from wire.waking import ready

LOOK = 0.25
"""Seconds between two checks of what no descriptor reports."""
LAST = 1.0
"""Seconds that the end of the program waits for what is left."""


@dataclass
class _Ending:
    link: GuestLink
    until: float


class Farewells:
    """Of one tree. A remote that does not hear it ends the guest when it has not heard its home for too long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._endings: list[_Ending] = []
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_running = self._is_closed = False
        self._has_ended = threading.Condition(self._lock)

    def say(self, link: GuestLink) -> None:
        """The process has ended; the link is ours from here on."""
        with suppress(OSError, FarhomeError):
            link.send(Control.KILL)
        link.wake = self._wake
        with self._lock:
            is_late = self._is_closed
            if not is_late:
                self._endings.append(_Ending(link, time.monotonic() + link.timeout))
                if not self._is_running:
                    self._is_running = True
                    start_thread("farewells", self._run)
        if is_late:
            link.close()
        else:
            self._wake()

    def close(self) -> None:
        """The program ends: what is not heard within a moment is not said."""
        end = time.monotonic() + LAST
        with self._lock:
            while self._endings and self._has_ended.wait(max(0.0, end - time.monotonic())):
                pass
            self._is_closed = True
            self._wake()
            while self._is_running and self._has_ended.wait(LAST):
                pass
            if not self._is_running:
                os.close(self._event)
                self._event = -1

    def _wake(self) -> None:
        with suppress(OSError):
            os.eventfd_write(self._event, 1)

    def _run(self) -> None:
        while True:
            with self._lock:
                endings = list(self._endings)
                is_closed = self._is_closed
            over = [one for one in endings if is_closed or _is_over(one)]
            for one in over:
                one.link.close()
            with self._lock:
                self._endings = [one for one in self._endings if one not in over]
                if self._is_closed and not self._endings:
                    self._is_running = False
                self._has_ended.notify_all()
                if not self._is_running:
                    return
            left = [one.link.home.event_fd for one in endings if one not in over]
            ready([self._event, *left], LOOK if left else 60.0)
            with suppress(BlockingIOError):
                os.eventfd_read(self._event)


def _is_over(ending: _Ending) -> bool:
    try:
        return ending.link.is_heard() or time.monotonic() > ending.until
    except (FarhomeError, OSError):
        return True


__all__ = ["Farewells"]
