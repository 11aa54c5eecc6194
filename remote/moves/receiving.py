"""What an arrival needs of the remote that its guest comes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from engine.pour import postcopy
from kernel_helpers.stream.stream import Connection
from remote.guest import Guest, Loop
from wire.channel import Channel
from wire.local import LocalServer
from wire.patience import Patience


class Receiving(Loop, Protocol):
    """What an arrival needs of the remote that its guest comes to (remote/remote.py)."""

    patience: Patience
    server: LocalServer

    def next_caller(
        self, timeout: float, unless: Sequence[Channel] = (), poll: Callable[[], None] = lambda: None
    ) -> tuple[Connection, str] | Channel:
        """Return the next proven connection and its role; or that of `unless` which has something to say. poll: is called when anything has
        happened. Errors: TimeoutError, those of poll()."""

    def take_pages(self, taker: postcopy.Taker) -> None:
        """Memory follows the guest that is about to run here."""

    def has_joined(self) -> None:
        """The guest's sandbox is in its cgroups."""

    def settle(self, guest: Guest) -> None:
        """The guest is here: its link is heard from now on."""

    def attach(self, connection: Connection) -> None:
        """A connection of role link is the guest's."""
