"""Out (from home) and hop (from one away node to another).

Out:  prepare -> freeze -> context and pages (or copy, dump, images) -> prepared -> COMMIT -> stub -> running
Hop:  prepare -> pause and freeze the guest -> it is sent from there straight to the target -> prepared -> COMMIT

Up to the commit everything is undone by letting the source run; after it nothing is.
"""

from __future__ import annotations

import logging
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from deputy.link.guestlink import GuestLink, Target
from deputy.moves.commit import commit, give_pages
from deputy.moves.frozen import Held, check_it_may_leave, send_late_files, watch_signals
from deputy.moves.preparation import Preparation
from deputy.moves.report import Report, steps_of
from deputy.moves.running import await_running
from deputy.requests import freezing, signalfds
from deputy.requests.freezing import Writes
from deputy.requests.leases import Leases, OpenForWriting
from deputy.requests.mapping import Mappings
from deputy.stub.resident import OPTIONS
from deputy.stub.stub import Stub
from engine.calls import rests
from engine.calls.restarts import shorten, timed_waits, waiting_places
from engine.context.capture import capture, inner_tids
from engine.context.confinement import IN_IMAGES, chains
from engine.context.context import Context, with_pending
from engine.context.marks import TOO_LITTLE, can_lock, lock, not_in_images, unlock
from engine.criu import criu
from engine.criu.forkcopy import fork_copy, wiped_ranges
from engine.files import files
from engine.leaving.permission import may_leave
from engine.leaving.private import private_directories
from engine.leaving.refusal import PRIVATE, Standing
from engine.leaving.remains import remains
from engine.mappings.address_space import read_mappings_quickly
from engine.mappings.layout import Span
from engine.memory.hollow import hollow_spans, page_ranges, to_wire
from engine.phases import Phases
from engine.pour import precopy
from engine.pour.vessel import obstacle
from engine.signals.pending import Pending, put_first, take
from engine.signals.signalfds import read_by
from kernel_helpers.common.errors import FarhomeError, MoveRefused
from kernel_helpers.link.ends.events import Part
from kernel_helpers.pages.pages import send_own_pages
from kernel_helpers.process import many, tracing
from kernel_helpers.process.injection.native import PTRACE_O_SUSPEND_SECCOMP
from kernel_helpers.process.journal import Journal
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS
from kernel_helpers.stream.stream import Connection
from wire import channel
from wire.channel import Channel, Refused
from wire.frames import WireError

if TYPE_CHECKING:
    from deputy.away import Away
    from deputy.process import Process

log = logging.getLogger("deputy")

RESTORE_TIMEOUT = 120.0
"""Seconds the target may take from the last byte of the images to `prepared`."""


def leave(process: Process, preparation: Preparation, begun: float, held: Held | None = None) -> Report:
    """From home to preparation.target. held: the process, if it stands still already (since `begun`). Errors: NotNow, MoveRefused,
    WireError, OSError: the process runs on at home."""
    left = remains(files.named_mappings(process.pid)) if held is None else []
    if held is None:
        freezing.await_writes(process.pid, None, preparation.over_since)
    places = waiting_places(process.pid) if held is None else {}
    waits = timed_waits(process.pid, places)
    if held is None:
        preparation.link.foresee()
    frozen_at = begun if held is not None else time.monotonic()
    preparation.phases.done("ready here")
    phases = Phases("out")
    frozen, ends = (held.frozen, {}) if held is not None else freezing.seize(process.pid, places, waits)
    cuts: dict[int, rests.Cut] = {}
    phases.done("stopped")
    try:
        cuts = rests.find(frozen) if held is None else {}
        if not all(rests.is_for_link(cut.number, cut.arguments) for cut in cuts.values()):
            raise Writes
        rests.make_again(frozen, cuts)
        standing, by_descriptor = (held.standing, held.by_descriptor) if held is not None else _look_at(process, preparation, frozen, left)
        phases.done("examined")
        mappings = _send_late_files(process, preparation, standing.named)
        phases.done("late files sent")
        names = inner_tids(process.pid, list(frozen.threads))
        if by_descriptor:
            watch_signals(
                preparation, read_by(process.pid, by_descriptor), {names[tid]: thread.signal_mask for tid, thread in frozen.threads.items()}
            )
        engine, size, context = _send(frozen, process, preparation, phases, held.context if held is not None else None, standing)
        link = preparation.link.take(list(names.values()))
        link.used_away = held.used if held is not None else []
        for tid, cut in cuts.items():
            link.expect_rest(names[tid], cut.number, cut.arguments, cut.done)
        try:
            if context is not None:
                unlock(frozen, context)  # else loop and slots would have to be locked
            stub = Stub.prepare(frozen, link, ends)  # while the target is at work
            stub.memory.is_little = held is not None  # it may end before it is worth to give that up
            stub.watch(preparation.watched, preparation.blocked)
            connection = _await_commit(process, preparation, frozen, stub, mappings, phases)
        except BaseException:
            link.close()
            if context is not None:
                lock(frozen, context)
            raise
    except BaseException:
        shorten(frozen, ends)
        process.rests.detach(frozen, cuts)
        raise
    frozen_until = _be_away(process, preparation, frozen, stub, mappings, connection, phases)
    if held is None:
        _settle(process)
    preparation.abandon()  # nothing of it is needed any more
    frozen_for = frozen_until - frozen_at + preparation.stood_still
    total, made = time.monotonic() - begun, steps_of(preparation.phases, phases)
    return Report(process.where, frozen_for * 1e3, total * 1e3, size, engine, preparation.progress, process.follows, made)


def _look_at(process: Process, preparation: Preparation, frozen: Frozen, left: Sequence[Span]) -> tuple[Standing, list[str]]:
    """See check_it_may_leave(). left: what an earlier stub has left mapped, which goes now. Errors: as that; OSError."""
    frozen.keep(Journal(process.options.journal))
    for start, end in left:
        frozen.call(SYS.munmap, start, end - start)
    return check_it_may_leave(process, preparation.owners, frozen)


def _send_late_files(process: Process, preparation: Preparation, named: list[files.FileMapping]) -> Mappings:
    """Those that it has mapped since they were sent; named: all that it has mapped. Returns these. Errors: MoveRefused, WireError,
    OSError."""
    try:
        leases = Leases.of(process.pid, named)  # from here on nobody writes them
    except OpenForWriting as error:
        raise MoveRefused(process.pid, str(error)) from None
    send_late_files(preparation, files.mapped_files(process.pid, named))
    return Mappings.of(process.pid, named, preparation.files, leases)


def _await_commit(process: Process, preparation: Preparation, frozen: Frozen, stub: Stub, mappings: Mappings, phases: Phases) -> Connection:
    """The stub is ready: as soon as the target is, too, the move is committed. Returns the connection of the link. Errors: as leave(); the
    stub is undone."""
    assert preparation.channel is not None
    connection: Connection | None = None
    try:
        phases.done("stub made")
        frozen.park()  # should we die while we wait, it goes on as if nothing had been
        phases.done("link made")
        stub.memory.objects = mappings.objects()
        connection = _connect(preparation)  # while the target pours
        preparation.channel.expect("prepared", timeout=RESTORE_TIMEOUT)
        if preparation.ahead is not None and preparation.ahead.owed:
            give_pages(preparation, process.options.link_timeout)
        _commit(frozen, preparation, stub.link.parts(), phases)
    except BaseException:
        if connection is not None:
            connection.close()
        stub.undo()
        raise
    return connection


def _connect(preparation: Preparation) -> Connection:
    """The link's connection. Errors: WireError, OSError, the target's own reason before that nobody is there any more."""
    assert preparation.channel is not None
    try:
        return channel.connect(preparation.target.address, "link", preparation.target.secret)
    except (WireError, OSError) as error:
        _raise_refusal(preparation.channel)
        raise error


def _raise_refusal(target: Channel) -> None:
    """If the target has refused the process. Errors: Refused."""
    try:
        target.expect("prepared", timeout=1.0)
    except Refused:
        raise
    except (WireError, OSError):
        pass


def _be_away(
    process: Process, preparation: Preparation, frozen: Frozen, stub: Stub, mappings: Mappings, connection: Connection, phases: Phases
) -> float:
    """From here on the process is the guest. What fails now ends it; it never runs here as well. Returns when it runs there."""
    frozen.end_journal()
    guest_link = GuestLink(stub.link, preparation.target, process.options.link_timeout, process.loop.wake)
    process.be_away(stub, guest_link, mappings)
    assert process.away is not None
    process.away.signals.note(preparation.waiting)
    process.away.signals.stopped = preparation.stopped
    if preparation.ahead is not None:
        process.is_followed(preparation.ahead.owed, preparation.giver)
        preparation.giver = None  # it is that one's now
    with suppress(ProcessLookupError):  # it has just been killed: the guest hears of it over the link
        stub.start()
    guest_link.start(connection)
    phases.done("committed")
    frozen_until = await_running(preparation, process.options.link_timeout, lambda: process.is_linked_by(guest_link))
    phases.done("running there")
    phases.report(log)
    return frozen_until


def _settle(process: Process) -> None:
    """The stub gives up its memory, if it can."""
    try:
        process.settle()
    except (FarhomeError, OSError) as error:
        log.info("the stub of %d keeps its memory: %s", process.pid, error)  # it has ended, as a rule; the commit stands


def _commit(frozen: Frozen, preparation: Preparation, parts: list[Part], phases: Phases) -> None:
    """The target is ready: the process ends with us from here on. Errors: WireError, OSError: it is what it was before."""
    waiting = take(frozen, but=preparation.watched)
    try:
        waits = frozen.note_commit(preparation.target.node)
        phases.done("restored there")
        if not waits:  # if we are killed after the commit, it must not run here
            frozen.park()
            bind(frozen)
        commit(preparation, waiting, is_stopped(frozen, waiting), parts)
    except BaseException:
        put_first(frozen, waiting)
        raise
    bind(frozen)


def is_stopped(frozen: Frozen, waiting: Pending) -> bool:
    """Return whether it was stopped (SIGSTOP, job control) when we came, and has not been continued since: what continued waits."""
    was_stopped = any(thread.group_stop for thread in frozen.threads.values())
    return was_stopped and all(tracing.signal_number(info) != signal.SIGCONT for _, info in waiting)


def bind(frozen: Frozen) -> None:
    """Has the process end with us. Errors: OSError."""
    threads = list(frozen.threads.values())
    for error in many.set_options(threads, lambda thread: OPTIONS | thread.options & PTRACE_O_SUSPEND_SECCOMP).values():
        if not isinstance(error, ProcessLookupError):  # it has just been killed
            raise error


def hop(process: Process, away: Away, preparation: Preparation, begun: float) -> Report:
    """From one away node to another. Errors: as leave; the guest runs on where it was."""
    assert preparation.channel is not None
    freezing.await_writes(away.pid, away.stub, preparation.over_since)
    talk = preparation.channel
    old = away.link
    source = preparation.source or _ready_source(old.target, preparation)
    frozen_at = time.monotonic()
    preparation.phases.done("ready here")
    phases = Phases("hop")
    pending = freezing.freeze_guest(away, preparation.over_since)
    phases.done("stopped")
    try:
        reason = "it ends, and dumps core" if away.death is not None else may_leave(away.pid, preparation.owners)
        if reason is not None:
            raise MoveRefused(away.pid, reason)
        pending = signalfds.adopt(away, pending)
        send_late_files(preparation, away.mappings.files())
        watch_signals(preparation, away.stub.watched, {away.stub.program_tid(tid): mask for tid, mask in away.stub.kept.items()})
        phases.done("late files sent")
        source.send(
            "hop", address=list(preparation.target.address), secret=preparation.target.secret,
            engine=preparation.engine, kernel=preparation.kernel, lockable=preparation.lockable,
        )  # fmt: skip
        engine, size, owed = _sent(source, talk)
        phases.done("captured and sent there")
        talk.expect("prepared", timeout=RESTORE_TIMEOUT)
        phases.done("restored there")
        connection = channel.connect(preparation.target.address, "link", preparation.target.secret)
        commit(preparation, pending, away.signals.stopped, old.home.parts())
    except BaseException:
        freezing.thaw(away)
        raise
    with suppress(OSError, WireError):  # who does not hear it ends its copy when it hears nothing more
        source.send("discard")
    old.home.renew()
    guest_link = GuestLink(old.home, preparation.target, process.options.link_timeout, process.loop.wake)
    away.hops(guest_link)
    guest_link.start(connection)
    away.signals.let_go()
    process.is_followed(owed)
    phases.done("committed")
    frozen_until = await_running(preparation, process.options.link_timeout, lambda: process.is_linked_by(guest_link))
    phases.done("running there")
    phases.report(log)
    preparation.abandon()
    frozen_for = frozen_until - frozen_at + preparation.stood_still
    total, made = time.monotonic() - begun, steps_of(preparation.phases, phases)
    return Report(process.where, frozen_for * 1e3, total * 1e3, size, engine, preparation.progress, process.follows, made)


def _ready_source(left: Target, preparation: Preparation) -> Channel:
    """For a hop of which nothing has gone ahead. Errors: WireError, OSError."""
    preparation.source = source = Channel(channel.connect(left.address, "move", left.secret, timeout=30.0))
    source.send("prepare", engine=preparation.engine)
    source.expect("ready", timeout=30.0)
    return source


def _send(
    frozen: Frozen, process: Process, preparation: Preparation, phases: Phases, context: Context | None, standing: Standing
) -> tuple[str, int, Context | None]:
    """The frozen process to the target, poured if that is asked for and can be, else as images. context: its own, if that is known. Returns
    engine and bytes, and the context of what was poured."""
    assert preparation.channel is not None
    talk = preparation.channel
    if preparation.engine != "criu":
        if context is None:
            context = capture(frozen, known=standing.maps)
            frozen.park()  # should we die while it is sent, it goes on as if nothing had been
        phases.done("captured")
        if not can_lock(context, preparation.lockable):
            raise MoveRefused(frozen.pid, TOO_LITTLE)
        reason = obstacle(context, preparation.kernel)
        if reason is None:
            size = precopy.send_context(frozen, with_pending(context, []), talk, preparation.ahead)
            phases.done("sent")
            return "pour", size, context
        if preparation.engine == "pour":
            raise MoveRefused(frozen.pid, reason)
        log.info("not poured: %s", reason)
    if any(chains(frozen).values()):
        raise MoveRefused(frozen.pid, IN_IMAGES)
    if private_directories(frozen.pid):
        raise MoveRefused(frozen.pid, PRIVATE)
    return "criu", _copy_and_send(frozen, process.options.images / f"out-{process.pid}", talk, phases), None


def _copy_and_send(frozen: Frozen, directory: Path, talk: Channel, phases: Phases) -> int:
    """Dumps a copy of the frozen process, sends the images, and the memory beside them; returns how many bytes. Nothing is left
    on the disk."""
    reason = not_in_images(frozen, read_mappings_quickly(frozen.pid))
    if reason is not None:
        raise MoveRefused(frozen.pid, reason)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, mode=0o700)
    try:
        wiped = wiped_ranges(frozen.pid)
        hollow = hollow_spans(frozen, wiped)
        copy = fork_copy(frozen, wiped, hollow)
        phases.done("copy")
        try:
            criu.dump(copy, directory)
        finally:
            phases.done("dump")
            copy.discard()
        phases.done("discard")
        talk.send("images", beside=to_wire(hollow))
        size = talk.send_directory(directory)
        size += send_own_pages(frozen.pid, page_ranges(hollow), talk.connection, RESTORE_TIMEOUT).bytes
        phases.done("sent")
        return size
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _sent(source: Channel, target: Channel) -> tuple[str, int, int]:
    """Engine, and the bytes that the node that is left has sent, and that are to follow. Errors: WireError, the target's own
    reason before that of the source."""
    try:
        sent = source.expect("sent", timeout=RESTORE_TIMEOUT)
        return str(sent["engine"]), int(sent["bytes"]), int(sent.get("owed", 0))
    except (WireError, OSError) as error:
        _raise_refusal(target)
        raise error
