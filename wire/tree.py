"""The members of one program, a deputy's or a remote's: the process that it was started for, and the children born away.

They share their loop. All else (link, socket towards mosd, moves) each of them has for itself, as if it were alone.
"""

from __future__ import annotations

import logging
import selectors
import threading
import time
from typing import Generic, Protocol, TypeVar

from wire.newborns import Newborn, Newborns
from wire.waking import Turns, Waker

TICK, CALM = 0.25, 4.0
"""Seconds between looks at time-outs; as long as all members are at rest. To wake up costs more than the look."""
LATER, LATE_MOST = 0.002, 32
"""Seconds after which a member that has finished is ended: what others wait for because of that comes first. Of more members at once."""


class Member(Newborn, Protocol):
    """A deputy or a remote."""

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing goes on with it that its descriptors would not report."""

    def tick(self) -> None:
        """Once in each turn of the loop."""

    def end(self) -> None:
        """Takes away what was made for it."""


M = TypeVar("M", bound=Member)


class Tree(Generic[M]):
    """See the module. Its thread makes it, is the tracer of all that it traces, and lives as long."""

    def __init__(self, log: logging.Logger) -> None:
        self.selector: selectors.BaseSelector = selectors.DefaultSelector()
        self.waker = Waker(self.selector)
        self.thread = threading.get_native_id()
        """the tracer's id"""
        self.members: list[M] = []
        self.newborns = Newborns()
        self._over: list[tuple[M, float]] = []
        """of the members, those that have finished, and when they are to be ended: as time.monotonic()"""
        self._log = log
        self._is_stopped = False

    def stop(self) -> None:
        """Has it end at once, whatever its members are doing; callable from any thread."""
        self._is_stopped = True
        self.waker.wake()

    def close(self) -> None:
        """What is left of it, if its program goes on without it."""
        self.selector.close()
        self.waker.close()

    def live(self) -> None:
        """Until every member has finished."""
        turns = Turns(self.selector, self._log)
        try:
            while self.members and not self._is_stopped:
                patience, most = self.newborns.patience, CALM if all(member.is_at_rest for member in self.members) else TICK
                if self._over:
                    most = min(most, max(0.0, self._over[0][1] - time.monotonic()))
                turns.turn(most if patience is None else min(most, patience), self._tick)
        finally:
            while self.members:
                try:
                    self.members.pop().end()
                except Exception:
                    self._log.exception("not all of it could be taken away")

    def _tick(self) -> None:
        over = [member for member, _ in self._over]
        for member in list(self.members):
            if member not in over:
                member.tick()
        self.newborns.report(self.members)
        now = time.monotonic()
        self._over += [(member, now + LATER) for member in self.members if member.finished and member not in over]
        while self._over and (self._over[0][1] <= now or len(self._over) > LATE_MOST or len(self._over) == len(self.members)):
            member, _ = self._over.pop(0)
            self.members.remove(member)
            try:
                member.end()
            finally:
                self.left(member)

    def left(self, member: M) -> None:
        """A member has ended, and the others go on."""
