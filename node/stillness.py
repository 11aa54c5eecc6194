"""Which guests stand still for the owner's sake: by their control groups, so that those who supervise them do not.

A guest that is only just arriving is let go on, and so is one that its home moves or ends: what has been frozen can do nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from node.cgroups import GuestGroups
from node.guest import Guest


class Stillness:
    """Guests that share a group, because one was born of the other here, stand still together."""

    def __init__(self, groups: GuestGroups) -> None:
        self._groups = groups
        self._running: set[str] = set()
        self._on_the_way: set[str] = set()
        self._held: set[str] = set()
        """Groups that stand still."""

    def runs(self, key: str) -> None:
        """A guest has arrived."""
        self._running.add(key)

    def forget(self, key: str) -> None:
        """A guest has gone."""
        self._running.discard(key)
        self._on_the_way.discard(key)

    def is_here(self, guest: Guest) -> bool:
        """Whether it has arrived."""
        return guest.key in self._running

    def is_held(self, guest: Guest) -> bool:
        """Whether it is to stand still now."""
        return guest.group in self._held

    def hold(self, guests: Iterable[Guest]) -> None:
        """Exactly these guests stand still, but for those that cannot."""
        guests = list(guests)
        busy = {guest.group for guest in guests if guest.key in self._on_the_way or guest.key not in self._running}
        wanted = {guest.group for guest in guests} - busy
        for group in self._held - wanted:
            self._groups.freeze(group, False)
        self._held = {group for group in wanted if group in self._held or self._groups.freeze(group, True)}

    def on_its_way(self, guest: Guest, moving: bool) -> None:
        """A guest is about to be moved, or to end, and must run for that; or it is not any more."""
        (self._on_the_way.add if moving else self._on_the_way.discard)(guest.key)
        if moving and guest.group in self._held:
            self._held.discard(guest.group)
            self._groups.freeze(guest.group, False)
