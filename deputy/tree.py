"""The processes of one deputy program: the one that it was started for, and the children that it has had away.

A child that is born away is born in the stub, too, whose tracer we are: so it is ours from its first instruction, in the same loop.
All else (link, socket towards mosd, moves) each of them has for itself, as if it were alone.
"""

from __future__ import annotations

import logging
import selectors
import signal
from dataclasses import replace

from deputy.deputy import Deputy, Options
from wire.newborns import Newborns
from wire.waking import Turns, Waker

log = logging.getLogger("deputy")

TICK = 0.25
"""Seconds between looks at time-outs."""


class Tree:
    """See the module."""

    def __init__(self, options: Options) -> None:
        self.selector = selectors.DefaultSelector()
        self.wake = Waker(self.selector).wake
        self.deputies: list[Deputy] = []
        self.newborns = Newborns()
        self._first = options

    def run(self) -> int:
        """Until every process is home or has ended. Returns 1 when there was none."""
        try:
            self.deputies.append(Deputy(self._first, self))
        except ProcessLookupError:
            log.error("process %d is gone", self._first.pid)
            return 1
        signal.signal(signal.SIGIO, lambda number, frame: None)  # of a lease that is held for a moment (deputy/mapping.py)
        turns = Turns(self.selector, log)
        try:
            while self.deputies:
                patience = self.newborns.patience
                turns.turn(TICK if patience is None else min(TICK, patience), self._tick)
        finally:
            while self.deputies:
                self.deputies.pop().end()
        return 0

    def _tick(self) -> None:
        for deputy in list(self.deputies):
            deputy.tick()
        self.newborns.tell(self.deputies)
        for deputy in list(self.deputies):
            if deputy.finished:
                self.deputies.remove(deputy)
                deputy.end()

    def is_free(self, deputy: Deputy) -> bool:
        """Whether its guest's remote can be talked to: it serves all guests of the tree, and waits while a program comes in the place of
        another."""
        return all(other is deputy or other.held is None for other in self.deputies)

    def bear(self, parent: Deputy, pid: int) -> Deputy:
        """The deputy of a child that the stub of `parent` has had. Errors: OSError."""
        path = parent.options.socket.with_name(f"{pid}.sock")
        child = Deputy(replace(parent.options, pid=pid, socket=path), self)
        self.deputies.append(child)
        return child
