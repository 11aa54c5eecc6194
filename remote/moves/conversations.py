"""The conversations about moves of one guest that is here: with its deputy; and memory that goes ahead of the guest for one of them, or
that follows it."""

from __future__ import annotations

import logging
import selectors
from typing import Protocol

from engine.pour import postcopy
from engine.pour.precopy import Ahead
from kernel_helpers.stream.stream import Connection, holds
from remote.guest import Guest
from remote.moves import departure
from remote.moves.departure import Target
from remote.moves.memory_ahead import GoingAhead
from remote.options import Options
from remote.reception import Reception
from wire import channel
from wire.channel import Channel
from wire.frames import WireError
from wire.patience import Patience

log = logging.getLogger("remote")


class Moved(Protocol):
    """What they need of the remote whose guest moves (remote/remote.py)."""

    options: Options
    patience: Patience
    finished: bool

    def wake(self) -> None:
        """Has a turn of the loop come at once; callable from any thread."""

    def finish(self, reason: str) -> None:
        """Ends this remote at the end of this turn, and the guest with it."""

    def report_moving(self, moving: bool) -> None:
        """Report to mosd whether the guest has to do something for its home."""

    def replace(self, talk: Channel) -> None:
        """The process executes another program, which comes in the place of the guest."""


class Conversations:
    """See the module."""

    def __init__(self, remote: Moved, selector: selectors.BaseSelector, reception: Reception) -> None:
        self.options = remote.options
        self._remote = remote
        self._selector = selector
        self._reception = reception
        self._talks: set[Connection] = set()
        self._going: GoingAhead | None = None
        """memory that goes ahead of the guest, for one of them"""
        self._giver: postcopy.Giver | None = None
        """who gives memory of the guest that is to follow it, or does already"""
        self._moved_on = ""
        """why the guest runs here no more, while memory of it is here still"""

    # -- the loop -------------------------------------------------------------------------------------------------------

    def begin(self, guest: Guest, talk: Channel) -> None:
        """Somebody has proven that they may talk about a move of the guest."""
        self._talks.add(talk.connection)
        self._remote.report_moving(True)
        self._hear(guest, talk)

    def poll(self) -> None:
        """Once in each turn of the loop: has it gone ahead?"""
        going = self._going
        if going is None or not going.is_over or self._is_heard(going.talk.connection):
            return
        if going.failed:
            self._forget(going.talk)
            going.talk.close()
        elif going.talk.connection in self._talks:
            self._remote.report_moving(True)
            self._hear(going.guest, going.talk)

    @property
    def are_quiet(self) -> bool:
        """Whether nobody moves the guest."""
        return not (self._talks or self._going or self._giver or self._moved_on)

    @property
    def has_moved_on(self) -> bool:
        """Whether the guest runs here no more, while memory of it is here still."""
        return bool(self._moved_on)

    @property
    def gives_pages(self) -> bool:
        """Whether memory is still to follow the guest."""
        return self._giver is not None and not self._giver.is_over

    def finish_if_all_has_gone(self) -> None:
        """The guest has moved on: this remote ends when all of its memory has, too."""
        if not self.gives_pages:
            self._remote.finish(self._moved_on)

    def leave(self, talk: Channel) -> None:
        """The guest is over, and that conversation is about another from here on."""
        if self._going is not None:
            self._going.close()
            self._going = None
        self._forget(talk)

    def close(self) -> None:
        """The guest has gone, or goes now."""
        self.stop_giving_pages()
        if self._going is not None:
            self._going.close()
        for connection in self._talks:
            self._unregister(connection)
            connection.close()

    def _hear(self, guest: Guest, talk: Channel) -> None:
        self._selector.register(talk.connection, selectors.EVENT_READ, lambda: self._serve(guest, talk))

    def _serve(self, guest: Guest, talk: Channel) -> None:
        try:
            departure.serve(self, guest, talk)
            while self._is_heard(talk.connection) and holds(talk.connection):  # the selector does not see that
                departure.serve(self, guest, talk)
        except (OSError, WireError) as error:
            log.debug("a move's conversation is over: %s", error)
            self._forget(talk)
            talk.close()

    def _forget(self, talk: Channel) -> None:
        if self._going is not None and self._going.talk is talk:
            self._going.close()
            self._going = None
        self._unregister(talk.connection)
        self._talks.discard(talk.connection)
        if not self._talks and not self._remote.finished:
            self._remote.report_moving(False)

    def _is_heard(self, connection: Connection) -> bool:
        return connection.fileno() >= 0 and connection.fileno() in self._selector.get_map()

    def _unregister(self, connection: Connection) -> None:
        if self._is_heard(connection):
            self._selector.unregister(connection)

    # -- what a departure asks for --------------------------------------------------------------------------------------

    def go_ahead(self, guest: Guest, talk: Channel, target: Target | None, mode: str) -> None:
        """Has memory of the guest go ahead of it (mode: of precopy.MODES), as `talk` has asked: home, or to another node's address. Until
        that is over, nobody else talks there."""
        if self._going is not None:
            self._going.close()
        self._selector.unregister(talk.connection)
        self._going = GoingAhead(guest, talk, target, mode)
        self._remote.report_moving(False)  # meanwhile the guest need do nothing for it, and what stands still is not written again
        self._going.start(self._remote.wake)

    def ahead(self, talk: Channel) -> Ahead | None:
        """Return what has gone ahead for that conversation."""
        return self._going.ahead if self._going is not None and self._going.talk is talk and self._going.is_over else None

    def stream(self, talk: Channel) -> Channel | None:
        """Return the connection that it went by."""
        return self._going.stream if self._going is not None and self._going.talk is talk and self._going.is_over else None

    def give_pages(self, pid: int, target: Target | None) -> None:
        """Memory of the guest, which stands still, is to follow it: to another node's address, or to who calls."""

        def connect() -> Connection:
            assert target is not None
            return channel.connect(target[0], "page", target[1], timeout=postcopy.PROGRESS_TIMEOUT)

        self.stop_giving_pages()
        self._giver = postcopy.Giver(pid, self._remote.patience.limit, connect if target is not None else None)
        if target is None:
            self._reception.take_pages = self._giver.attach
        self._giver.start(self._remote.wake)

    def stop_giving_pages(self) -> None:
        """It does not move after all."""
        if self._giver is not None:
            self._giver.close()
            self._giver = None
            self._reception.take_pages = None

    def gone(self, reason: str) -> None:
        """The guest runs elsewhere. This remote ends when what is to follow it has gone, too."""
        if self._giver is None:
            self._remote.finish(reason)
        else:
            self._moved_on = reason

    def replace(self, talk: Channel) -> None:
        """The process executes another program, which comes in the place of the guest."""
        self._remote.replace(talk)


__all__ = ["Conversations", "Moved"]
