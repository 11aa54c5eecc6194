"""The deputy of one process: what hears mosd, the link, and the stops of the stub, and starts moves, in the loop of its tree
(deputy/tree.py).

All ptrace requests come from its thread. What may take long and needs no ptrace (asking the target to prepare, sending it
files) runs in a worker while the process goes on; what happens while it is frozen is done here, in one go.
"""

from __future__ import annotations

import logging
import os
import selectors
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from deputy import birth, dying, execution, homecoming
from deputy.approach import Approach
from deputy.beginning import Beginning
from deputy.departure import Departure
from deputy.direct import DirectFiles
from deputy.freezing import MOMENT_PATIENCE, NotNow
from deputy.guestlink import GuestLink, LinkLost
from deputy.mapping import Mappings
from deputy.mosd import Mosd
from deputy.options import Options
from deputy.pledge import Pledge
from deputy.preparation import Preparation, Target
from deputy.proc import OwnProc
from deputy.report import Report
from deputy.signalfds import Signalfds
from deputy.signals import StubSignals
from deputy.stub import Stub, say_on_terminal
from deputy.trace import TraceFile
from deputy.traced import Replaced
from engine.finishing import Rests
from engine.permission import Owner
from engine.postcopy import Giver
from engine.precopy import Progress
from kernel_helpers.errors import FarhomeError, sentence
from kernel_helpers.link.link import Event
from kernel_helpers.process.journal import SUFFIX
from kernel_helpers.usage import children
from wire.control import Control, unpack
from wire.frames import Message, WireError
from wire.local import LocalServer
from wire.logs import start_thread
from wire.tree import TICK, Tree

log = logging.getLogger("deputy")

HOME_ATTEMPTS = 5
SETTLE_PATIENCE = 2.0
"""Seconds that interrupted calls may take to show up from the guest."""
IDLE = 15.0
"""Seconds at home without a wish to move after which a deputy goes."""


@dataclass(frozen=True)
class Wanted:
    """A move of a process that is away, asked for by the message `number`: a hop that is prepared, or home (None, with a reason)."""

    number: int | None
    preparation: Preparation | None = None
    reason: str = ""


class Deputy:
    """See the module. `where` is "home" or the node's name. Errors: ProcessLookupError."""

    def __init__(self, options: Options, tree: Tree[Deputy]) -> None:
        self.options = options
        self.tree = tree
        self.pid = options.pid
        self.where = "home"
        self.stub: Stub | None = None
        self.link: GuestLink | None = None
        self.signals: StubSignals | None = None
        self.mappings = Mappings(self.pid)
        self.rests = Rests(self.pid)
        """of writes that its moves have ended in the middle, while it is at home"""
        self._leaves = False
        """but for those"""
        self.own_proc = OwnProc(self)
        self.direct = DirectFiles(self)
        self.signalfds = Signalfds(self)
        self._trace = TraceFile(self.pid, options.trace)
        self.finished = False
        self._approaching: Approach | None = None
        self.shares_memory = False
        """Its guest has the memory of its parent's (vfork) until it calls exec."""
        self.wanted: Wanted | None = None
        self.follows = 0
        """bytes of its memory that followed it, while they are not all where it is: until then it is not moved"""
        self._giver: Giver | None = None
        """who gives them, if they are here"""
        self._pledge: Pledge | None = None
        """who sees to it that they come, if the process is at home"""
        self.held: execution.Held | None = None
        """between two programs"""
        self.beginning: Beginning | None = None
        """it is mosrun still"""
        self._later: list[Message] = []
        self._preparation: Preparation | None = None
        self._preparing: Callable[[], None] | None = None
        self._progress: Callable[[], Progress] = Progress
        """of the memory that goes ahead"""
        self.go_home_reason: str | None = None
        self.death: dying.Death | None = None
        """by which it is to end at home, where it is on its way to"""
        self._retry_home_at = 0.0
        self._idle_since = time.monotonic()
        self.selector = tree.selector
        self._pidfd = os.pidfd_open(self.pid)
        self.server = LocalServer(options.socket, self.selector, self._on_message)
        self.mosd = Mosd(self.server)
        self.selector.register(self._pidfd, selectors.EVENT_READ, self._process_ended)

    # -- the loop ---------------------------------------------------------------------------------------------------

    def be_away(self, stub: Stub, link: GuestLink, mappings: Mappings) -> None:
        """The process is a stub from here on, and its guest is where the link leads."""
        self.mappings.let_go()
        self.stub, self.link, self.mappings = stub, link, mappings
        self.signals = StubSignals(self, stub)
        self.signalfds.forget()
        self.where = link.target.node
        children.begin(self.pid, stub.program_tid(stub.pid))
        self.selector.register(link.home.event_fd, selectors.EVENT_READ, lambda: None)

    def is_followed(self, size: int, giver: Giver | None = None, pledge: Pledge | None = None) -> None:
        """Bytes of memory follow the process; those in the stub are given from here, those that follow it home taken."""
        self.follows, self._giver, self._pledge = size, giver, pledge

    def settle(self, force: bool = False) -> None:
        """See StubMemory.settle(): unless there is memory in the stub that follows the guest. Errors: FarhomeError, OSError."""
        if self.stub is not None and (self._giver is None or self._giver.is_over):
            self._giver = None
            self.stub.memory.settle(force)

    def _need_no_more(self) -> None:
        """Nothing follows the guest any more."""
        self.follows = 0
        if self._giver is not None:
            self._giver.close()

    def drop_link(self) -> None:
        """Ends the session with the guest."""
        self.own_proc.close()
        self.mappings.let_go()
        if self.link is not None:
            self.selector.unregister(self.link.home.event_fd)
            self.link.close()
            self.link = None

    def finish(self) -> None:
        """The process is at home, and nothing keeps us but what is left of writes."""
        self._leaves = True
        self.finished = not self.rests

    def end(self) -> None:
        """Takes away what was made for the process, which is home or has ended."""
        self.rests.end()
        children.forget(self.pid)
        self.server.close()
        self._trace.close()
        self._need_no_more()
        if self._pledge is not None:
            self._pledge.break_()
        self.drop_link()
        if self.held is not None:
            self.held.end_guest()
        if self._preparation is not None:
            self._preparation.abandon()
        if self.beginning is not None:
            with suppress(OSError):
                self.beginning.close()
        self.end_approach()
        if self._pidfd in self.selector.get_map():
            self.selector.unregister(self._pidfd)
        os.close(self._pidfd)

    @property
    def is_free(self) -> bool:
        """Whether its guest's remote can be talked to: it serves all guests of the tree, and waits while a program comes in the place of
        another."""
        return all(other is self or other.held is None for other in self.tree.members)

    def bear(self, pid: int) -> Deputy:
        """The deputy of a child that the stub has had. Errors: OSError."""
        child = Deputy(replace(self.options, pid=pid, socket=self.options.socket.with_name(f"{pid}.sock")), self.tree)
        self.tree.members.append(child)
        return child

    @property
    def journal(self) -> Path:
        """Where it is written what the process was before it was made to make calls."""
        return self.options.socket.with_suffix(SUFFIX)

    @property
    def is_at_rest(self) -> bool:
        """Whether its process is away, and nothing is to be done for it but what it asks for."""
        moves = self._preparing or self._later or self._pledge or self._giver or self.held or self.go_home_reason or self.follows
        moves = moves or self.signalfds.is_asked
        return (
            self.link is not None and self.link.is_whole and self.stub is not None and self.stub.executed is None
            and self.where != "home" and not self.finished and not moves and self.own_proc.is_tidy
            and time.monotonic() - self._idle_since > SETTLE_PATIENCE + TICK
        )  # fmt: skip

    def tick(self) -> None:
        """Once in each turn of the loop."""
        if self.is_free:
            self._do_later()
            if self._preparing is not None:
                self._preparing()
                if self._preparing is not None:  # it may be over by now, and what is told then stays
                    self.mosd.progress(self._progress())
        if self.rests:
            self.rests.look()
            self.finished |= self._leaves and not self.rests
        if self.signals is not None:
            self.signals.poll()
        if self.stub is not None and self.stub.executed is not None:
            self._need_no_more()
            if self.death is not None:  # another thread was quicker
                self.death = self.go_home_reason = None
            if self.is_free:
                execution.go_on(self)
            return
        if self.link is not None and self.stub is not None and self.where != "home" and not self.finished:
            self.settle(force=time.monotonic() - self._idle_since > SETTLE_PATIENCE)
            try:
                self.link.look_after()
            except LinkLost as lost:
                self._lost(str(lost))
                return
            self.mosd.cut(self.link.cut)
            for event in self.link.control_events():
                self._on_control(event)
            self.own_proc.tidy()
            self.direct.look()
            may_go = self._preparing is None and not self.follows and self.is_free
            if not self.go_home_reason and self.mappings.is_about_to_be_written():
                self.go_home_reason = "a file that it has mapped is about to be written"
            if self.go_home_reason and may_go and time.monotonic() >= self._retry_home_at:
                self._approach(self.go_home_reason, None)
            elif may_go and self.signalfds.is_asked:
                self.signalfds.grow()
        if self._pledge is not None:
            self._redeem(self._pledge)
        elif self.where == "home" and self._preparing is None and time.monotonic() - self._idle_since > IDLE:
            self.finish()  # nobody asked for a move

    def _redeem(self, pledge: Pledge) -> None:
        """The process is at home. When all its memory is there, too, nothing keeps us."""
        if not pledge.is_over:
            return
        self._pledge = None
        if pledge.failure:
            self._lose(pledge)
        else:
            pledge.forgo()
        self.finish()

    def _lose(self, pledge: Pledge) -> None:
        """Memory of the process, which is at home, does not come any more."""
        sentence = f"farhome: process {self.pid} is lost: {pledge.failure}; ended {time.strftime('%Y-%m-%d %H:%M:%S')}"
        log.critical("%s", sentence)
        say_on_terminal(self.pid, sentence)
        self.mosd.lost(self.where, pledge.failure, sentence)
        pledge.break_()

    def _process_ended(self) -> None:
        if self._pledge is not None:
            self.selector.unregister(self._pidfd)  # children that it has left behind may lack pages, too
        elif self.held is not None:
            self.held.killed()
        elif self.signals is None:
            log.info("process %d ended", self.pid)
            self.mosd.ended(None)
            self.finished = True

    # -- what mosd asks -----------------------------------------------------------------------------------------------

    def _on_message(self, message: Message) -> None:
        operation, number = message.get("op"), message.get("id")
        if operation == "status":
            calls, carried = (self.link.home.calls[0], self.link.home.carried_bytes) if self.link is not None else (0, 0)
            self.mosd.status(
                number, pid=self.pid, where=self.where, moving=self._preparing is not None, calls=calls, carried=carried,
                cut=self.link.cut if self.link is not None else 0.0, writes=bool(self.rests),
            )  # fmt: skip
        elif operation in ("move", "home") and self._must_wait:
            self._later.append(message)
        elif operation in ("move", "home") and self.shares_memory:
            self.mosd.refuse(number, "it has its parent's memory (vfork)", self.where)
        elif operation == "move":
            if self._preparing is not None:
                self.mosd.refuse(number, "another move of it is under way", self.where)
                return
            try:
                host, port = message["address"]
                target = Target(str(message["to"]), (str(host), int(port)), bytes(message["secret"]))
                asker = Owner.from_word(str(message["asker"])) if "asker" in message else self.options.owner
            except (KeyError, TypeError, ValueError):
                self.mosd.refuse(number, "the request names no target", self.where)
                return
            self._depart(target, number, asker, message)
        elif operation == "home":
            if self.where == "home" or self._preparing is not None:
                self.mosd.refuse(number, "it is at home" if self.where == "home" else "another move of it is under way", self.where)
            else:
                self._approach(str(message.get("reason", "asked")), number, str(message.get("memory") or self.options.memory))
        elif operation == "abort":
            if self.where == "home" and self._pledge is None:
                self.finish()
        else:
            self.mosd.refuse(number, f"unknown operation {operation!r}", self.where)

    @property
    def _goes_home_for_a_call(self) -> bool:
        """Its memory goes ahead of it, and nobody has asked for that: what is asked meanwhile is for later."""
        return self._approaching is not None and self._preparing is not None and self.wanted is None

    @property
    def _must_wait(self) -> bool:
        """Whether no move can begin now, and one soon can."""
        return self.held is not None or self._goes_home_for_a_call or self.follows > 0 or not self.is_free

    def _do_later(self) -> None:
        """What was asked for while it had to wait."""
        if self._later and not self._must_wait:
            later, self._later = self._later, []
            for message in later:
                self._on_message(message)

    # -- moves --------------------------------------------------------------------------------------------------------

    def _depart(self, target: Target, number: int | None, asker: Owner, message: Message) -> None:
        """Out or hop (deputy/departure.py)."""
        engine, memory = str(message.get("engine") or self.options.engine), str(message.get("memory") or self.options.memory)
        preparation = Preparation(
            self.pid, target, self.options.node, engine, None if self.where == "home" else self.mappings.files(),
            trace=bool(self.options.trace), left=self.link.target if self.link is not None else None, memory=memory,
            begins=str(message.get("begins", "")), owners=(self.options.owner, asker), link_timeout=self.options.link_timeout,
            says=message.get("says") is True,
        )  # fmt: skip
        self.wanted = Wanted(number, preparation) if self.where != "home" else None
        Departure(self, preparation, number).start()

    def prepare(self, preparation: Preparation, then: Callable[[], None]) -> None:
        """Runs the preparation in a worker, and calls `then` in the loop; no other move begins before."""
        start_thread("preparation", preparation.run, self.tree.waker.wake)
        self.await_prepared(preparation, then)

    def await_prepared(self, preparation: Preparation, then: Callable[[], None]) -> None:
        """As prepare(), for one that runs already."""
        self.await_that(preparation, lambda: preparation.is_over, then)

    def await_that(self, preparation: Preparation, is_over: Callable[[], bool], then: Callable[[], None]) -> None:
        """Asks in each turn of the loop whether it is over, which the preparation waits for; then calls `then`."""

        def look() -> None:
            if is_over():
                self._preparing = self._preparation = None
                self.note_use()
                then()

        self._preparation, self._preparing, self._progress = preparation, look, lambda: preparation.progress

    def note_use(self) -> None:
        """It is of use now: see IDLE."""
        self._idle_since = time.monotonic()

    def _approach(self, reason: str, number: int | None, memory: str = "") -> None:
        """Home: first its memory, while it runs on; then the process itself."""
        begun, approach = time.monotonic(), Approach(self, memory or self.options.memory)
        self._approaching = approach
        self.wanted = Wanted(number, reason=reason) if number is not None else None
        if number is None and self.stub is not None and (len(self.stub.tids) == 1 or self.death is not None):
            approach.over_since = begun  # nothing of it runs until it is home, anyway
            self._come_home(reason, None, begun, approach)
            return

        def look() -> None:
            try:
                approach.look()
            except (LinkLost, Replaced):
                pass  # coming home finds it out again
            if approach.is_over:
                self._preparing, self.wanted = None, None
                self._come_home(reason, number, begun, approach)

        self._preparing, self._progress = look, lambda: approach.progress
        approach.start(self.tree.waker.wake)

    def end_approach(self) -> None:
        """The guest does not come home any more, nor is it where it was: the process executes another program, or has ended."""
        if self._approaching is not None:
            self._approaching.spent()
            self._approaching.close()
            self._approaching = self._preparing = None

    def _come_home(self, reason: str, number: int | None, begun: float, approach: Approach) -> None:
        """The process itself, when its memory has come as far as it does."""
        was, self._preparing = self.where, None
        try:
            report = self._come_home_patiently(begun, approach)
        except LinkLost as lost:
            self._lost(str(lost))
            return
        except Replaced:
            self.wanted = Wanted(number, reason=reason) if number is not None else None
            return
        except NotNow as error:
            if time.monotonic() - approach.over_since < MOMENT_PATIENCE:
                self.wanted = Wanted(number, reason=reason) if number is not None else None
                self._preparing = lambda: self._come_home(reason, number, begun, approach)
            else:
                approach.close()
                self.wanted = None
                dying.has_failed(self)
                self.mosd.refuse(number, f"coming home from {was} failed: {sentence(error)}", self.where)
            return
        except (FarhomeError, WireError, OSError) as error:
            log.warning("coming home from %s failed: %s", was, error, exc_info=True)
            approach.close()
            self.wanted, self._retry_home_at = None, time.monotonic() + 0.5
            dying.has_failed(self)
            if number is not None:
                self.mosd.refuse(number, f"coming home from {was} failed: {sentence(error)}", self.where)
            return
        log.info("process %d is home from %s (%s), frozen %.1f ms, %d bytes", self.pid, was, reason, report.frozen_ms, report.size)
        if number is not None:
            self.mosd.answer(number, report)
        self.mosd.state("home", reason, report.frozen_ms)
        self._approaching = None
        if self._pledge is None:
            self.finish()

    def _come_home_patiently(self, begun: float, approach: Approach) -> Report:
        """A thread that stands in another kernel's vdso cannot come; a moment later it has left it."""
        for _ in range(HOME_ATTEMPTS - 1):
            try:
                return homecoming.come_home(self, begun, approach)
            except homecoming.TryAgain as reason:
                log.info("not yet home: %s", reason)
        return homecoming.come_home(self, begun, approach)

    # -- what the guest's side tells ------------------------------------------------------------------------------------

    def _on_control(self, event: Event) -> None:
        assert self.link is not None
        if self.stub is not None and self.stub.executed is not None:
            self.link.home.release()
            return  # of a guest that is over
        if birth.handle(self, event) or self.own_proc.handle(event) or self.direct.handle(event) or self.signalfds.handle(event):
            return
        if event.kind == Control.TRACED:
            self._write_trace(event)
            return
        if event.kind == Control.ALL_HERE:
            self._need_no_more()
            return
        go_home = self.link.handle(event, self)
        if go_home is not None:
            self.go_home_reason = go_home

    def _write_trace(self, event: Event) -> None:
        assert self.link is not None
        fields = unpack(event.data)
        self._trace.write(bytes(fields.get("lines", b"")))
        if fields.get("held"):
            self.link.home.release()

    def guest_died(self, number: int, used: list[int]) -> None:
        """The guest was killed by a signal of its own: the stub ends the same way. used: by it away (account.FIELDS)."""
        assert self.signals is not None
        children.end(self.pid, used)
        self.signals.die_by(number)

    def ended(self, status: str) -> None:
        """The stub has ended (its parent has been told by the kernel): so does everything else."""
        if self.finished:
            return
        log.info("process %d ended: %s", self.pid, status)
        if self.link is not None and self.where != "home":
            self.link.kill_guest()
        self.mosd.ended(status)
        self.finished = True

    def _lost(self, reason: str) -> None:
        """The away node is dead: no copy of the process exists any more. If it has just ended, that is why nobody answers there."""
        if self.signals is not None:
            self.signals.poll()
            if self.finished:
                return
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        sentence = f"farhome: process {self.pid} is lost: it was on {self.where}, which {reason}; ended {when}"
        log.critical("%s", sentence)
        self.mosd.lost(self.where, reason, sentence)
        if self.signals is not None:
            self.signals.kill(sentence)
        self.finished = True
