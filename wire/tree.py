"""The members of one program, a deputy's or a remote's: the process that it was started for, and the children born away.

They share their loop. All else (link, socket towards mosd, moves) each of them has for itself, as if it were alone.
"""

from __future__ import annotations

import logging
import selectors
from typing import Generic, Protocol, TypeVar

from wire.newborns import Newborn, Newborns
from wire.waking import Turns, Waker

TICK = 0.25
"""Seconds between looks at time-outs."""


class Member(Newborn, Protocol):
    """A deputy or a remote."""

    def tick(self) -> None:
        """Once in each turn of the loop."""

    def end(self) -> None:
        """Takes away what was made for it."""


M = TypeVar("M", bound=Member)


class Tree(Generic[M]):
    """See the module. To be made in the main thread, one for each process."""

    def __init__(self, log: logging.Logger) -> None:
        self.selector = selectors.DefaultSelector()
        self.waker = Waker(self.selector)
        self.members: list[M] = []
        self.newborns = Newborns()
        self._log = log

    def live(self) -> None:
        """Until every member has finished."""
        turns = Turns(self.selector, self._log)
        try:
            while self.members:
                patience = self.newborns.patience
                turns.turn(TICK if patience is None else min(TICK, patience), self._tick)
        finally:
            while self.members:
                self.members.pop().end()

    def _tick(self) -> None:
        for member in list(self.members):
            member.tick()
        self.newborns.tell(self.members)
        for member in list(self.members):
            if member.finished:
                self.members.remove(member)
                try:
                    member.end()
                finally:
                    self.left(member)

    def left(self, member: M) -> None:
        """A member has ended, and the others go on."""
