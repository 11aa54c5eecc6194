"""A program that the process has executed at home comes in the place of the guest that made the call, by frames of the link that there is
(deputy/moves/programs/in_place.py): into the vessel that stands ready, with the session of that guest."""

from __future__ import annotations

import logging
import os
import socket
from typing import Protocol

from engine.context.context import Context
from engine.files.files import MappedFile
from engine.pour.vessel import Vessel
from kernel_helpers.common.errors import FarhomeError, sentence
from kernel_helpers.link.ends.away import AwayLink
from kernel_helpers.process.injection.beside import beside
from remote.guest import Guest
from remote.moves.arrival import Arrival, discard
from remote.moves.cargo import PAGES_TIMEOUT, Poured
from remote.moves.conditions import ids_at_home
from remote.moves.decision import must_live
from remote.moves.receiving import Receiving
from remote.sandbox import identity
from wire.channel import Channel
from wire.control import Control, pack
from wire.frames import Message, WireError

log = logging.getLogger("remote")

SO_SNDBUFFORCE = 32
ROOM = 1 << 20
"""Bytes of the socket that its pages go through: more than they are (a control frame's limit)."""


class Shared(Protocol):
    """What the guests of a tree have together."""

    place: Message


class Replaced(Receiving, Protocol):
    """What programs need of the remote of their guest."""

    guest: Guest | None

    @property
    def shared(self) -> Shared:
        """What it has together with the other guests of its tree."""

    def report_moving(self, moving: bool) -> None:
        """Report to mosd whether the guest has to do something for its home."""

    def become(self, guest: Guest) -> None:
        """Another guest is in the place of the one before, with its link."""


class ByConversation(FarhomeError):
    """Nothing has happened: it may come by the ordinary way."""


def take(remote: Receiving, guest: Guest, vessel: Vessel | None, request: Message) -> Guest:
    """Return the program, which stands still; the guest has lost its link to it. Errors: ByConversation; FarhomeError, WireError, OSError:
    nothing has come, and the vessel is of no use any more."""
    if vessel is None or not isinstance(guest.link, AwayLink) or guest.tracee.trace is not None:
        raise ByConversation("no place is ready for it")
    ids = guest.sandbox.identities
    if ids is not None and not ids.covers(identity.checked(ids_at_home(request))):
        raise ByConversation("it has other ids")
    offered = [MappedFile.from_wire(file) for file in request["files"]]
    found = [(file.path, remote.store.find(file)) for file in offered]
    if any(path is None for _, path in found):
        raise ByConversation("files of it are not here")
    guest.sandbox.add_files([(name, str(path)) for name, path in found])
    return Program(remote, guest, vessel, request).take()


class Program(Arrival):
    """The program on its way into the vessel."""

    def __init__(self, remote: Receiving, guest: Guest, vessel: Vessel, request: Message) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(remote, Channel(ours), request, guest.sandbox, vessel)
        self._theirs = theirs
        self._guest = guest

    def take(self) -> Guest:
        """See the module. Errors: FarhomeError, WireError, OSError."""
        guest, request = self._guest, self._request
        assert self._vessel is not None and isinstance(guest.link, AwayLink)
        self._made.callback(self._end_process)
        try:
            cargo = Poured(self._talk, Context.from_wire(bytes(request["context"])), [], [])
            with self._theirs, self._talk.connection, beside(*self._vessel.frozen.threads):
                self._theirs.settimeout(PAGES_TIMEOUT)
                self._theirs.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, ROOM)
                self._theirs.sendall(bytes(request["pages"]))
                self._pour(guest.sandbox, cargo)
                frozen = self._vessel.frozen
                link = self._intercept(frozen, cargo, guest.link)
            must_live(list(frozen.threads))
            made = self._as_guest(frozen, guest.sandbox, link, cargo, None)
            self._phases.report(log)
        except BaseException:
            self._made.close()
            raise
        self._made.pop_all()
        if self._listener >= 0:
            os.close(self._listener)
        return made


class Programs:
    """Those that come in the place of one guest, one after the other (remote/requests/execution.py says more)."""

    def __init__(self, remote: Replaced) -> None:
        self._remote = remote
        self._vessel: Vessel | None = None
        self._ready: Guest | None = None
        """the program that home decides about"""

    def place(self) -> Message:
        """Return what home has to know of the place that expect() makes; nothing, if that is not known."""
        return self._remote.shared.place if "pour" in self._remote.options.engines else {}

    def expect(self) -> None:
        """Makes the place for a program: an empty process, while its home looks at it."""
        remote = self._remote
        assert remote.guest is not None
        remote.report_moving(True)
        try:
            self._vessel = Vessel.board(remote.guest.sandbox.vessel(remote.options.pid))
            remote.shared.place = {"kernel": self._vessel.kernel_pages, "lockable": self._vessel.lockable}
        except (FarhomeError, OSError) as error:  # it is tried again when the program comes
            log.debug("no vessel yet: %s", error)

    def take_vessel(self) -> Vessel | None:
        """Return what expect() has made, for a program that comes by a conversation."""
        vessel, self._vessel = self._vessel, None
        return vessel

    def take(self, request: Message) -> None:
        """Has the program come into the place, and informs home."""
        remote, guest = self._remote, self._remote.guest
        assert guest is not None
        try:
            made = take(remote, guest, self._vessel, request)
        except ByConversation as why:
            guest.link.send(Control.PREPARED, 0, pack(error=str(why), again=True))
            return
        except (FarhomeError, WireError, OSError) as error:
            log.warning("the new program does not come: %s", error, exc_info=not isinstance(error, WireError))
            self._vessel = None
            remote.finish(f"its new program could not arrive: {sentence(error)}")
            return
        self._vessel, self._ready = None, made
        made.link.send(Control.PREPARED)
        made.link.account.begin()  # while home decides
        remote.become(made)
        guest.end()

    def run(self, decided: Message) -> None:
        """Has it run: its home has decided so."""
        remote, guest = self._remote, self._remote.guest
        if guest is None or guest is not self._ready:
            log.warning("guest %s:%d: its home says commit where none is due", remote.options.home, remote.options.pid)
            return
        self._ready = None
        guest.tracee.is_stopped = decided["stopped"] is True
        guest.run([(int(tid), bytes(info)) for tid, info in decided["pending"]])
        remote.report_moving(False)
        remote.server.send({"event": "running", "uid": guest.uid, "command": guest.command})
        log.info("guest %s:%d runs as %d", remote.options.home, remote.options.pid, guest.pid)

    def close(self) -> None:
        """Nothing comes any more."""
        vessel = self.take_vessel()
        if vessel is not None:
            discard(vessel)
