"""Reads the counters that the ledger is about: of guests their control groups', of processes that are away what their nodes report."""

from __future__ import annotations

from collections.abc import Iterator

from node.common import process
from node.guests.guest import Guest
from node.guests.guests import Guests
from node.moves.home_process import HOME, HomeProcess
from node.moves.registry import Registry
from node.owner.ledger import BORROWED, LENT, Ledger, Reading

PERIOD = 5.0
"""Seconds between two checks; what ends in between is looked at as it ends."""


class Accounts:
    """Keeps the ledger up to what guests and processes use."""

    def __init__(self, ledger: Ledger, guests: Guests, registry: Registry) -> None:
        self._ledger = ledger
        self._guests = guests
        self._registry = registry
        self._places: dict[int, str] = {}
        """Where a process was last seen away."""

    def poll(self) -> None:
        """Books all that has been used since the check before."""
        self._ledger.book(LENT, self._lent())
        self._ledger.book(BORROWED, self._borrowed())

    def _lent(self) -> Iterator[Reading]:
        for guest in {guest.group: guest for guest in self._guests.all()}.values():
            if (reading := self._of_guest(guest)) is not None:
                yield reading

    def _of_guest(self, guest: Guest) -> Reading | None:
        seconds = self._guests.groups.cpu(guest.group)
        return Reading(guest.group, guest.user, guest.home, seconds) if seconds is not None else None

    def left(self, guest: Guest) -> None:
        """A guest has gone; what it has used is still to be seen."""
        if (reading := self._of_guest(guest)) is not None:
            self._ledger.book(LENT, [reading], is_all=False)

    def _borrowed(self) -> Iterator[Reading]:
        entries = list(self._registry)
        self._places = {pid: place for pid, place in self._places.items() if pid in {entry.pid for entry in entries}}
        for entry in entries:
            if (reading := self._of_process(entry)) is not None:
                yield reading

    def _of_process(self, entry: HomeProcess) -> Reading | None:
        """What it has used since the last check was used where it was then."""
        place = self._places.get(entry.pid, entry.where)
        if entry.where != HOME:
            self._places[entry.pid] = entry.where
        if place == HOME:
            return None
        used = entry.cpu_away + self._registry.reported_in_stay(entry)
        return Reading(f"{entry.pid}-{entry.starttime}", process.user_name(entry.uid), place, used)

    def ended(self, entry: HomeProcess) -> None:
        """A process has ended, perhaps away."""
        if (reading := self._of_process(entry)) is not None:
            self._ledger.book(BORROWED, [reading], is_all=False)
        self._places.pop(entry.pid, None)
