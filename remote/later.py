"""Calls that wait until all of a guest's memory is here: what they make would lack the rest of it, or lose it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_helpers.link.link import Event

if TYPE_CHECKING:
    from remote.guest import Guest


class Later:
    """Of one guest."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._events: list[Event] = []

    def keeps(self, event: Event) -> bool:
        """Whether the call waits: some memory follows the guest still."""
        if self._guest.has_all_memory:
            return False
        self._events.append(event)
        return True

    def go_on(self) -> None:
        """All memory is here: with what has waited for that, if it waits still."""
        events, self._events = self._events, []
        for event in events:
            call = self._guest.link.parked().get(event.tid)
            if call is not None and call.number == event.code:
                self._guest.handle(event)


__all__ = ["Later"]
