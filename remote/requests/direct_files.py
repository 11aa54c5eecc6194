"""Direct files of one guest: what it reads again and again is read where it is (docs/files.md).

    remote                                        deputy
      |--- READS (a number) ----------------------->|  whose file is it, and is it its alone?
      | <-- DIRECTED (a token, or a path here) -----|  or: no
      |  the file is opened, by the token at home's file server, or here
      |  the next call that reads it waits
      |--- POSITION ------------------------------->|
      | <-- POSITIONED -----------------------------|  or: it is not what it was
      |  the guest gets the file, under the number that home's has, and makes the call itself; so it does with all that follow

If others have the position, too, home keeps it, and only calls that name the place in the file themselves are made here.

link/away/direct/direct_files.c sees to it that home has the position again before anything else is done with that number. What
another thread does with it waits until each that reads by it was seen at a stop.
"""

from __future__ import annotations

import logging
import os
import platform
import queue
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.link.ends.away import AwayLink
from kernel_helpers.link.ends.events import READ, Event, Kind
from kernel_helpers.process import tracing
from kernel_helpers.process.syscalls import ERESTARTNOINTR
from remote.options import Options
from remote.requests.own_files import open_own
from remote.tracee.tracee import Tracee
from wire.control import Control, pack, unpack
from wire.frames import WireError
from wire.logs import start_thread

if TYPE_CHECKING:
    from kernel_helpers.link.ends.direct_files import Direct
    from remote.requests.home_files import HomeFiles

log = logging.getLogger("remote")

KERNEL = (6, 9)
"""Since when a connection that is lost takes no mount with it."""


_EVENTS = (Kind.READS, Kind.READS_OPEN, Kind.BUSY, Control.DIRECTED, Control.POSITIONED)


@dataclass(frozen=True)
class _Waiting:
    """A call that reads a file which is open here."""

    tid: int
    call: int


@dataclass(frozen=True)
class _Asked:
    """What home was asked about, and has not refused; is_shared: others have its position, too."""

    number: int
    serial: int
    is_shared: bool


class DirectFiles:
    """See the module. uid: whose they are; home_files: gives those of home, whose server is at a port; wake: has the loop poll()."""

    def __init__(
        self, tracee: Tracee, options: Options, uid: int, home_files: Callable[[int], HomeFiles], wake: Callable[[], None]
    ) -> None:
        self._tracee = tracee
        self._options = options
        self._uid = uid
        self._home_files = home_files
        self._wake = wake
        self._opened: queue.SimpleQueue[tuple[_Asked, int]] = queue.SimpleQueue()
        """what was opened for it, -1: nothing"""
        self._waiting: dict[tuple[int, int], list[_Waiting]] = {}
        """by number and serial: calls that wait for the position"""
        self._held: dict[int, int] = {}
        """thread -> the number of its call that waits until others have come out of their reads"""
        self._interrupted: set[int] = set()
        """those others (host tids)"""
        self._table: Direct | None = None
        link = tracee.link
        if isinstance(link, AwayLink) and options.pki is not None and is_possible():
            self._table = link.allow_direct(options.direct_after)

    def handle(self, event: Event) -> bool:
        """Return whether it was an event of ours."""
        if self._table is None or event.kind not in _EVENTS:
            return False
        if event.kind == Kind.BUSY:
            self._held[event.tid] = event.code
            self._interrupt_readers()
            return True
        if event.kind in (Kind.READS, Kind.READS_OPEN):
            number, serial, own, placed = READ.unpack(event.data)
            if event.kind == Kind.READS_OPEN:
                waiting = self._waiting.setdefault((number, serial), [])
                waiting.append(_Waiting(event.tid, event.code))
                if len(waiting) == 1:
                    self._tracee.link.send(Control.POSITION, event.tid, pack(number=number, serial=serial))
            else:
                about = pack(number=number, serial=serial, own=bool(own), placed=bool(placed))
                self._tracee.link.send(Control.READS, event.tid, about)
            return True
        try:
            fields = unpack(event.data)
            number, serial = int(fields["number"]), int(fields["serial"])
            if event.kind == Control.POSITIONED:
                self._give(self._table, number, serial, int(fields["position"]))
            elif fields.get("token"):
                self._open_of_home(_Asked(number, serial, bool(fields.get("shared"))), int(fields["port"]), str(fields["token"]))
            elif fields.get("path"):
                own, path, inode = self._options.own_files, bytes(fields["path"]), int(fields["inode"])
                uid, root_counts = self._uid, self._options.root_counts
                self._open(_Asked(number, serial, bool(fields.get("shared"))), lambda: open_own(own, path, inode, uid, root_counts))
            else:
                self._table.refuse(number, serial)
        except (WireError, KeyError, TypeError, ValueError):
            log.warning("home's answer about a file is none", exc_info=True)
        return True

    def _open_of_home(self, asked: _Asked, port: int, token: str) -> None:
        try:
            files = self._home_files(port)
        except OSError as error:
            log.warning("no files of the home: %s", error)
            self._opened.put((asked, -1))
        else:
            self._open(asked, lambda: files.open(token))

    def _open(self, asked: _Asked, opens: Callable[[], int]) -> None:
        def work() -> None:
            try:
                file = opens()
            except (OSError, FarhomeError) as error:
                log.info("a file is not read here: %s", error)
                file = -1
            self._opened.put((asked, file))
            self._wake()

        start_thread("direct", work)

    @property
    def is_at_rest(self) -> bool:
        """Whether nobody waits for others to come out of a read."""
        return not self._held

    def poll(self) -> None:
        """What was opened, and who has come out of a read."""
        if self._held:
            self._go_on()
        while self._table is not None and not self._opened.empty():
            asked, file = self._opened.get()
            if file < 0:
                self._table.refuse(asked.number, asked.serial)
            else:
                self._table.opened(asked.number, asked.serial, file, asked.is_shared)

    def _give(self, table: Direct, number: int, serial: int, position: int) -> None:
        waiting = [one for one in self._waiting.pop((number, serial), []) if self._waits(one)]
        link = self._tracee.link
        if not waiting:
            return
        assert isinstance(link, AwayLink)
        try:
            if position < 0:
                raise FarhomeError("it is not what it was")
            link.make_direct(waiting[0].tid, number, serial, position)
        except (OSError, FarhomeError) as error:
            log.info("descriptor %d stays home's: %s", number, error)
            table.refuse(number, serial)
        for one in waiting:
            self._again(one.tid)

    def _again(self, tid: int) -> None:
        """The call is put back to before it, and made again: it is taken for what it means now."""
        host = self._tracee.host_tid(tid)
        if host is not None:
            with suppress(ProcessLookupError):
                tracing.interrupt(host)
            self._tracee.link.answer(tid, error=ERESTARTNOINTR)

    # -- threads that read ------------------------------------------------------------------------------------------------

    def _interrupt_readers(self) -> None:
        link = self._tracee.link
        assert isinstance(link, AwayLink)
        for host in link.awaited():
            if self._tracee.stands(host):
                link.has_left(host)
            elif host not in self._interrupted:
                self._interrupted.add(host)
                with suppress(ProcessLookupError):
                    tracing.interrupt(host)

    def stopped(self, host: int) -> None:
        """A thread (ours) has stopped: whatever it read by itself is over, or is made again."""
        if host in self._interrupted:
            self._interrupted.discard(host)
            assert isinstance(self._tracee.link, AwayLink)
            self._tracee.link.has_left(host)

    def _go_on(self) -> None:
        """With calls that have waited for such threads."""
        link = self._tracee.link
        assert isinstance(link, AwayLink)
        if link.awaited():
            self._interrupt_readers()
            return
        held, self._held = self._held, {}
        parked = link.parked()
        for tid, number in held.items():
            if tid in parked and parked[tid].number == number and not parked[tid].sent:
                self._again(tid)

    def _waits(self, waiting: _Waiting) -> bool:
        call = self._tracee.link.parked().get(waiting.tid)
        return call is not None and not call.sent and call.number == waiting.call

    def forget(self) -> None:
        """The guest has stood still: its calls are made again."""
        self._waiting.clear()
        self._held.clear()
        self._interrupted.clear()

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
            _, file = self._opened.get()
            if file >= 0:
                os.close(file)


def is_possible() -> bool:
    """Return whether the kernel can."""
    major, minor, *_ = platform.release().split(".")
    return (int(major), int(minor.partition("-")[0])) >= KERNEL
