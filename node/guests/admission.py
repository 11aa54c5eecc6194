"""Whether a guest gets a place here now, by the owner's policy, and who makes room for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from balancer.lending.policy import LendingPolicy, LendingState
from node.guests.foundation import why_no_user_namespaces
from node.guests.guest import Guest
from node.guests.guest_freezing import GuestFreezing
from node.guests.guest_shares import GuestShares

ARRIVALS = 8
"""Places that may be in the making at once."""
PLACES, PLACES_OF_HOME = 256, 64
"""Places whose guests do not run here yet, each a process and three descriptors: of all homes, and of one."""
ROOM_TIMEOUT = 10.0
"""Seconds within which a guest has to make room for one of a higher class."""

log = logging.getLogger("mosd.guests")


class Admission:
    """Of the guests of one node, by key. expel(key, reason, seconds) sends one home."""

    def __init__(
        self, name: Callable[[], str], policy: Callable[[], LendingPolicy], guests: Mapping[str, Guest], shares: GuestShares,
        freezing: GuestFreezing, state: Callable[[], LendingState], expel: Callable[[str, str, float], Awaitable[object]],
    ) -> None:  # fmt: skip
        self._name = name
        self._policy = policy
        self._guests = guests
        self._shares = shares
        self._freezing = freezing
        self._state = state
        self._expel = expel
        self._kernel_refuses: str | None = None
        """why it makes no user namespace; empty: it does, None: it has not been asked"""

    async def why_not(self, guest: Guest) -> str | None:
        """Return why the policy does not admit a guest, when those have gone that make room for it."""
        borrower = self._shares.borrower(guest)
        if not self._policy().is_own(guest.home) and (reason := self.why_no_ids()):
            return f"{reason}, and so the node takes guests of its own administration alone, which {guest.home} is not of"
        refusal = self._policy().admits(borrower, guest.memory, self._state())
        going = self._policy().makes_room(borrower, guest.memory, self._state()) if refusal else []
        if not going:
            return refusal
        log.info("%s make room for guest %s of %s", ", ".join(going), guest.key, borrower)
        reason = f"{self._name()} has a guest of a higher class"
        await asyncio.gather(*(self._expel(key, reason, ROOM_TIMEOUT) for key in going))
        return self._policy().admits(borrower, guest.memory, self._state())

    def why_no_ids(self) -> str | None:
        """Return why guests have the user ids of their homes, as any account here that has the same; None: they have ids of their own."""
        if self._policy().ids is None:
            return "its owner does not let guests have user ids of their own"
        if self._kernel_refuses is None:
            self._kernel_refuses = why_no_user_namespaces()
        return f"its kernel gives guests no user ids of their own ({self._kernel_refuses})" if self._kernel_refuses else None

    def coming(self) -> int:
        """Return bytes of guests that do not run here yet."""
        return sum(guest.memory for guest in self._guests.values() if not self._freezing.is_here(guest))

    def is_crowded(self, newcomer: Guest) -> bool:
        """Return whether there are so many places already to which nobody has come; a home that asks again for the same one gets it
        anew."""
        empty = [guest for guest in self._guests.values() if guest.key != newcomer.key and not self._freezing.is_here(guest)]
        return len(empty) >= PLACES or sum(guest.home == newcomer.home for guest in empty) >= PLACES_OF_HOME
