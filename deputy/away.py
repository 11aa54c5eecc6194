"""The process while it is away: its stub here, the link to its guest there, its signals and mapped files, and why it is to come home.

What the guest's side asks is answered above (deputy/requests/dispatch.py), where the moves are, too.
"""

from __future__ import annotations

import logging
import selectors
from collections.abc import Callable
from typing import Protocol

from deputy.link.guestlink import GuestLink
from deputy.link.trips import Trips
from deputy.requests.mapping import Mappings
from deputy.signals.dying import REASON, Death, is_wanted
from deputy.signals.signals import StubSignals
from deputy.stub.stub import Stub
from kernel_helpers.link.ends.events import Event
from kernel_helpers.usage import children

log = logging.getLogger("deputy")


class Answering(Protocol):
    """Who answers what the guest's side asks of home."""

    def handle(self, event: Event) -> None:
        """One frame from the remote. Errors: WireError."""

    def close(self) -> None:
        """Nothing is asked any more."""


class Away:
    """Exists from the commit by which a process leaves until it is at home again, executes another program, or has ended."""

    def __init__(
        self, stub: Stub, link: GuestLink, mappings: Mappings, signals: StubSignals, selector: selectors.BaseSelector,
        answering: Callable[[Away], Answering], trips: Trips,
    ) -> None:  # fmt: skip
        self.pid = stub.pid
        self.stub = stub
        self.link = link
        self.mappings = mappings
        self.signals = signals
        self.watch_next = 0
        """signals that are to wait here, too, from when the guest next stands still (a mask; deputy/requests/signalfds.py)"""
        self.has_ended = False
        """the stub has"""
        self.go_home_reason: str | None = None
        self.retry_home_at = 0.0
        """as time.monotonic()"""
        self.death: Death | None = None
        """by which it is to end at home, where it is on its way to"""
        self._selector = selector
        self._trips = trips
        mappings.begin(link.home)
        trips.begin(link.home)
        selector.register(link.home.event_fd, selectors.EVENT_READ, lambda: None)
        self.answering = answering(self)

    @property
    def where(self) -> str:
        """The node where the guest is."""
        return self.link.target.node

    def hops(self, link: GuestLink) -> None:
        """The guest is on another node, to which that leads; the session goes on."""
        self.link = self.signals.link = link

    def guest_died(self, number: int, used: list[int]) -> None:
        """The guest was killed by a signal of its own: the stub ends the same way. used: by it away (account.FIELDS)."""
        children.end(self.pid, used)
        self.signals.die_by(number)

    def dumps_core(self, tid: int, info: bytes, used: list[int]) -> None:
        """The guest, which stands still, is about to end by that signal to its thread (the program's id); see deputy/signals/dying.py.
        Errors: WireError."""
        death = Death(tid, info, used)
        death.check(self.where)
        if not is_wanted(self.pid):
            self.guest_died(death.number, used)
            return
        log.info("process %d ends: signal %d, code %d", self.pid, death.number, death.code)
        self.death, self.go_home_reason = death, REASON

    def cannot_come_home(self) -> None:
        """If it was to end there, it ends as it is."""
        death, self.death = self.death, None
        if death is not None:
            log.warning("the core of process %d lacks its memory", self.pid)
            self.go_home_reason = None
            self.guest_died(death.number, death.used)

    def lives_on(self) -> None:
        """Another thread was quicker: it executes a program, and does not end."""
        if self.death is not None:
            self.death = self.go_home_reason = None

    def is_over(self) -> GuestLink:
        """The process is another program. Returns the link, by which the guest is to be ended."""
        self.answering.close()
        self.mappings.let_go()
        self._trips.end(self.link.home)
        self._selector.unregister(self.link.home.event_fd)
        return self.link

    def close(self) -> None:
        """The process is at home, or has ended: so does the session with the guest."""
        self.is_over().close()


__all__ = ["Answering", "Away"]
