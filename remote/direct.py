"""Direct files of one guest: what it reads again and again is read where it is (docs/files.md).

    remote                                        deputy
      |--- READS (a number) ----------------------->|  whose file is it, and is it its alone?
      | <-- DIRECTED (a token) ---------------------|  or: no
      |  the file is opened, by the token
      |  the next call that reads it waits
      |--- POSITION ------------------------------->|
      | <-- POSITIONED -----------------------------|  or: it is not what it was
      |  the guest gets the file, under the number that home's has, and makes the call itself; so it does with all that follow

kernel_helpers/direct.c sees to it that home has the position again before anything else is done with that number.
"""

from __future__ import annotations

import logging
import os
import platform
import queue
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernel_helpers.errors import FarhomeError
from kernel_helpers.link import READ, AwayLink, Event, Kind
from wire.control import Control, pack, unpack
from wire.frames import WireError
from wire.logs import start_thread

if TYPE_CHECKING:
    from kernel_helpers.direct import Direct
    from remote.guest import Guest
    from remote.remote import Remote

log = logging.getLogger("remote")

KERNEL = (6, 9)
"""Since when a connection that is lost takes no mount with it."""


@dataclass(frozen=True)
class _Waiting:
    """A call that reads a file which is open here."""

    tid: int
    call: int
    arguments: tuple[int, ...]


class DirectFiles:
    """See the module."""

    def __init__(self, guest: Guest, remote: Remote) -> None:
        self._guest = guest
        self._remote = remote
        self._opened: queue.SimpleQueue[tuple[int, int, int]] = queue.SimpleQueue()
        self._waiting: dict[tuple[int, int], _Waiting] = {}
        self._refused: list[_Waiting] = []
        self._table: Direct | None = None
        link = guest.link
        if isinstance(link, AwayLink) and remote.options.pki is not None and is_possible():
            self._table = link.allow_direct(remote.options.direct_after)

    def handle(self, event: Event) -> bool:
        """Whether it was an event of ours."""
        if self._table is None or event.kind not in (Kind.READS, Kind.READS_OPEN, Control.DIRECTED, Control.POSITIONED):
            return False
        if event.kind in (Kind.READS, Kind.READS_OPEN):
            number, serial, own, *arguments = READ.unpack(event.data)
            if event.kind == Kind.READS_OPEN:
                self._waiting[number, serial] = _Waiting(event.tid, event.code, tuple(arguments))
                self._guest.link.send(Control.POSITION, event.tid, pack(number=number, serial=serial))
            else:
                self._guest.link.send(Control.READS, event.tid, pack(number=number, serial=serial, own=bool(own)))
            return True
        try:
            fields = unpack(event.data)
            number, serial = int(fields["number"]), int(fields["serial"])
            if event.kind == Control.POSITIONED:
                self._give(self._table, number, serial, int(fields["position"]))
            elif fields.get("token"):
                self._open(number, serial, int(fields["port"]), str(fields["token"]))
            else:
                self._table.refuse(number, serial)
        except (WireError, KeyError, TypeError, ValueError):
            log.warning("home's answer about a file is none", exc_info=True)
        return True

    def _open(self, number: int, serial: int, port: int, token: str) -> None:
        try:
            files = self._remote.home_files(port)
        except OSError as error:
            log.warning("no files of the home: %s", error)
            self._opened.put((number, serial, -1))
            return

        def work() -> None:
            try:
                file = files.open(token)
            except (OSError, FarhomeError) as error:
                log.info("a file of the home stays there: %s", error)
                file = -1
            self._opened.put((number, serial, file))
            self._remote.tree.waker.wake()

        start_thread("direct", work)

    def look(self) -> None:
        """What was opened."""
        while self._table is not None and not self._opened.empty():
            number, serial, file = self._opened.get()
            if file < 0:
                self._table.refuse(number, serial)
            else:
                self._table.opened(number, serial, file)

    def _give(self, table: Direct, number: int, serial: int, position: int) -> None:
        waiting, link = self._waiting.pop((number, serial), None), self._guest.link
        if waiting is None or not self._waits(waiting):
            return
        assert isinstance(link, AwayLink)
        file = table.file(number, serial)
        try:
            if file is None or position < 0:
                raise FarhomeError("it is not what it was")
            os.lseek(file, position, os.SEEK_SET)
            link.give_descriptor(waiting.tid, file, number)
        except (OSError, FarhomeError) as error:
            log.info("descriptor %d stays home's: %s", number, error)
            table.refuse(number, serial)
            self._forward(waiting)
            return
        table.given(number, serial)
        link.answer(waiting.tid, proceed=True)

    def _waits(self, waiting: _Waiting) -> bool:
        call = self._guest.link.parked().get(waiting.tid)
        return call is not None and not call.sent and call.number == waiting.call

    def _forward(self, waiting: _Waiting) -> None:
        """The call goes home after all; if that cannot be now, at the end of what prevents it."""
        if self._guest.is_pausing:
            self._refused.append(waiting)
        elif self._waits(waiting):
            assert isinstance(self._guest.link, AwayLink)
            try:
                self._guest.link.forward(waiting.tid, waiting.call, waiting.arguments)
            except OSError:
                self._guest.go_home(waiting.tid, waiting.call)

    def again(self) -> None:
        """Calls may go home again."""
        refused, self._refused = self._refused, []
        for waiting in refused:
            self._forward(waiting)

    def forget(self) -> None:
        """The guest has stood still: its calls are made again."""
        self._refused.clear()
        self._waiting.clear()

    def positions(self) -> list[tuple[int, int]]:
        """See Direct."""
        return self._table.positions() if self._table is not None else []

    def own(self) -> list[int]:
        """See Direct."""
        return self._table.own() if self._table is not None else []

    def carry(self, own: object) -> None:
        """What own() said where the guest was before. Errors: ValueError, TypeError."""
        if self._table is not None and isinstance(own, list):
            for number in own:
                self._table.set_own(int(number))

    def close(self) -> None:
        """After the link has ended."""
        self._table = None
        while not self._opened.empty():
            *_, file = self._opened.get()
            if file >= 0:
                os.close(file)


def is_possible() -> bool:
    """Whether the kernel can."""
    major, minor, *_ = platform.release().split(".")
    return (int(major), int(minor.partition("-")[0])) >= KERNEL
