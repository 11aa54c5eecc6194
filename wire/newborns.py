"""Which members of a deputy's or remote's tree are still to be reported to the node daemon.

A child that has ended at once was never worth its attention: it learns of those that have lived for a moment, or are about to be the
last that could know. They have their sockets from then on: a daemon that comes later finds each by itself. A child that is home within that
moment has none any more, and is reported like the others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from wire.frames import Message
from wire.local import LocalServer

A_MOMENT = 0.05
"""Seconds."""
LOOK = 0.25
"""Seconds between looks whether a daemon is there."""


class Newborn(Protocol):
    """A member of a tree."""

    server: LocalServer

    @property
    def finished(self) -> bool:
        """Whether it has nothing more to do."""

    @property
    def lives_on(self) -> bool:
        """Whether that is so since its process is at home."""


class Newborns:
    """Members that were born here, with what is to be said about them."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, Newborn, Message]] = []

    def add(self, member: Newborn, message: Message) -> None:
        """`message`: the event that reports it."""
        self._waiting.append((time.monotonic() + A_MOMENT, member, message))

    def report(self, members: Sequence[Newborn]) -> None:
        """Reports what is due, through a member that the daemon knows already."""
        if not self._waiting:
            return
        now = time.monotonic()
        known = [member for member in members if member.server.is_connected]
        in_haste = all(member.finished for member in known)
        left = []
        for due, newborn, message in self._waiting:
            if newborn.finished and not newborn.lives_on:
                continue
            if (is_due := now >= due or in_haste) and not newborn.finished:
                newborn.server.listen()
            if is_due and known:
                known[0].server.send(message)
            else:
                left.append((due, newborn, message))
        self._waiting = left

    @property
    def patience(self) -> float | None:
        """Seconds until something is to be done; None: nothing waits."""
        if not self._waiting:
            return None
        left = self._waiting[0][0] - time.monotonic()
        return left if left > 0 else LOOK
