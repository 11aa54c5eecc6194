"""What a move out or a hop needs before the process stands still: the target asked to prepare, files and memory sent ahead of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from deputy.link.guestlink import Target
from deputy.link.linkahead import LinkAhead
from deputy.moves.announcement import announcement
from engine.commit import Decider, Do, Word, decide
from engine.context.marks import TOO_LITTLE, locked_bytes
from engine.files import files
from engine.leaving.permission import Owner, may_leave
from engine.leaving.refusal import why_not
from engine.phases import Phases
from engine.pour import postcopy, precopy
from engine.signals.pending import Pending
from kernel_helpers.common.errors import FarhomeError, MoveRefused, sentence
from kernel_helpers.link.ends.events import Part
from kernel_helpers.process.syscalls import U64
from wire import channel
from wire.channel import Channel
from wire.frames import WireError

log = logging.getLogger("deputy")

SOURCE_TIMEOUT = 3600.0
"""Seconds that memory may go ahead of a guest that is to hop; each round has bounds of its own."""
REPLACEMENT_TIMEOUT = 5.0
"""Seconds that a new program is held for want of a word of the target."""


class Preparation:
    """Asks a target to prepare, in a worker thread, while the process runs on."""

    def __init__(
        self, pid: int, target: Target, home: str, engine: str, known: list[files.MappedFile] | None = None, held_by: int | None = None,
        trace: bool = False, left: Target | None = None, memory: str = "auto", begins: str = "", owners: Sequence[Owner] = (),
        link_timeout: float | None = None, says: bool = False,
    ) -> None:  # fmt: skip
        """begins: the name of the program that the process is about to execute, which is to leave (deputy/moves/programs/beginning.py);
        says: if it does not, its user learns why. known: what the guest that is to hop has mapped, left: where it is. trace: its calls
        are to be printed. held_by: the process is another program than the guest that stands still there, and held by this tracer until
        it can go. memory: of precopy.MODES. owners: whose rights bound those of what leaves (engine/leaving/permission.py).
        link_timeout: seconds, of this node."""
        self.pid = pid
        self.engine = engine
        self.kernel = ""
        self.lockable = U64
        """how many bytes the target lets it lock, as far as that is known"""
        self.target = target
        self.home = home
        self.channel: Channel | None = None
        self._decider = Decider.MOVING
        self.waiting: Pending = []
        """the signals that went with the commit"""
        self.parts: Sequence[Part] = ()
        """of calls that were half done, likewise"""
        self.watched = 0
        """signals that wait at home where the process blocks them, for it reads them by signalfds"""
        self.blocked: dict[int, int] = {}
        """of those, what each thread (the program's id) blocks"""
        self.stopped = False
        """it was when it was committed"""
        self.source: Channel | None = None
        """to where a guest is that is to hop"""
        self._left = left
        self.phases = Phases("preparation")
        self.files = known or []
        self._is_hop = known is not None
        self._held_by = held_by
        self._trace = trace
        self._link_timeout = link_timeout
        self.begins, self.says = begins, says
        self.owners = owners
        self.memory = memory
        self.link = LinkAhead(pid)
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
        if not self._held_by:  # else it is looked at meanwhile
            reason = may_leave(self.pid, self.owners) or (None if self._is_hop else why_not(self.pid, lasting=True))
            if reason is not None:
                raise MoveRefused(self.pid, reason)
        self.phases.done("looked at")
        self.channel = Channel(channel.connect(self.target.address, "move", self.target.secret, timeout=self._patience))
        self.phases.done("connected")
        if self._held_by:
            self.channel.send("replace")
        if not self._is_hop:
            self.files = files.mapped_files(self.pid)
        fields = announcement(self.pid, self.home, self._link_timeout, self.files, self.begins, self._is_hop)
        self.channel.send("prepare", engine=self.engine, trace=self._trace, **fields)
        self.send_wanted(self.files)
        self.phases.done("files there")
        self._send_clocks()
        self.phases.done("place there")
        if not self.begins and self.lockable < locked_bytes(self.pid):
            raise MoveRefused(self.pid, TOO_LITTLE)
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
        self.source.send("prepare", engine=self.engine, address=list(self.target.address), secret=self.target.secret, memory=self.memory)
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
        self.phases.done("memory ahead")
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

        def run() -> None:
            ahead.run(target)
            self.phases.done("memory ahead")

        self._work(run, done)

    def _send_clocks(self) -> None:
        """Until the target is ready: it asks how late it is here, for the guest's clocks are those of its home."""
        assert self.channel is not None
        while (message := self.channel.next(timeout=self._patience))["op"] == "clocks":
            self.channel.send(
                "clocks", monotonic=time.clock_gettime_ns(time.CLOCK_MONOTONIC), boottime=time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            )
        if message["op"] != "ready":
            raise WireError(f"the target said {message['op']!r} where 'ready' was due")
        self.kernel = str(message.get("kernel"))
        self.lockable = int(message.get("lockable", U64))

    def send_wanted(self, offered: list[files.MappedFile]) -> None:
        """Sends those of the files that the target asks for. Errors: FarhomeError, WireError, OSError."""
        assert self.channel is not None
        wanted = set(self.channel.expect("wanted", timeout=self._patience)["sha256"])
        for file in offered:
            if file.sha256 in wanted:
                wanted.discard(file.sha256)
                try:
                    source = file.open()
                except FileNotFoundError as error:
                    raise FarhomeError(f"{file.path} cannot be sent: {error.strerror}") from error
                with source:
                    self.channel.send("content", sha256=file.sha256, size=file.size)
                    self.channel.send_stream(file.size, source.read)
        for file in offered:
            file.let_go()

    def check(self) -> None:
        """Raises what went wrong in the worker."""
        if self._error is not None:
            raise self._error if isinstance(self._error, (FarhomeError, WireError, OSError)) else FarhomeError(sentence(self._error))

    def note(self, word: Word) -> Do:
        """Return what is to be done after that (engine/commit.py)."""
        self._decider, action = decide(self._decider, word)
        return action

    def abandon(self) -> None:
        """The move is over, or off: then the target undoes everything."""
        self.link.close()
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


__all__ = ["Preparation", "Target"]
