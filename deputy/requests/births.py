"""Births away: the guest is about to have a thread or a child, and the stub has it first, so that it has home's own id.

A child of the stub is a stub as well, with a deputy of its own in the same program; its guest calls home by its own link.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from deputy.link.guestlink import GuestLink, Target
from engine.phases import Phases
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.link.ends.events import Event
from kernel_helpers.usage import children
from wire.control import Control, unpack

if TYPE_CHECKING:
    from deputy.away import Away
    from deputy.process import Process
    from deputy.stub.stub import Stub

log = logging.getLogger("deputy")


class Family(Protocol):
    """Whom the program has beside one process that is away."""

    def bear(self, pid: int) -> Process:
        """A child that the stub has had is one of them. Errors: OSError."""

    def tell_of(self, child: Process) -> None:
        """The node daemon gets to know it."""

    def disown(self, number: int) -> Stub | None:
        """The child of that id (the program's) is none of them any more. Returns its stub, None if there is no such child."""


def handle(away: Away, family: Family, event: Event) -> bool:
    """Whether a frame from the remote is about a birth, and has been dealt with."""
    if event.kind == Control.NEW_THREAD:
        _new_thread(away, event.tid)
    elif event.kind == Control.NEW_PROCESS:
        _new_process(away, family, event)
    elif event.kind == Control.UNBORN:
        _unborn(away, family, event)
    else:
        return False
    return True


def _new_thread(away: Away, parent: int) -> None:
    """The guest's thread `parent` is about to make another."""
    thread = 0
    if not away.link.still:
        try:
            thread = away.stub.add_thread(parent)
        except (OSError, FarhomeError) as error:
            log.info("no new thread: %s", error)
    away.link.send(Control.BORN, parent, thread=thread, again=away.link.still)


def _new_process(away: Away, family: Family, event: Event) -> None:
    """The guest's thread event.tid is about to make a child."""
    number = 0
    if not away.link.still:
        asked, left = unpack(event.data), away.link.target
        target = Target(left.node, (left.address[0], int(asked["port"])), bytes(asked["secret"]))
        try:
            number = _bear(away, family, event.tid, int(asked["exit_signal"]), bool(asked["shares"]), target, int(asked.get("branch", 0)))
        except (OSError, FarhomeError, MemoryError) as error:
            log.info("no new process: %s", error)
    away.link.send(Control.BORN, event.tid, thread=number, again=away.link.still)


def _bear(away: Away, family: Family, parent: int, exit_signal: int, shares_memory: bool, target: Target, branch: int) -> int:
    """The child's id. branch: by which its calls come inside of our connection to begin with (0: they do not). Errors: OSError,
    FarhomeError, MemoryError; there is no child then."""
    phases = Phases("birth")
    try:
        stub = away.stub.bear(parent, exit_signal, away.signals.ignore_end_of)
    except BaseException:
        away.signals.await_unborn()
        raise
    phases.done("stub")
    try:
        child = family.bear(stub.pid)
    except BaseException:
        _undo(away, stub)
        stub.link.close()
        raise
    child.shares_memory = shares_memory
    children.begin(stub.pid, stub.program_tid(stub.pid), parent=away.pid)
    link = GuestLink.unconnected(stub.link, target, away.link.timeout, child.loop.wake)
    child.be_away(stub, link, away.mappings.inherited(stub.pid))
    if branch:
        link.start_inside(away.link.home, branch)
    phases.done("deputy")
    phases.report(log)
    family.tell_of(child)
    return stub.program_tid(stub.pid)


def _unborn(away: Away, family: Family, event: Event) -> None:
    """The guest has no such thread or child after all."""
    number = int(unpack(event.data)["thread"])
    child = family.disown(number)
    if child is not None:
        _undo(away, child)
    else:
        away.stub.end_thread(number)


def _undo(away: Away, child: Stub) -> None:
    """A child of the stub ends, and the guest never hears of it."""
    away.signals.ignore_end_of(child.program_tid(child.pid))
    away.stub.unbear(child)
    away.signals.await_unborn()
