"""One guest: its sandbox, its end of the link, what its threads stop for, its freezing and thawing.

The guest is seized for as long as it is here (with EXITKILL: it never outlives its supervisor), so that every signal stops it
first.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
from typing import Any, Protocol

from engine.files.store import FileStore
from engine.pour import precopy
from engine.pour.arrival import seccomp_suspended
from engine.pour.postcopy import Taker
from engine.signals.pending import Pending, put
from kernel_helpers.link.ends.away import AwayLink
from kernel_helpers.link.ends.events import Event, Kind
from kernel_helpers.process import many, tracing
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.tracing import Cause, Stop
from kernel_helpers.usage import account
from remote.options import Options
from remote.reception import Reception
from remote.requests.births import Births, Child
from remote.requests.direct_files import DirectFiles
from remote.requests.execution import Executions, Programs
from remote.requests.home_files import HomeFiles
from remote.requests.later import Later
from remote.requests.mapping import Mappings
from remote.requests.marks import Marks
from remote.requests.own_proc import OwnProc
from remote.requests.standstill import Standstill
from remote.requests.unchanged import Unchanged
from remote.sandbox.sandbox import Sandbox
from remote.tracee import figures, halves
from remote.tracee.delivery import Delivery
from remote.tracee.dying import Dying
from remote.tracee.ending import end_traced, ends_by
from remote.tracee.freezing import Freezing
from remote.tracee.interrupted import InterruptedCalls
from remote.tracee.masks import Masks
from remote.tracee.signals import GuestSignals
from remote.tracee.tracee import GuestEnd, Tracee
from remote.tracee.waits import Waits
from wire.control import Control, pack, unpack
from wire.frames import WireError

log = logging.getLogger("remote")


class Loop(Protocol):
    """What a guest needs of what serves it in each turn (remote/remote.py)."""

    options: Options
    finished: bool
    selector: selectors.BaseSelector

    @property
    def programs(self) -> Programs:
        """What comes in the place of the guest when it is over."""

    @property
    def store(self) -> FileStore:
        """Files of its home."""

    def home_files(self, port: int) -> HomeFiles:
        """Files of the home, whose server is at that port. Errors: OSError."""

    def wake(self) -> None:
        """Has a turn come at once; callable from any thread."""

    def has_others(self) -> bool:
        """Return whether a guest is here besides this one."""

    def finish(self, reason: str) -> None:
        """Ends this remote at the end of this turn, and the guest with it."""

    def stop_giving_pages(self) -> None:
        """It does not move after all."""

    def released(self) -> None:
        """The guest has let go of its memory: its parent goes on if it has waited for that."""

    def bear(self, parent: Guest, child: Child) -> None:
        """A child of the guest runs from here on, served by the same program. Errors: OSError."""


class Guest:
    """See the module. tracee: what its tracer knows of it."""

    def __init__(
        self, loop: Loop, frozen: Frozen, sandbox: Sandbox, link: GuestEnd, uid: int, command: str, userfaultfd: int = -1,
        taker: Taker | None = None, home_nodes: str = "", is_counted: bool = False, cpu_before: float | None = None,
    ) -> None:  # fmt: skip
        self._loop = loop
        self.tracee = tracee = Tracee(frozen, link, loop.options.pid, has_all_memory=taker is None)
        self.pid = tracee.pid
        self.sandbox = sandbox
        self.link = link
        self.objects: dict[str, str] = {}
        """by identity: what its memory that it alone has mapped shared is called (engine/memory/alone.py)"""
        self.uid = uid
        self.home_nodes = home_nodes
        """which nodes of memory its home has, as the kernel there reports them"""
        self.command = command
        self.userfaultfd = userfaultfd
        """by which its writes can be noted (engine/pour/precopy.py); -1: not yet, or they cannot"""
        self.goes_whole = not isinstance(link, AwayLink)
        """memory goes neither ahead of it nor after it: the reference interceptor writes into it past all that takes note"""
        self.can_be_watched = not self.goes_whole
        self._taker = taker
        """of memory that follows it"""
        self._later = Later(tracee, self.handle)
        self._interrupted = InterruptedCalls(link, frozen)
        self._signals = GuestSignals(tracee)
        self.waits = Waits(tracee, self._interrupted, self._signals, self)
        self._dying = Dying(tracee)
        self._delivery = Delivery(tracee, self._interrupted, self._signals, self.waits, self._dying, self)
        self.masks = Masks(tracee, self._signals)
        self._freezing = Freezing(tracee, self._interrupted, self._signals, self.waits, self.masks, self._dying, self, loop.has_others)
        self.births = Births(
            tracee, sandbox, self._later, self._signals, self.masks, self._freezing,
            lambda secret: Reception(loop.options.address, secret, loop.wake, loop.selector), lambda child: loop.bear(self, child),
        )  # fmt: skip
        self.marks = Marks(tracee, self._later)
        self._unchanged = Unchanged(tracee, self.marks, home_nodes)
        self._own_proc = OwnProc(tracee)
        self._mappings = Mappings(tracee, sandbox, loop.store)
        self._executions = Executions(tracee)
        self._direct = DirectFiles(tracee, loop.options, uid, loop.home_files, loop.wake)
        self._standstill = Standstill(
            tracee, self._interrupted, self._signals, self.waits, self.masks, self._freezing, self._executions, self._direct, self, loop,
            loop.programs, lambda: bool(self.births.awaited),
        )  # fmt: skip
        self._answering = (self._unchanged, self.births, self._mappings, self._own_proc, self.marks, self.masks)
        """the handlers of a call that the link does not make, asked one after the other"""
        self._cpu_before = figures.cpu_seconds(self.pid) if cpu_before is None else cpu_before
        self._cpu_in_all: float | None = None
        if not is_counted:
            link.account.begin()

    # -- life -----------------------------------------------------------------------------------------------------------

    def run(self, pending: Pending | None = None) -> None:
        """Lets the frozen guest go, for the first time (with the signals that waited for it where it was) or after thaw()."""
        assert self.tracee.frozen is not None
        self._mappings.begin()
        if pending:
            with seccomp_suspended(self.tracee.frozen):
                put(self.tracee.frozen, pending)
            self._signals.note(pending)
        frozen, self.tracee.frozen = self.tracee.frozen, None
        in_hand = [(tid, info) for tid, thread in frozen.threads.items() for info in thread.take_in_hand()]
        options = tracing.PTRACE_O_EXITKILL | self.link.trace_options
        for error in many.set_options(list(frozen.threads.values()), lambda _: options).values():
            raise error
        if not self.waits.may_go_on:
            for thread in frozen.threads.values():
                self.waits.end_early(thread.registers)
        frozen.restore()
        for tid, info in in_hand:  # what no mask kept out of the calls above
            number = tracing.signal_number(info)
            if number in tracing.STOPPING:
                self._signals.stop_at_home(number)
                self.tracee.await_stop(tid)
            else:
                self._signals.queue(number, self._signals.claim(info), tid)
        if self.tracee.is_stopped:  # they come to that stop before any instruction of their own
            many.interrupt([tid for tid in frozen.threads if tid not in self.tracee.undecided])
        if self.tracee.trace is not None:
            for tid in frozen.threads:
                self.tracee.follow(tid)
        for error in many.resume(list(frozen.threads.values())).values():
            raise error

    @property
    def is_at_rest(self) -> bool:
        """Whether it runs, and its stops and its link report all that is to be done for it."""
        tracee = self.tracee
        is_quiet = tracee.frozen is None and tracee.trace is None and tracee.has_all_memory
        return is_quiet and self._signals.is_at_rest and self._direct.is_at_rest

    def take_rest(self) -> None:
        """Looks whether all memory is here."""
        if self._taker is None or not self._taker.is_over:
            return
        if self._taker.failure:
            self._loop.finish(self._taker.failure)
            return
        self._taker, self.tracee.has_all_memory = None, True
        self.link.send(Control.ALL_HERE)
        self._later.go_on()

    def show_calls(self) -> None:
        """Its user wants to see its calls. Before it runs."""
        from remote.tracee.trace import Trace  # what it brings along, few guests need

        def send(lines: bytes, held: bool) -> None:
            self.link.send(Control.TRACED, 0, pack(lines=lines, held=held), held)

        self.link.trace_options |= tracing.PTRACE_O_TRACESYSGOOD
        self.tracee.trace = Trace(self._loop.options.node, self.tracee.program_tid, send)

    def bytes_read_here(self) -> int:
        """Return bytes that it has read by calls of its own here, without home."""
        return figures.bytes_read(self.pid)

    def remembered(self) -> list[int]:
        """Return the figures of AwayLink.remembered(), in order; none with the reference interceptor."""
        if not isinstance(self.link, AwayLink):
            return []
        found = self.link.remembered()
        return [found.program, found.names, found.from_names, found.from_opens, found.mapped]

    def memory(self) -> int:
        """Resident bytes."""
        return figures.memory(self.pid)

    def cpu_seconds(self) -> float:
        """Return seconds of cpu that it has used since it came."""
        return self._cpu_in_all if self._cpu_in_all is not None else max(0.0, figures.cpu_seconds(self.pid) - self._cpu_before)

    def destroy(self) -> None:
        """Ends the guest and everything that was made for it."""
        self.end().leave()

    def end(self, keeps_link: bool = False) -> Sandbox:
        """Ends the guest, and leaves its place in the sandbox to another. keeps_link: its link is closed by the caller, for that waits for
        the link's threads."""
        if self._taker is not None:  # its own threads, and ours, may wait for a page that never comes
            self.kill()
            self._taker.close()
        self.births.close()
        if not keeps_link:
            self.link.close()
        self._direct.close()
        self._mappings.close()
        self.kill()
        if self.userfaultfd >= 0:
            os.close(self.userfaultfd)
            self.userfaultfd = -1
        return self.sandbox

    def kill(self) -> None:
        """Ends all of its threads."""
        if self.tracee.threads:
            self._cpu_in_all = self.cpu_seconds()
            for tid in self.tracee.threads:
                tracing.unfollow(tid)
            end_traced(self.pid, list(self.tracee.threads))
            self.tracee.threads.clear()

    def child(self, loop: Loop, born: Child) -> Guest:
        """A process that was born of this guest, and has not run yet."""
        self.sandbox.join()
        child = Guest(
            loop, born.frozen, self.sandbox, born.link, self.uid, self.command, home_nodes=self.home_nodes, is_counted=True, cpu_before=0.0
        )
        child.tracee.shares_memory, child.waits.may_go_on = born.shares_memory, self.waits.may_go_on
        child.marks.home_has_guards, child.marks.home_lets_lock = self.marks.home_has_guards, self.marks.home_lets_lock
        if self.tracee.trace is not None:
            child.show_calls()
        child.masks.inherit(self.masks, born.maker, born.frozen.pid)
        return child

    def expel(self, reason: str) -> None:
        """Asks the deputy to take it home."""
        self.link.send(Control.EXPEL, 0, pack(reason=reason))

    # -- frames from the deputy -------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """One event of the link."""
        if event.kind == Control.SIGNAL:
            try:
                self._signals.deliver(event)
            except ProcessLookupError:
                log.debug("a signal came too late")
            finally:
                self.link.release()
        elif event.kind == Control.CARRIED:
            try:
                self._carry(unpack(event.data))
            except (ValueError, WireError, OSError):
                log.warning("what the guest has used before is lost", exc_info=True)
            finally:
                self.link.release()
        elif self._direct.handle(event) or self._standstill.handle(event):
            pass
        elif event.kind == Kind.SUSPENDED:
            self._delivery.suspension(event.tid, event.code)
        elif event.kind == Kind.LETS_IN:
            self._signals.ask_back()
        elif event.kind == Kind.GO_HOME_CALL:
            if self._executions.takes(event):
                self._executions.begin(event, waits=self.tracee.is_pausing)
            elif not any(room.ask(event) for room in self._answering):
                self.tracee.go_home(event.tid, event.code)
        elif event.kind == Control.CONTINUED:
            self.tracee.is_stopped = False
            self.tracee.undecided.clear()
            self._signals.look_again()
            for tid in self.tracee.take_halted():
                self._go_on(tid)
        elif event.kind in (Control.MAPPED, Control.CONTENT):
            self._mappings.handle(event)
        elif event.kind == Control.BORN:
            born = unpack(event.data)
            self.births.born(event.tid, int(born["thread"]), bool(born["again"]))
        elif event.kind == Control.SNAPSHOT:
            self._own_proc.answered(event)
        elif event.kind == Control.MASKED:
            self.masks.masked(event)
        elif event.kind == Control.THREAD_EXITED:
            self.link.answer(event.tid, proceed=True)
        else:
            log.debug("event %s ignored", event.kind)

    def _carry(self, reported: dict[str, Any]) -> None:
        """What it has used before it came here, and may still use. Errors: ValueError, OSError."""
        used = account.check(reported.get("used"))
        self.link.account.carry(used)
        self._direct.carry(reported.get("own"))
        before = sum(total for tid, total, *_ in used if tid == account.WHOLE)
        self._signals.is_limited = account.limit_guest(self.pid, reported.get("limit"), before)

    # -- stops of the guest -----------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Handles whatever has happened to the guest's threads."""
        if self.tracee.frozen is not None:
            return
        for stop in self.tracee.poll():
            self.handle_stop(stop)
        self._signals.poll()
        self._direct.poll()
        if self.tracee.trace is not None:
            self.tracee.trace.flush()

    def handle_stop(self, stop: Stop) -> None:
        """A thread has stopped, or ended."""
        tracee = self.tracee
        self._direct.stopped(stop.tid)
        if self.link.stopped(stop) or self.masks.stopped(stop) or self._dying.holds(stop):
            return
        if stop.cause in (Cause.EXITED, Cause.KILLED):
            self.thread_gone(stop)
        elif stop.cause is Cause.SIGNAL:
            if tracee.is_stopped:
                tracing.interrupt(stop.tid)  # this stop may have taken the place of the one that was asked for
            self._delivery.stop(stop)
        elif stop.cause is Cause.CALL and not tracee.is_stopped:
            if tracee.trace is not None and tracee.trace.note_stop(stop.tid):
                tracing.interrupt(stop.tid)
            tracing.proceed(stop.tid)
        elif tracee.is_stopped or stop.tid in tracee.undecided:
            halves.halt(tracee, self._interrupted, stop)
        else:
            self._go_on(stop.tid)

    def _go_on(self, tid: int) -> None:
        """A thread in a stop that reports nothing more."""
        if self.waits.settle(tid):
            return
        if self._interrupted.has_answered(tid) and not self._signals.is_due(tid):
            self._interrupted.forget(tid)
        self.waits.leave(tid)
        tracing.proceed(tid)

    def thread_gone(self, stop: Stop) -> None:
        """A thread has ended."""
        self.tracee.threads.pop(stop.tid, None)
        self._signals.forget(stop.tid)
        if self.tracee.trace is not None:
            self.tracee.trace.forget(stop.tid)
        is_last, program = stop.tid == self.pid or not self.tracee.threads, self.tracee.program_tid(stop.tid)
        if not is_last and stop.cause is Cause.KILLED and stop.number == signal.SIGSYS and not ends_by(self.pid, signal.SIGSYS):
            # By its own seccomp filter, and it alone (SECCOMP_RET_KILL_THREAD): it has made no call to end.
            self.link.send(Control.UNBORN, 0, pack(thread=program))
        self.tracee.forget_thread(stop.tid)
        if is_last and stop.cause is Cause.KILLED and not self._loop.finished:
            log.info("guest %d was killed by signal %d", self.pid, stop.number)
            self.link.send(Control.GUEST_DIED, 0, pack(number=stop.number, core=stop.core, used=self.tracee.used))
            self.link.flush(1.0)

    # -- standing still -----------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """From now on its writes can be noted. While it stands still. Nothing comes of it where the kernel cannot."""
        assert self.tracee.frozen is not None
        if self.userfaultfd < 0 and self.can_be_watched:
            self.userfaultfd = precopy.userfaultfd_or_none(self.tracee.frozen)
            self.can_be_watched = self.userfaultfd >= 0
