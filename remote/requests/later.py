"""Calls that wait until all of a guest's memory is here: what they make would lack the rest of it, or lose it."""

from __future__ import annotations

from collections.abc import Callable

from kernel_helpers.link.ends.events import Event
from remote.tracee.tracee import Tracee


class Later:
    """Of one guest. handle: takes an event of the link as if it had just come."""

    def __init__(self, tracee: Tracee, handle: Callable[[Event], None]) -> None:
        self._tracee = tracee
        self._handle = handle
        self._events: list[Event] = []

    def keeps(self, event: Event) -> bool:
        """Return whether the call waits: some memory follows the guest still."""
        if self._tracee.has_all_memory:
            return False
        self._events.append(event)
        return True

    def go_on(self) -> None:
        """All memory is here: with what has waited for that, if it waits still."""
        events, self._events = self._events, []
        for event in events:
            call = self._tracee.link.parked().get(event.tid)
            if call is not None and call.number == event.code:
                self._handle(event)


__all__ = ["Later"]
