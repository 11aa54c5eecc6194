"""Which guests stand still for the owner's sake: by their control groups, so that those who supervise them do not.

A guest that is only just arriving is let go on, and so is one that its home moves or ends: what has been frozen can do nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from node.guests.cgroups import GuestGroups
from node.guests.guest import Guest


class GuestFreezing:
    """Guests that share a group, because one was born of the other here, stand still together."""

    def __init__(self, groups: GuestGroups) -> None:
        self._groups = groups
        self._running: set[str] = set()
        self._on_the_way: set[str] = set()
        self._coming: dict[str, tuple[str, list[Guest] | None]] = {}
        """Guests that are about to arrive, by key: the group of each, and which guests of that group wait for their home."""
        self._held: set[str] = set()
        """Groups that stand still."""
        self._wanted: list[Guest] = []
        """Who is to stand still for the owner's sake."""
        self._cut: set[str] = set()
        """Who waits for a home that is not heard."""
        self._cut_groups: dict[str, list[Guest]] = {}
        """Groups in which all do."""

    def runs(self, key: str) -> None:
        """A guest has arrived."""
        self._running.add(key)
        if self._coming.pop(key, None) is not None:
            self._settle()

    def forget(self, key: str) -> None:
        """A guest has gone."""
        self._running.discard(key)
        if (coming := self._coming.pop(key, None)) is not None:
            group, cut = coming
            if cut is not None:  # it has not come
                self._cut_groups.setdefault(group, cut)
            self._settle()
        self._on_the_way.discard(key)
        self._cut.discard(key)

    def is_here(self, guest: Guest) -> bool:
        """Return whether it has arrived."""
        return guest.key in self._running

    def is_held(self, guest: Guest) -> bool:
        """Return whether it is to stand still now."""
        return guest.group in self._held

    def hold(self, guests: Iterable[Guest]) -> None:
        """Exactly these guests stand still, and those whose home is not heard, but for those that cannot."""
        self._wanted = list(guests)
        self._settle()

    def is_cut(self, guest: Guest) -> bool:
        """Return whether it waits for its home."""
        return guest.key in self._cut

    def cut(self, guest: Guest, is_cut: bool, family: Iterable[Guest]) -> None:
        """The guest's home is not heard, or is again. All of its group (`family`) stand still when none of them hears its home."""
        (self._cut.add if is_cut else self._cut.discard)(guest.key)
        guests = list(family)
        if all(one.key in self._cut for one in guests):
            self._cut_groups[guest.group] = guests
        else:
            self._cut_groups.pop(guest.group, None)
        self._settle()

    def comes(self, guest: Guest) -> None:
        """A guest is about to arrive: its place is made in its group, where children may stand still that it has left here."""
        self._coming[guest.key] = (guest.group, self._cut_groups.pop(guest.group, None))
        self._settle()

    def _settle(self) -> None:
        waiting = [guest for family in self._cut_groups.values() for guest in family if guest.key in self._cut]
        guests = [*self._wanted, *waiting]
        busy = {guest.group for guest in guests if guest.key in self._on_the_way or guest.key not in self._running}
        wanted = {guest.group for guest in guests} - busy - {group for group, _ in self._coming.values()}
        for group in self._held - wanted:
            self._groups.freeze(group, False)
        self._held = {group for group in wanted if group in self._held or self._groups.freeze(group, True)}

    def on_its_way(self, guest: Guest, moving: bool) -> None:
        """A guest is about to be moved, or to end, and must run for that; or it is not any more."""
        (self._on_the_way.add if moving else self._on_the_way.discard)(guest.key)
        if moving and guest.group in self._held:
            self._held.discard(guest.group)
            self._groups.freeze(guest.group, False)
        elif not moving and guest.group in self._cut_groups:
            self._settle()
