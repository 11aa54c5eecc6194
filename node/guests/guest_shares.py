"""How much of the node its guests have, and whose guests they are: what admission is decided by."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from balancer.lending.lending import Borrower, GuestClass, Present, class_of
from balancer.lending.policy import LendingPolicy, LendingState
from engine.files import store
from node.common.paths import Paths
from node.guests.cgroups import GuestGroups
from node.guests.guest import Guest, Surroundings

DISK_SHARE = 0.2
"""Of the disk, lent for files of guests' homes if the owner does not say more."""
DISK_PERIOD = 10.0
"""Seconds between two checks of the disk space that guests use."""


class GuestShares:
    """See the module."""

    def __init__(self, paths: Paths, groups: GuestGroups, cluster: Callable[[], str]) -> None:
        self._paths = paths
        self._groups = groups
        self._cluster = cluster
        self._disk = 0
        self._disk_at = float("-inf")

    def memory(self, guest: Guest) -> int:
        """Return bytes that a guest has here: what was reserved or what it uses, whichever is more. What a child uses that was born here
        counts as its parent's."""
        return max(guest.memory, self._groups.memory(guest.key)) if guest.group == guest.key else 0

    def _memory_of_all(self, guests: Mapping[str, Guest]) -> int:
        reserved: dict[str, int] = {}
        for guest in guests.values():
            reserved[guest.group] = reserved.get(guest.group, 0) + guest.memory
        return sum(max(memory, self._groups.memory(group)) for group, memory in reserved.items())

    def lent_disk(self, policy: LendingPolicy) -> int:
        """Return bytes of the disk that files of guests' homes may take here."""
        return policy.max_disk if policy.max_disk is not None else store.lent(self._paths.cache, DISK_SHARE)

    def _disk_of_all(self) -> int:
        """Bytes of files of guests' homes that are in use here (what is kept besides makes room when there is need), and of images on their
        way."""
        if time.monotonic() - self._disk_at > DISK_PERIOD:
            self._disk_at = time.monotonic()
            self._disk = store.in_use(self._paths.cache) + _size(self._paths.images)
        return self._disk

    def borrower(self, guest: Guest) -> Borrower:
        """Whose guest it is."""
        return Borrower(guest.user, guest.home, frozenset(guest.groups), self._cluster())

    def kind(self, guest: Guest, policy: LendingPolicy) -> GuestClass:
        """The class that it is of."""
        return class_of(policy.classes, self.borrower(guest))

    def in_excess(self, guests: Mapping[str, Guest], policy: LendingPolicy) -> tuple[str, str] | None:
        """Of guests that use more memory together than the owner lends, to all or to a class: who is to go first, the greatest of the
        lowest class, and whose bound it is (the name of the class, or nothing). None if none has to go."""
        bounds = [(policy.max_memory, None), *((kind.max_memory, kind) for kind in policy.classes)]
        if all(most is None for most, _ in bounds):
            return None
        kinds = {key: self.kind(guest, policy) for key, guest in guests.items()}
        used = {guest.group: self._groups.memory(guest.group) for guest in guests.values()}
        for most, kind in bounds:
            those = [key for key in guests if kind is None or kinds[key] == kind]
            if most is not None and sum(used[group] for group in {guests[key].group for key in those}) > most:
                first = max(those, key=lambda key: (-kinds[key].priority, used[guests[key].group]))
                return first, kind.name if kind is not None else ""
        return None

    def lending_state(self, guests: Mapping[str, Guest], policy: LendingPolicy, around: Surroundings, blocked: bool) -> LendingState:
        """Return how the node is now, with those guests, for the owner's policy."""
        clock, memory = time.localtime(), self._memory_of_all(guests)
        present = (Present(guest.key, self.kind(guest, policy), self.memory(guest), guest.since) for guest in guests.values())
        return LendingState(
            guests=len(guests),
            guest_memory=memory,
            memory_free=around.memory_free,
            minute=clock.tm_hour * 60 + clock.tm_min,
            weekday=clock.tm_wday,
            guest_disk=self._disk_of_all() if policy.max_disk is not None else 0,
            blocked=blocked,
            is_on_battery=around.is_on_battery,
            withheld=around.withheld,
            values={**around.values, "guests": len(guests), "guest_memory": memory},
            present=tuple(present) if policy.classes else (),
        )


def _size(directory: Path) -> int:
    """Bytes of the files in and below a directory."""
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total
