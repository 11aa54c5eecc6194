"""Births away: the guest is about to have a thread or a child, and the stub has it first, so that it has home's own id.

A child of the stub is a stub as well, with a deputy of its own in the same program; its guest calls home by its own link.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from deputy.guestlink import GuestLink
from deputy.preparation import Target
from engine.phases import Phases
from kernel_helpers.errors import FarhomeError
from kernel_helpers.link.link import Event
from kernel_helpers.usage import children
from wire.control import Control, unpack

if TYPE_CHECKING:
    from deputy.deputy import Deputy
    from deputy.stub import Stub

log = logging.getLogger("deputy")


def handle(deputy: Deputy, event: Event) -> bool:
    """Whether a frame from the remote is about a birth, and has been dealt with."""
    if event.kind == Control.NEW_THREAD:
        _new_thread(deputy, event.tid)
    elif event.kind == Control.NEW_PROCESS:
        _new_process(deputy, event)
    elif event.kind == Control.UNBORN:
        _unborn(deputy, event)
    else:
        return False
    return True


def _new_thread(deputy: Deputy, parent: int) -> None:
    """The guest's thread `parent` is about to make another."""
    assert deputy.link is not None and deputy.stub is not None
    thread = 0
    if not deputy.link.still:
        try:
            thread = deputy.stub.add_thread(parent)
        except (OSError, FarhomeError) as error:
            log.info("no new thread: %s", error)
    deputy.link.send(Control.BORN, parent, thread=thread, again=deputy.link.still)


def _new_process(deputy: Deputy, event: Event) -> None:
    """The guest's thread event.tid is about to make a child."""
    assert deputy.link is not None and deputy.stub is not None
    number = 0
    if not deputy.link.still:
        asked = unpack(event.data)
        link = deputy.link
        target = Target(link.target.node, (link.target.address[0], int(asked["port"])), bytes(asked["secret"]))
        try:
            number = _bear(deputy, event.tid, int(asked["exit_signal"]), bool(asked["shares"]), target)
        except (OSError, FarhomeError, MemoryError) as error:
            log.info("no new process: %s", error)
    deputy.link.send(Control.BORN, event.tid, thread=number, again=deputy.link.still)


def _bear(deputy: Deputy, parent: int, exit_signal: int, shares_memory: bool, target: Target) -> int:
    """The child's id. Errors: OSError, FarhomeError, MemoryError; there is no child then."""
    assert deputy.link is not None and deputy.stub is not None and deputy.signals is not None
    phases = Phases("birth")
    try:
        stub = deputy.stub.bear(parent, exit_signal, deputy.signals.ignore_end_of)
    except BaseException:
        deputy.signals.await_unborn()
        raise
    phases.done("stub")
    try:
        child = deputy.bear(stub.pid)
    except BaseException:
        _undo(deputy, stub)
        stub.link.close()
        raise
    child.shares_memory = shares_memory
    children.begin(stub.pid, stub.program_tid(stub.pid), parent=deputy.pid)
    child.be_away(stub, GuestLink.unconnected(stub.link, target, deputy.options.link_timeout), deputy.mappings.inherited(stub.pid))
    phases.done("deputy")
    stub.memory.settle()
    phases.done("memory")
    phases.tell(log)
    deputy.tree.newborns.add(child, {"event": "born", "pid": stub.pid, "where": child.where})
    return stub.program_tid(stub.pid)


def _unborn(deputy: Deputy, event: Event) -> None:
    """The guest has no such thread or child after all."""
    assert deputy.stub is not None
    number = int(unpack(event.data)["thread"])
    for child in deputy.tree.members:
        if child is not deputy and child.stub is not None and child.stub.program_tid(child.pid) == number:
            child.finished = True
            _undo(deputy, child.stub)
            return
    deputy.stub.end_thread(number)


def _undo(deputy: Deputy, child: Stub) -> None:
    """A child of the stub ends, and the guest never hears of it."""
    assert deputy.stub is not None and deputy.signals is not None
    deputy.signals.ignore_end_of(child.program_tid(child.pid))
    deputy.stub.unbear(child)
    deputy.signals.await_unborn()
