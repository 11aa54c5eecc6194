"""A program that the process has executed away comes in the place of the guest before it by three frames of their link: what it is, and
its few pages; that it is ready; and the commit. Nothing is connected for it, and the session goes on.

    deputy                                          remote
      |--- PROGRAM (context, pages, files) ---------->|  poured into the vessel that stands ready
      | <-- PREPARED ---------------------------------|  or: why not, and whether a conversation is worth a try
      |--- COMMIT (waiting signals) ----------------->|  it runs
"""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deputy.link.guestlink import GuestLink
from deputy.moves.announcement import announcement
from deputy.moves.frozen import Held
from deputy.moves.out_and_hop import bind, is_stopped
from deputy.requests.leases import Leases, OpenForWriting
from deputy.requests.mapping import Mappings
from deputy.stub.stub import Stub
from engine.context.capture import inner_tids, send_pages
from engine.context.context import with_pending
from engine.context.marks import can_lock, lock, unlock
from engine.files import files
from engine.phases import Phases
from engine.pour.vessel import obstacle
from engine.signals.pending import put_first, take
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.link.ends.events import Event
from kernel_helpers.link.ends.home import HomeLink
from wire import steps
from wire.control import Control

if TYPE_CHECKING:
    from deputy.process import Process

log = logging.getLogger("deputy")

MOST = 256 << 10
"""Bytes of context and pages that go in one frame."""
FILLED = 0.05
"""Seconds without room in the socket that its pages go through: they are more than it holds."""
PREPARED_TIMEOUT = 5.0
"""Seconds that a new program is held for want of a word of the target."""


class ByConversation(FarhomeError):
    """Nothing has happened: the program may leave by the ordinary way."""


@dataclass(frozen=True)
class Place:
    """What the remote has ready for a program: its kernel's own pages (see engine/pour/vessel.py), and how many bytes it lets it lock."""

    kernel: str
    lockable: int


def enter(process: Process, held: Held, link: GuestLink, place: Place | None) -> int:
    """Has the program be where the guest was; returns the bytes of its pages. Errors: ByConversation; FarhomeError, WireError, OSError: it
    cannot be there."""
    context, frozen = held.context, held.frozen
    phases = Phases("program")
    if place is None or not link.is_whole or held.by_descriptor or process.options.trace or process.options.engine == "criu":
        raise ByConversation("the place of the guest is not for it")
    if obstacle(context, place.kernel) is not None or context.objects or not can_lock(context, place.lockable):
        raise ByConversation("it is not to be poured there")
    data, pages = with_pending(context, []).to_wire(), _pages(held)
    if len(data) + len(pages) > MOST:
        raise ByConversation("it is too big")
    try:
        leases = Leases.of(process.pid, held.standing.named)  # from here on nobody writes them
    except OpenForWriting as error:
        raise ByConversation(str(error)) from None
    mapped = files.mapped_files(process.pid, held.standing.named)
    mappings = Mappings.of(process.pid, held.standing.named, mapped, leases)
    for file in mapped:
        file.let_go()
    fields = announcement(process.pid, process.options.node, process.options.link_timeout, mapped)
    link.send(Control.PROGRAM, 0, context=data, pages=pages, **fields)
    phases.done("sent")
    home = HomeLink(list(inner_tids(process.pid, list(frozen.threads)).values()), has_session=False)
    home.used_away = held.used
    try:
        unlock(frozen, context)
        stub = Stub.prepare(frozen, home)  # while the target is at work
        stub.memory.is_little = True  # it may end before it is worth to give that up
        stub.watch(0, {})
        try:
            frozen.park()  # should we die while we wait, it goes on as if nothing had been
            stub.memory.objects = mappings.objects()
            phases.done("stub made")
            kept = _await_prepared(link)
            phases.done("prepared")
            _be_away(process, held, stub, link, mappings, kept)
        except BaseException:
            if process.away is None:
                stub.undo()
            raise
    except BaseException:
        if process.away is None:
            home.close()
            lock(frozen, context)
            mappings.let_go()
        raise
    phases.done("committed")
    phases.report(log)
    return len(pages)


def _pages(held: Held) -> bytes:
    """The pages that it has of its own, as they are sent. Errors: ByConversation: they are too many; OSError."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            send_pages(held.frozen.pid, held.context.maps, ours, FILLED)
        except TimeoutError:
            raise ByConversation("it has too many pages") from None
        ours.shutdown(socket.SHUT_WR)
        parts = []
        while part := theirs.recv(MOST):
            parts.append(part)
        return b"".join(parts)


def _await_prepared(link: GuestLink) -> list[Event]:
    """Return what else has come, and is about the new program as well. Errors: ByConversation; FarhomeError (LinkLost): it is not ready
    there."""
    kept: list[Event] = []

    def passes(event: Event) -> None:  # else it is of a guest that is over
        if event.kind == Control.EXPEL:
            kept.append(event)
        link.home.release()

    try:
        answer = link.wait(Control.PREPARED, passes, PREPARED_TIMEOUT)
    except TimeoutError as error:
        raise FarhomeError(str(error)) from None
    if answer.get("error"):
        raise ByConversation(str(answer["error"])) if answer.get("again") else FarhomeError(str(answer["error"]))
    return kept


def _be_away(process: Process, held: Held, stub: Stub, link: GuestLink, mappings: Mappings, kept: list[Event]) -> None:
    """It is ready there: from here on it is the guest. kept: is still to be dealt with. Errors: OSError: it is what it was before."""
    frozen = held.frozen
    waiting = take(frozen, but=0)
    try:
        if not frozen.note_commit(link.target.node):  # if we are killed after the commit, it must not run here
            frozen.park()
            bind(frozen)
        stopped = is_stopped(frozen, waiting)
    except BaseException:
        put_first(frozen, waiting)
        raise
    fresh = GuestLink.heir(link, stub.link)
    fresh.put_back(kept)
    fresh.send(Control.COMMIT, 0, pending=waiting, stopped=stopped)
    steps.reached("commit said")
    process.be_away(stub, fresh, mappings)
    with suppress(ProcessLookupError):  # it has just been killed
        bind(frozen)
    frozen.end_journal()
    assert process.away is not None
    process.away.signals.note(waiting)
    process.away.signals.stopped = stopped
    with suppress(ProcessLookupError):
        stub.start()


__all__ = ["ByConversation", "Place", "enter"]
