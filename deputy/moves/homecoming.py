"""Coming home: the guest's context is poured back into the stub, which becomes the native process again."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deputy.link.guestlink import LinkLost
from deputy.moves.report import Report, steps_of
from deputy.requests import freezing
from engine.calls import rests
from engine.calls.restarts import SLEEPS, make_again
from engine.context.confinement import chains, lets_sleeps_go_on
from engine.context.context import Context, ThreadContext, with_pending
from engine.mappings.address_space import Maps
from engine.mappings.layout import Span
from engine.memory import alone
from engine.phases import Phases
from engine.pour import precopy
from engine.pour.refill import Refilled, RefillFailed, refill
from engine.signals.pending import Pending, put, settled, take
from engine.signals.ticks import merged
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.process import syscalls
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS, Registers
from kernel_helpers.usage import children
from wire import channel
from wire.channel import Channel
from wire.frames import WireError

if TYPE_CHECKING:
    from deputy.away import Away
    from deputy.moves.memory_ahead import Approach
    from deputy.moves.memory_late import LateMemory
    from deputy.process import Process
    from deputy.stub.stub import Stub

log = logging.getLogger("deputy")

CONTEXT_LIMIT = 64 << 20
"""Bytes of a context without its pages: 65,536 maps and 4,096 threads fit."""


class TryAgain(FarhomeError):
    """Only the moment was wrong: {reason}"""


def come_home(process: Process, away: Away, begun: float, approach: Approach | None = None) -> Report:
    """approach: what has come ahead. Errors: FarhomeError, WireError, OSError: the guest runs on where it is. LinkLost: it is gone."""
    link, stub = away.link, away.stub
    since = begun if approach is None else approach.over_since
    freezing.await_writes(away.pid, stub, since)
    if approach is not None and not approach.is_of_use:
        approach.close()
        approach = None
    talk = approach.talk if approach is not None else None
    if talk is None:
        talk = Channel(channel.connect(link.target.address, "move", link.target.secret, timeout=30.0))
    try:
        frozen_at = time.monotonic()
        phases = Phases("home")
        pending = freezing.freeze_guest(away, since)
        kept: Pending = []
        phases.done("stopped")
        try:
            came = _refill(away, approach, talk, pending, kept, phases)
        except BaseException:
            if kept:
                with suppress(OSError, FarhomeError):
                    put(stub.stop(), kept)
            stub.resume_as_stub()
            freezing.thaw(away)
            raise
        phases.done("restored")
        frozen_until = _let_go(process, away, came)
        phases.done("running")
        phases.report(log)
        process.away = None
        process.is_followed(sum(end - start for start, end in came.owed), late=came.late)
        try:
            talk.send("discard")
            if approach is not None:
                approach.forgo()
        finally:
            away.close()
        ahead = approach.progress if approach is not None else precopy.Progress()
        children.forget(process.pid)
        talk.close()
        frozen_for = frozen_until - frozen_at + (approach.stood_still if approach is not None else 0.0)
        total, size = time.monotonic() - begun, came.refilled.pages.bytes + ahead.sent
        made = steps_of(approach.phases if approach is not None else None, phases)
        return Report("home", frozen_for * 1e3, total * 1e3, size, "refill", ahead, process.follows, made)
    except freezing.Writes:  # it was not stopped: what has come ahead stays of use, and its conversation goes on
        if approach is None:
            talk.close()
        raise
    except BaseException:
        if approach is not None:
            approach.close()  # its conversation ends here, and what has come by it is of no use any more
        talk.close()
        raise


@dataclass(frozen=True)
class _Came:
    """The process is whole in its stub, but for what is `owed`: pages that follow by `late`. may_go_on: the kernel may go on with the
    sleeps that it interrupted."""

    frozen: Frozen
    refilled: Refilled
    owed: list[Span]
    late: LateMemory | None
    may_go_on: bool


def _refill(away: Away, approach: Approach | None, talk: Channel, pending: Pending, kept: Pending, phases: Phases) -> _Came:
    """The guest stands still: its context is poured into the stub. kept: is given the signals that are taken from the stub. Errors: as
    come_home(); the stub can go on as such."""
    stub = away.stub
    talk.send("capture", ahead=approach is not None, spoilt=approach.spoilt() if approach is not None else [])
    announced = talk.expect("context", timeout=30.0)
    filled, owed = precopy.spans(announced.get("kept", [])), precopy.spans(announced.get("owed", []))
    context = Context.from_wire(talk.receive_block(CONTEXT_LIMIT))
    phases.done("captured there")
    stub.relocate([*Maps.of(context.maps).spans, *(one.span for one in context.objects)])
    frozen = stub.stop()
    if approach is not None:
        for start, end in approach.areas_but(filled):
            frozen.call(SYS.munmap, start, end - start)
        approach.spent()
    phases.done("stub stopped")
    kept += take(frozen)  # they would go with the actions of signals, which are set
    waiting = settled(merged(pending + away.signals.held() + kept))
    may_go_on = lets_sleeps_go_on(chains(frozen).values())
    context = _with_restarts(with_pending(context, waiting), stub, may_go_on)
    names = away.mappings.names()
    try:
        spared = alone.unreserved(context.maps)
        with alone.beside(frozen, context.objects, spared, names, talk.connection) as more:
            refilled = refill(frozen, context, talk.connection, stub.reserved, names=names | more, filled=filled,
                              taker=approach.taker if approach is not None else None)  # fmt: skip
    except RefillFailed as failure:
        if not failure.stub_usable:
            raise LinkLost(f"could not be left: {failure}") from failure
        if failure.again:
            raise TryAgain(str(failure)) from failure
        raise
    late = None
    if owed:
        try:
            if approach is None:
                raise WireError("memory is to follow that cannot")
            late = approach.follow(frozen, filled, owed)
        except BaseException:
            refilled.undo()
            raise
    return _Came(frozen, refilled, owed, late, may_go_on)


def _let_go(process: Process, away: Away, came: _Came) -> float:
    """The process is whole at home and the guest stands still for good: the decision is made here. Returns when it runs."""
    stub = away.stub
    if not came.may_go_on and not came.owed:
        _shorten_sleeps(came.frozen, stub)
    stub.remove_resident()
    if away.death is not None:
        away.death.give(came.frozen, stub.host(away.death.tid))
    process.rests.detach(came.frozen, _cuts(came.frozen, stub) if away.death is None else {})
    return time.monotonic()


def _cuts(frozen: Frozen, stub: Stub) -> dict[int, rests.Cut]:
    """Threads that have come in the middle of a write of which a part is done."""
    found = {}
    some = set(stub.link.with_rests())
    for tid, thread in frozen.threads.items():
        if stub.program_tid(tid) not in some:
            continue
        number, done = stub.link.rest(stub.program_tid(tid))
        cut = rests.has_come(thread, number, done) if done else None
        if cut is not None:
            found[tid] = cut
    return found


def _with_restarts(context: Context, stub: Stub, may_go_on: bool) -> Context:
    """Threads that were interrupted in a sleep or poll whose remaining time the kernel still keeps in the stub's own thread finish it
    by restart_syscall(2), if their seccomp filters let it, instead of beginning it anew. An epoll_wait is begun anew, with the milliseconds
    that are left: the register keeps them afterwards, which no compiled call of it looks at."""

    known = set(stub.link.suspended())

    def resumed(thread: ThreadContext) -> ThreadContext:
        if thread.tid not in known:
            return thread
        registers = Registers.from_buffer_copy(thread.registers)
        stands_in = syscalls.signed(registers.orig_rax)
        if stands_in < 0 or syscalls.signed(registers.rax) not in syscalls.RESTART_CODES:
            return thread
        if may_go_on and stub.resumable(thread.tid) == stands_in:
            return replace(thread, resume_with_restart_syscall=True)
        left = stub.milliseconds_left(thread.tid, stands_in)
        if left is not None:
            setattr(registers, "rdx" if stands_in == SYS.poll else "r10", left)
            return replace(thread, registers=bytes(registers))
        return thread

    return replace(context, threads=tuple(resumed(thread) for thread in context.threads))


def _shorten_sleeps(frozen: Frozen, stub: Stub) -> None:
    """Sleeps that the kernel may not go on with are begun anew, with the time that is left."""
    for thread in frozen.threads.values():
        number = syscalls.signed(thread.registers.orig_rax)
        if number in SLEEPS and syscalls.signed(thread.registers.rax) in syscalls.RESTART_CODES:
            deadline = stub.link.deadline(stub.program_tid(thread.tid), number)
            if deadline is not None:
                make_again(frozen, thread, number, deadline)
