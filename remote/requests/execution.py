"""A guest's thread executes a program: home makes the call, by the stub itself, and its kernel says whether it can be.

If it cannot, the guest has the errno and goes on. If it can, the stub is the new program, and the guest is over: it stands still, sends
what of it the new program takes over, and makes room.
"""

from __future__ import annotations

import errno
import logging
import struct
from typing import Protocol

from kernel_helpers.link.ends.away import AwayLink
from kernel_helpers.link.ends.events import Event
from kernel_helpers.process import tracing
from kernel_helpers.process.syscalls import SYS
from remote.tracee.tracee import Tracee
from wire.control import Control, pack
from wire.frames import Message

log = logging.getLogger("remote")

CALLS = (SYS.execve, SYS.execveat)


class Programs(Protocol):
    """What comes in the place of a guest that is over (remote/moves/program.py)."""

    def place(self) -> Message:
        """Return what home has to know of the place that expect() makes; nothing, if that is not known."""

    def expect(self) -> None:
        """The guest is over, and another program comes in its place: that needs an empty process, while its home looks at it."""

    def take(self, request: Message) -> None:
        """It comes by the link, into the place that has been made, if it can."""

    def run(self, decided: Message) -> None:
        """It is the guest by now, and runs."""


class Executions:
    """The calls of one guest."""

    def __init__(self, tracee: Tracee) -> None:
        self._tracee = tracee
        self._waiting: list[Event] = []

    def takes(self, event: Event) -> bool:
        """Return whether the call that is parked is to execute a program, and is made in this way."""
        return event.code in CALLS and isinstance(self._tracee.link, AwayLink) and event.tid != 0

    def begin(self, event: Event, waits: bool) -> None:
        """`waits`: for again(), the guest being about to stand still."""
        if waits:
            self._waiting.append(event)
            return
        link, host = self._tracee.link, self._tracee.host_tid(event.tid)
        if host is None:
            return
        assert isinstance(link, AwayLink)
        try:
            state = tracing.signal_state(self._tracee.pid, host)
        except ProcessLookupError:
            return
        link.send(Control.EXECUTE, event.tid, pack(blocked=state.blocked, ignored=state.ignored), barrier=True)
        try:
            link.forward(event.tid, event.code, struct.unpack("<6Q", event.data))
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise
            self._tracee.go_home(event.tid, event.code)

    def again(self) -> list[Event]:
        """Return the calls that waited, if they still do: the move that the guest was to stand still for is off."""
        waiting, self._waiting = self._waiting, []
        parked = self._tracee.link.parked()
        return [event for event in waiting if event.tid in parked and parked[event.tid].number == event.code]

    def forget(self) -> None:
        """The guest has stood still: its calls are made again."""
        self._waiting.clear()
