"""Which members of a deputy's or remote's tree the node daemon is still to be told of.

A child that has ended at once was never worth its attention: it is told of those that have lived for a moment, or are about to be the
last that could tell. A daemon that comes later finds every socket by itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from wire.frames import Message
from wire.local import LocalServer

A_MOMENT = 0.05
"""Seconds."""


class Newborn(Protocol):
    """A member of a tree."""

    server: LocalServer

    @property
    def finished(self) -> bool:
        """Whether it has nothing more to do."""


class Newborns:
    """Members that were born here, with what is to be told of them."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, Newborn, Message]] = []

    def add(self, member: Newborn, message: Message) -> None:
        """`message`: the event that tells of it."""
        self._waiting.append((time.monotonic() + A_MOMENT, member, message))

    def tell(self, members: Sequence[Newborn]) -> None:
        """Tells what is due, through a member that the daemon knows already."""
        if not self._waiting:
            return
        now = time.monotonic()
        known = [member for member in members if member.server.is_connected]
        in_haste = all(member.finished for member in known)
        left = []
        for due, newborn, message in self._waiting:
            if newborn.finished:
                continue
            if (now >= due or in_haste) and known:
                known[0].server.tell(message)
            else:
                left.append((due, newborn, message))
        self._waiting = left

    @property
    def patience(self) -> float | None:
        """Seconds until something is due; None: nothing waits."""
        return max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None
