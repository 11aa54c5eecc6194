"""The guests of one program: the one that it was started for, and the children that have been born here.

A process hands its filter on to its children, and with it their one listener: so they have one supervisor, one sandbox and one loop.
All else (link, connections, socket towards mosd, moves) each of them has for itself, as if it were alone.
"""

from __future__ import annotations

import logging
import selectors
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from remote.remote import Options, Remote
from wire.newborns import Newborns
from wire.waking import Turns, Waker

if TYPE_CHECKING:
    from remote.reception import Reception

log = logging.getLogger("remote")

TICK = 0.25


class Tree:
    """See the module."""

    def __init__(self, options: Options) -> None:
        self.selector = selectors.DefaultSelector()
        self.waker = Waker(self.selector)
        self.remotes: list[Remote] = []
        self.newborns = Newborns()
        self.first = Remote(options, self)
        self.remotes.append(self.first)

    def run(self) -> int:
        """Until the last guest has gone. Returns 1 when none ever came."""
        turns = Turns(self.selector, log)
        try:
            while self.remotes:
                patience = self.newborns.patience
                turns.turn(TICK if patience is None else min(TICK, patience), self._tick)
        finally:
            while self.remotes:
                self.remotes.pop().end()
        return 0 if self.first.guest is not None else 1

    def _tick(self) -> None:
        for remote in list(self.remotes):
            remote.tick()
        self.newborns.tell(self.remotes)
        for remote in list(self.remotes):
            if remote.finished:
                self.remotes.remove(remote)
                try:
                    remote.end()
                finally:
                    self.released(remote)

    def released(self, one: Remote) -> None:
        """The guest of that one has let go of its memory: its parent goes on if it has waited for that."""
        for other in self.remotes:
            if other is not one and other.guest is not None:
                other.guest.births.released_by(one.options.pid)

    def bear(self, parent: Remote, pid: int, reception: Reception, secret: bytes) -> Remote:
        """The remote of a child that `parent`'s guest is about to have, whose home connects at `reception`."""
        path = Path(parent.options.socket).with_name(f"{parent.options.home}-{pid}.sock")
        child = Remote(replace(parent.options, pid=pid, socket=path, secret=secret), self, reception)
        self.remotes.append(child)
        return child

    def has_others(self, than: Remote) -> bool:
        """Whether a guest is here besides that one."""
        return any(remote is not than for remote in self.remotes)
