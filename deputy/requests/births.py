"""Births away: the guest is about to have a thread or a child, and the stub has it first, so that it has home's own id.

A child of the stub is a stub as well, with a deputy of its own in the same program; its guest calls home by its own link.
"""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING, Any, Protocol

from deputy.link.guestlink import GuestLink, Target
from engine.phases import Phases
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.link.ends.events import Event
from kernel_helpers.link.ends.session import Branch
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
    if away.link.still:
        away.link.send(Control.BORN, event.tid, thread=0, again=True)
        return
    asked = unpack(event.data)
    phases = Phases("birth")
    try:
        stub, child, branch = _bear(away, family, event.tid, int(asked["exit_signal"]), int(asked.get("branch", 0)))
    except (OSError, FarhomeError, MemoryError) as error:
        log.info("no new process: %s", error)
        away.link.send(Control.BORN, event.tid, thread=0, again=False)
        return
    phases.done("stub")
    away.link.send(Control.BORN, event.tid, thread=stub.program_tid(stub.pid), again=False)  # the guest's is made while all else is
    try:
        _begin(away, stub, child, branch, asked)
    except BaseException:
        log.critical("process %d is lost: nobody can look after it", stub.pid)
        os.kill(stub.pid, signal.SIGKILL)
        child.finished = True
        raise
    phases.done("deputy")
    phases.report(log)
    family.tell_of(child)


def _begin(away: Away, stub: Stub, child: Process, branch: Branch | None, asked: dict[str, Any]) -> None:
    """The child's guest is being made, and calls home soon. Errors: OSError, MemoryError."""
    left = away.link.target
    target = Target(left.node, (left.address[0], int(asked["port"])), bytes(asked["secret"]))
    child.shares_memory = bool(asked["shares"])
    children.begin(stub.pid, stub.program_tid(stub.pid), parent=away.pid)
    link = GuestLink.unconnected(stub.link, target, away.link.timeout, child.loop.wake)
    child.be_away(stub, link, away.mappings.inherited(stub.pid))
    if branch is not None:
        link.start_inside(branch)


def _bear(away: Away, family: Family, parent: int, exit_signal: int, branch: int) -> tuple[Stub, Process, Branch | None]:
    """A child of the stub, and how its calls come inside of our connection to begin with, if that has a number. Errors: OSError,
    FarhomeError, MemoryError; there is no child then."""
    try:
        stub = away.stub.bear(parent, exit_signal, away.signals.ignore_end_of)
    except BaseException:
        away.signals.await_unborn()
        raise
    inside: Branch | None = None
    try:
        inside = Branch(away.link.home, branch) if branch else None
        return stub, family.bear(stub.pid), inside
    except BaseException:
        if inside is not None:
            inside.close()
        _undo(away, stub)
        stub.link.close()
        raise


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
