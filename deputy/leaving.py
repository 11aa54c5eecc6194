"""Out (from home) and hop (from one away node to another).

Out:  prepare -> freeze -> context and pages (or copy, dump, images) -> prepared -> COMMIT -> stub -> running
Hop:  prepare -> pause and freeze the guest -> it is sent from there straight to the target -> prepared -> COMMIT

Up to the commit everything is undone by letting the source run; after it nothing is.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deputy import freezing
from deputy.freezing import NotNow
from deputy.guestlink import GuestLink
from deputy.mapping import Mappings
from deputy.report import Report
from deputy.stub import OPTIONS, Stub
from engine import criu, files, postcopy, precopy
from engine.capture import capture
from engine.commit import Decider, Do, Word, decide
from engine.context import with_pending
from engine.forkcopy import fork_copy, wiped_ranges
from engine.hollow import hollow_spans, page_ranges, to_wire
from engine.pending import Pending, put, take
from engine.phases import Phases
from engine.private import private_directories
from engine.refusal import PRIVATE, passes, why_not, why_not_frozen
from engine.remains import remains
from engine.restarts import deadlines, name_restarted_calls, shorten, timed_waits, waiting_places
from engine.vessel import obstacle
from kernel_helpers.errors import FarhomeError, MoveRefused
from kernel_helpers.journal import Journal
from kernel_helpers.link import HomeLink
from kernel_helpers.pages import send_own_pages
from kernel_helpers.seizing import Frozen, seize
from kernel_helpers.syscalls import SYS
from wire import channel, steps
from wire.channel import Channel, Refused
from wire.frames import WireError
from wire.waking import ready

if TYPE_CHECKING:
    from deputy.deputy import Deputy

log = logging.getLogger("deputy")

RESTORE_TIMEOUT = 120.0
"""Seconds the target may take from the last byte of the images to `prepared`."""

SOURCE_TIMEOUT = 3600.0
"""Seconds that memory may go ahead of a guest that is to hop; each round has bounds of its own."""

RUNNING_TIMEOUT = 10.0
"""Seconds from the commit to the word that the process runs."""
RETRY = 0.25
"""Seconds between two commits."""

REPLACEMENT_TIMEOUT = 5.0
"""Seconds that a new program is held for want of a word of the target."""


@dataclass(frozen=True)
class Target:
    """A remote that waits on a node."""

    node: str
    address: tuple[str, int]
    secret: bytes


class Preparation:
    """Asks a target to prepare, in a worker thread, while the process runs on."""

    def __init__(
        self, pid: int, target: Target, home: str, engine: str, known: list[files.MappedFile] | None = None, held_by: int | None = None,
        trace: bool = False, left: Target | None = None, memory: str = "auto", begins: str = "",
    ) -> None:  # fmt: skip
        """begins: the name of the program that the process is about to execute, which is to leave (deputy/beginning.py).
        known: what the guest that is to hop has mapped, left: where it is. trace: its calls are to be told. held_by: the process is
        another program than the guest that stands still there, and held by this tracer until it can go. memory: of precopy.MODES."""
        self.pid = pid
        self.engine = engine
        self.kernel = ""
        self.target = target
        self.home = home
        self.channel: Channel | None = None
        self._decider = Decider.MOVING
        self._pending: Pending = []
        self.source: Channel | None = None
        """to where a guest is that is to hop"""
        self._left = left
        self.files = known or []
        self._is_hop = known is not None
        self._held_by = held_by
        self._trace = trace
        self.begins = begins
        self.memory = memory
        self.giver: postcopy.Giver | None = None
        """who gives memory of the process that follows it"""
        self._patience = REPLACEMENT_TIMEOUT if held_by else 30.0
        self._error: BaseException | None = None
        self.ahead: precopy.Ahead | None = None
        """its memory goes ahead"""
        self.unwatched = False
        """the guest has to be watched first"""
        self.stood_still = 0.0
        """seconds, for the memory to go ahead"""
        self.progress = precopy.Progress()
        """of the memory that goes ahead"""
        self.areas: list[precopy.Area] = []
        """what of its memory may"""
        self.is_over = False
        """nothing more is done in the worker"""
        self.over_since = 0.0
        """when that began, as time.monotonic()"""

    def run(self, done: Callable[[], None]) -> None:
        """The worker's body; never raises, see check()."""
        self._work(self._run, done)

    def _work(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # handed over to the loop by check()
            self._error = error
        self.over_since = time.monotonic()
        self.is_over = True  # the thread itself is alive still when the loop turns
        done()

    def _run(self) -> None:
        reason = None if self._is_hop else why_not(self.pid, self._held_by, lasting=True)
        if reason is not None:
            raise MoveRefused(self.pid, reason)
        self.channel = Channel(channel.connect(self.target.address, "move", self.target.secret, timeout=self._patience))
        if self._held_by:
            self.channel.send("replace")
        uname = os.uname()
        status = _status(self.pid)
        if not self._is_hop:
            self.files = files.mapped_files(self.pid)
        self.channel.send(
            "prepare", pid=_program_tid(self.pid, self.pid), home=self.home, nodename=uname.nodename,
            uid=int(status["Uid"].split()[0]), command=self.begins or status["Name"].strip(), files=[file.to_wire() for file in self.files],
            engine=self.engine, trace=self._trace,
        )  # fmt: skip
        self._send_wanted(self.files)
        self._tell_clocks()
        if self._left is not None:
            self._prepare_source(self._left)
        elif not self._held_by and not self.begins:
            self.look_for_areas()

    def look_for_areas(self) -> None:
        """What may go ahead of the process, which is at home. Errors: OSError."""
        if self.engine != "criu" and self.kernel:
            self.areas = precopy.areas_of(self.pid)

    def _prepare_source(self, left: Target) -> None:
        """The node that the guest is on sends what can go ahead of it."""
        self.source = self.source or Channel(channel.connect(left.address, "move", left.secret, timeout=30.0))
        self.source.send(
            "prepare", engine=self.engine, address=list(self.target.address), secret=self.target.secret, memory=self.memory
        )
        try:
            self._await_source(left)
        except (WireError, OSError) as error:
            log.info("nothing goes ahead of process %d from %s: %s", self.pid, left.node, error)
            self.source.close()
            self.source = None

    def _await_source(self, left: Target) -> None:
        assert self.source is not None
        while (message := self.source.next(timeout=SOURCE_TIMEOUT))["op"] == "progress":
            self.progress = precopy.Progress(int(message["total"]), int(message["round"]), int(message["sent"]), int(message["left"]))
        if message["op"] != "ready":
            raise WireError(f"{left.node} said {message['op']!r} where 'ready' was due")
        self.unwatched = bool(message.get("unwatched"))
        if message.get("sent"):
            self.progress = precopy.Progress(before=int(message["sent"]), seconds=float(message["seconds"]))

    def prepare_source_again(self, done: Callable[[], None]) -> None:
        """The body of another worker, when the guest is watched; never raises, see check()."""
        assert self._left is not None
        left = self._left
        self._work(lambda: self._prepare_source(left), done)

    def send_ahead(self, done: Callable[[], None]) -> None:
        """The body of another worker: rounds of memory, while the process runs; never raises, see check()."""
        assert self.ahead is not None and self.channel is not None
        ahead, target = self.ahead, self.channel
        self.progress = ahead.progress
        self._work(lambda: ahead.run(target), done)

    def _tell_clocks(self) -> None:
        """Until the target is ready: it asks how late it is here, for the guest's clocks are those of its home."""
        assert self.channel is not None
        while (message := self.channel.next(timeout=self._patience))["op"] == "clocks":
            self.channel.send(
                "clocks", monotonic=time.clock_gettime_ns(time.CLOCK_MONOTONIC), boottime=time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            )
        if message["op"] != "ready":
            raise WireError(f"the target said {message['op']!r} where 'ready' was due")
        self.kernel = str(message.get("kernel"))

    def _send_wanted(self, offered: list[files.MappedFile]) -> None:
        assert self.channel is not None
        wanted = set(self.channel.expect("wanted", timeout=self._patience)["sha256"])
        for file in offered:
            if file.sha256 in wanted:
                wanted.discard(file.sha256)
                with file.open() as source:
                    self.channel.send("content", sha256=file.sha256, size=file.size)
                    self.channel.send_stream(file.size, source.read)

    def send_late_files(self, now: list[files.MappedFile]) -> None:
        """Those of the files that the process has mapped now, being frozen, that it mapped after `prepare`."""
        assert self.channel is not None
        known = {(file.path, file.sha256) for file in self.files}
        late = [file for file in now if (file.path, file.sha256) not in known]
        if late:
            self.channel.send("files", files=[file.to_wire() for file in late])
            self._send_wanted(late)
            self.channel.expect("ready", timeout=30.0)
            self.files += late

    def check(self) -> None:
        """Raises what went wrong in the worker."""
        if self._error is not None:
            raise self._error if isinstance(self._error, (FarhomeError, WireError, OSError)) else FarhomeError(str(self._error))

    def note(self, word: Word) -> Do:
        """What is to be done after that (engine/commit.py)."""
        self._decider, action = decide(self._decider, word)
        return action

    def commit(self, pending: Pending) -> None:
        """From here on the process is the target's. Errors: OSError, WireError: it has not been said, and is not."""
        assert self.channel is not None
        try:
            if ready([self.channel.connection.fileno()], 0.0):
                raise WireError(f"the target said {self.channel.next()['op']!r} where nothing was due")  # it has changed its mind, or gone
            self.channel.send("commit", pending=pending)
        except BaseException:
            self.note(Word.UNSAID)
            raise
        steps.reached("commit said")
        self.note(Word.COMMIT)
        self._pending = pending

    def await_running(self, patience: float) -> float:
        """When the target said that the process runs (time.monotonic()), or was last asked. If it does not say so, commit is said again,
        for `patience` seconds: it may be lost. Afterwards the link tells what is the matter."""
        assert self.channel is not None
        talk, end = self.channel, time.monotonic() + patience
        while True:
            try:
                talk.expect("running", timeout=min(RUNNING_TIMEOUT, patience))
                self.note(Word.RUNNING)
                return time.monotonic()
            except (WireError, OSError) as error:
                log.warning("no word after the commit: %s", error)
            if time.monotonic() > end or self.note(Word.BROKEN) is not Do.AGAIN:
                return time.monotonic()
            time.sleep(RETRY)
            with suppress(OSError, WireError):
                again = Channel(channel.connect(self.target.address, "move", self.target.secret, timeout=2.0))
                self.channel.close()
                self.channel = talk = again
                talk.send("commit", pending=self._pending)

    def give_pages(self, patience: float) -> None:
        """Memory of the process, which stands still, is to follow it. patience: seconds that nobody may ask for it."""

        def connect() -> socket.socket:
            return channel.connect(self.target.address, "page", self.target.secret, timeout=postcopy.PROGRESS_TIMEOUT)

        self.giver = postcopy.Giver(self.pid, patience, connect)
        self.giver.start(lambda: None)

    def abandon(self) -> None:
        """The move is over, or off: then the target undoes everything."""
        if self.giver is not None:
            self.giver.close()
        if self.note(Word.ABORT) is Do.GO_ON and self.channel is not None:
            with suppress(OSError, WireError):
                self.channel.send("abort")
        if self.ahead is not None:
            self.ahead.close()
        for connection in (self.channel, self.source):
            if connection is not None:
                connection.close()


def leave(
    deputy: Deputy, preparation: Preparation, begun: float, held: Frozen | None = None, used: list[list[int]] | None = None
) -> Report:
    """From home to preparation.target. held: the process, if it stands still already (since `begun`), with what it has `used` away before.
    Errors: NotNow, MoveRefused, WireError, OSError: the process runs on at home."""
    assert preparation.channel is not None
    talk = preparation.channel
    if held is None:
        freezing.await_writes(deputy.pid, preparation.over_since)
    frozen_at = begun if held is not None else time.monotonic()
    phases = Phases("out")
    left = remains(files.mappings(deputy.pid)) if held is None else []
    frozen, ends = (held, {}) if held is not None else _seize(deputy.pid)
    phases.done("seize")
    try:
        frozen.keep(Journal(deputy.journal))
        for start, end in left:
            frozen.call(SYS.munmap, start, end - start)
        reason = why_not(deputy.pid, traced_by=deputy.tree.thread)
        if reason is not None and passes(reason):
            raise NotNow(reason)
        reason = reason or why_not_frozen(frozen)
        if reason is None and any(thread.group_stop for thread in frozen.threads.values()):
            reason = "it is stopped"
        if reason is not None:
            raise MoveRefused(deputy.pid, reason)
        phases.done("why not")
        preparation.send_late_files(files.mapped_files(deputy.pid))
        mappings = Mappings.of(deputy.pid, preparation.files)
        phases.done("late files")
        engine, size = _send(frozen, deputy, preparation, phases, has_run=held is None)
        link = HomeLink([_program_tid(deputy.pid, tid) for tid in frozen.threads])
        link.used_away = used or []
        try:
            stub = Stub.prepare(frozen, link, ends)  # while the target is at work
            try:
                phases.done("loop")
                frozen.park()  # should we die while we wait, it goes on as if nothing had been
                phases.done("stub")
                talk.expect("prepared", timeout=RESTORE_TIMEOUT)
                if preparation.ahead is not None and preparation.ahead.owed:
                    preparation.give_pages(deputy.options.link_timeout)
                connection = _commit(frozen, preparation, phases)
            except BaseException:
                stub.undo()
                raise
        except BaseException:
            link.close()
            raise
    except BaseException:
        shorten(frozen, ends)
        frozen.detach()
        raise
    # From here on the process is the guest. What fails now ends it; it never runs here as well.
    frozen.end_journal()
    guest_link = GuestLink(link, preparation.target, deputy.options.link_timeout)
    deputy.be_away(stub, guest_link, mappings)
    if preparation.ahead is not None:
        deputy.is_followed(preparation.ahead.owed, preparation.giver)
        preparation.giver = None  # it is the deputy's now
    with suppress(ProcessLookupError):  # it has just been killed: the guest hears of it over the link
        stub.start()
    guest_link.start(connection)
    phases.done("commit")
    frozen_until = preparation.await_running(deputy.options.link_timeout)
    phases.done("start there")
    phases.tell(log)
    try:
        deputy.settle()
    except (FarhomeError, OSError) as error:
        log.info("the stub of %d keeps its memory: %s", deputy.pid, error)  # it has ended, as a rule; the commit stands
    preparation.abandon()  # nothing of it is needed any more
    frozen_for = frozen_until - frozen_at + preparation.stood_still
    total = time.monotonic() - begun
    return Report(deputy.where, frozen_for * 1e3, total * 1e3, size, engine, preparation.progress, deputy.follows)


def _commit(frozen: Frozen, preparation: Preparation, phases: Phases) -> socket.socket:
    """The target is ready. Returns the connection of the link; the process ends with us from here on. Errors: WireError, OSError: the
    process is what it was before."""
    connection = channel.connect(preparation.target.address, "link", preparation.target.secret)
    try:
        waiting = take(frozen)
        try:
            waits = frozen.note_commit(preparation.target.node)
            phases.done("restore there")
            if not waits:  # whoever kills us after the commit must not let it run here
                frozen.park()
                _bind(frozen)
            preparation.commit(waiting)
        except BaseException:
            put(frozen, waiting)
            raise
        _bind(frozen)
    except BaseException:
        connection.close()
        raise
    return connection


def _bind(frozen: Frozen) -> None:
    """The process ends with us. Errors: OSError."""
    for thread in frozen.threads.values():
        with suppress(ProcessLookupError):  # it has just been killed
            thread.set_options(OPTIONS)


def _seize(pid: int) -> tuple[Frozen, dict[int, int]]:
    """All threads stopped, and until when those of them wait that are in a call with a deadline."""
    places = waiting_places(pid)
    waits = timed_waits(pid, places)
    frozen = seize(pid)
    name_restarted_calls(frozen, places)
    return frozen, deadlines(frozen, waits)


def watch(deputy: Deputy) -> tuple[int, float]:
    """Stops the process for a moment, from when on its memory may go ahead of it. Returns by which userfaultfd its writes are noted, -1 if
    they cannot be, and for how many seconds it stood still. Errors: OSError."""
    begun = time.monotonic()
    frozen, ends = _seize(deputy.pid)
    try:
        frozen.keep(Journal(deputy.journal))
        userfaultfd = precopy.userfaultfd_or_none(frozen)
    finally:
        shorten(frozen, ends)
        frozen.detach()
    return userfaultfd, time.monotonic() - begun


def hop(deputy: Deputy, preparation: Preparation, begun: float) -> Report:
    """From one away node to another. Errors: as leave; the guest runs on where it was."""
    assert preparation.channel is not None and deputy.link is not None and deputy.signals is not None
    freezing.await_writes(deputy.pid, preparation.over_since)
    talk = preparation.channel
    old = deputy.link
    source = preparation.source or _ready_source(old.target, preparation)
    frozen_at = time.monotonic()
    phases = Phases("hop")
    pending = freezing.freeze_guest(deputy)
    phases.done("freeze")
    try:
        preparation.send_late_files(deputy.mappings.files())
        phases.done("late files")
        source.send(
            "hop", address=list(preparation.target.address), secret=preparation.target.secret,
            engine=preparation.engine, kernel=preparation.kernel,
        )  # fmt: skip
        engine, size, owed = _sent(source, talk)
        phases.done("dump and send there")
        talk.expect("prepared", timeout=RESTORE_TIMEOUT)
        phases.done("restore there")
        connection = channel.connect(preparation.target.address, "link", preparation.target.secret)
        preparation.commit(pending)
    except BaseException:
        freezing.thaw(deputy)
        raise
    with suppress(OSError, WireError):  # who does not hear it ends its copy when it hears nothing more
        source.send("discard")
    old.home.renew()
    deputy.link = GuestLink(old.home, preparation.target, deputy.options.link_timeout)
    deputy.link.start(connection)
    deputy.signals.let_go()
    deputy.where = preparation.target.node
    deputy.is_followed(owed)
    phases.done("commit")
    frozen_until = preparation.await_running(deputy.options.link_timeout)
    phases.done("start there")
    phases.tell(log)
    preparation.abandon()
    frozen_for = frozen_until - frozen_at + preparation.stood_still
    total = time.monotonic() - begun
    return Report(deputy.where, frozen_for * 1e3, total * 1e3, size, engine, preparation.progress, deputy.follows)


def _ready_source(left: Target, preparation: Preparation) -> Channel:
    """For a hop of which nothing has gone ahead. Errors: WireError, OSError."""
    preparation.source = source = Channel(channel.connect(left.address, "move", left.secret, timeout=30.0))
    source.send("prepare", engine=preparation.engine)
    source.expect("ready", timeout=30.0)
    return source


def _send(frozen: Frozen, deputy: Deputy, preparation: Preparation, phases: Phases, has_run: bool) -> tuple[str, int]:
    """The frozen process to the target, poured if that is asked for and can be, else as images. Returns engine and bytes."""
    assert preparation.channel is not None
    talk = preparation.channel
    if preparation.engine != "criu":
        context = capture(frozen, has_run=has_run)
        frozen.park()  # should we die while it is sent, it goes on as if nothing had been
        phases.done("capture")
        reason = obstacle(context, preparation.kernel)
        if reason is None:
            size = precopy.send_context(frozen, with_pending(context, []), talk, preparation.ahead)
            phases.done("send")
            return "pour", size
        if preparation.engine == "pour":
            raise MoveRefused(frozen.pid, reason)
        log.info("not poured: %s", reason)
    if private_directories(frozen.pid):
        raise MoveRefused(frozen.pid, PRIVATE)
    return "criu", _copy_and_send(frozen, deputy.options.images / f"out-{deputy.pid}", talk, phases)


def _copy_and_send(frozen: Frozen, directory: Path, talk: Channel, phases: Phases) -> int:
    """Dumps a copy of the frozen process, sends the images, and the memory beside them; returns how many bytes. Nothing is left
    on the disk."""
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
        size += send_own_pages(frozen.pid, page_ranges(hollow), talk.connection.fileno(), RESTORE_TIMEOUT).bytes
        phases.done("send")
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
        try:
            target.expect("prepared", timeout=1.0)
        except Refused:
            raise
        except (WireError, OSError):
            pass
        raise error


def _status(pid: int) -> dict[str, str]:
    return dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)


def _program_tid(pid: int, tid: int) -> int:
    """The id as the program itself sees it: the innermost of NSpid."""
    for line in Path(f"/proc/{pid}/task/{tid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return tid
