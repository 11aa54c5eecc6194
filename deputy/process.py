"""One process, wherever it is: what is known of it at home as well as away, and its passage from one to the other."""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass

from deputy.away import Away
from deputy.link.farewells import Farewells
from deputy.link.guestlink import GuestLink
from deputy.mosd import Mosd
from deputy.moves.memory_late import LateMemory
from deputy.options import Options
from deputy.requests.mapping import Mappings
from deputy.stub.stub import Stub
from engine.calls.finishing import Rests
from engine.pour.postcopy import Giver
from kernel_helpers.usage import children
from kernel_helpers.usage.account import SECOND
from wire.control import Control

log = logging.getLogger("deputy")


@dataclass(frozen=True)
class Loop:
    """In which the process is looked after. wake: makes it turn, from any thread; tracer: the thread that it is; farewells: of its tree."""

    selector: selectors.BaseSelector
    wake: Callable[[], None]
    tracer: int
    farewells: Farewells


class Process:
    """See the module. `away`: None while it is at home."""

    def __init__(self, options: Options, mosd: Mosd, loop: Loop, begin: Callable[[Stub, GuestLink, Mappings], Away]) -> None:
        """begin: makes its Away."""
        self.pid = options.pid
        self.options = options
        self.mosd = mosd
        self.loop = loop
        self.away: Away | None = None
        self.rests = Rests(self.pid)
        """of writes that its moves have ended in the middle, while it is at home"""
        self.finished = False
        """nothing is to be done for it any more"""
        self.shares_memory = False
        """Its guest has the memory of its parent's (vfork) until it calls exec."""
        self.follows = 0
        """bytes of its memory that followed it, while they are not all where it is: until then it is not moved"""
        self.giver: Giver | None = None
        """who gives them, if they are here"""
        self.late_memory: LateMemory | None = None
        """who sees to it that they come, if the process is at home"""
        self.used_at = time.monotonic()
        """when its deputy was last of use"""
        self._begin = begin
        self._leaves = False

    @property
    def where(self) -> str:
        """At home ("home"), or a node's name."""
        return "home" if self.away is None else self.away.where

    def note_use(self) -> None:
        """Its deputy is of use now."""
        self.used_at = time.monotonic()

    def be_away(self, stub: Stub, link: GuestLink, mappings: Mappings) -> None:
        """The process is a stub from here on, and its guest is where the link leads."""
        self.away = self._begin(stub, link, mappings)
        children.begin(self.pid, stub.program_tid(stub.pid))

    def is_linked_by(self, link: GuestLink) -> bool:
        """Return whether it is away, and that leads to its guest; from any thread."""
        away = self.away
        return away is not None and away.link is link

    def is_followed(self, size: int, giver: Giver | None = None, late: LateMemory | None = None) -> None:
        """Bytes of memory follow the process; those in the stub are given from here, those that follow it home taken."""
        self.follows, self.giver, self.late_memory = size, giver, late

    def is_whole(self) -> None:
        """Nothing follows the guest any more."""
        self.follows = 0
        if self.giver is not None:
            self.giver.close()

    def settle(self, force: bool = False) -> None:
        """See StubMemory.settle(): unless there is memory in the stub that follows the guest. Errors: FarhomeError, OSError."""
        if self.away is not None and (self.giver is None or self.giver.is_over):
            self.giver = None
            self.away.stub.memory.settle(force)

    def finish(self) -> None:
        """It is at home, and nothing keeps its deputy but what is left of writes."""
        self._leaves = True
        self.finished = not self.rests

    def look_at_rests(self) -> None:
        """Goes on with what is left of writes."""
        if self.rests:
            self.rests.poll()
            self.finished |= self._leaves and not self.rests

    def ended(self, status: str) -> None:
        """The stub has ended (the kernel has informed its parent): so does everything else."""
        if self.finished:
            return
        log.info("process %d ended: %s", self.pid, status)
        used, calls = children.at_end(self.pid), 0
        if self.away is not None:
            self.away.has_ended = True
            calls = self.away.link.home.calls[0]
            if self.shares_memory:  # its guest's parent waits for the guest's end
                self.away.link.send(Control.KILL)
        self.mosd.ended(status, used.total / SECOND, calls)
        self.finished = True

    def lost(self, reason: str) -> None:
        """The away node is dead: no copy of the process exists any more. If it has just ended, that is why nobody answers there."""
        if self.away is not None:
            self.away.signals.poll()
            if self.finished:
                return
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        sentence = f"farhome: process {self.pid} is lost: it was on {self.where}, which {reason}; ended {when}"
        log.critical("%s", sentence)
        self.mosd.lost(self.where, reason, sentence)
        if self.away is not None:
            self.away.signals.kill(sentence)
        self.finished = True

    def end(self) -> None:
        """Takes away what was made for it; it is at home or has ended."""
        self.is_whole()
        if self.late_memory is not None:
            self.late_memory.end_process()
        if self.away is not None:
            link = self.away.is_over()
            if self.away.has_ended:
                self.loop.farewells.say(link)
            else:
                link.close()


__all__ = ["Loop", "Process"]
