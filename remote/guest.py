"""One guest: its sandbox, its end of the link, what its threads stop for, its freezing and thawing.

The guest is seized for as long as it is here (with EXITKILL: it never outlives its supervisor), so that every signal stops it
first.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path
from typing import Any, Protocol

from engine.files.store import FileStore
from engine.pour import precopy
from engine.pour.arrival import seccomp_suspended
from engine.pour.postcopy import Taker
from engine.signals.pending import Pending, put
from kernel_helpers.errors import FarhomeError, sentence
from kernel_helpers.link.link import AwayLink, Event, Kind
from kernel_helpers.process import many, tracing
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.tracing import Cause, Stop
from kernel_helpers.usage import account
from remote import halves
from remote.births import Births, Child
from remote.delivery import Delivery
from remote.direct import DirectFiles
from remote.door import Door
from remote.dying import Dying
from remote.execution import Executions
from remote.freezing import Freezing
from remote.homefiles import HomeFiles
from remote.later import Later
from remote.mapping import Mappings
from remote.marks import Marks
from remote.masks import Masks
from remote.options import Options
from remote.proc import OwnProc
from remote.reception import Reception
from remote.sandbox import Sandbox
from remote.signals import GuestSignals
from remote.tracee import GuestEnd, Tracee
from remote.unchanged import Unchanged
from remote.waits import Waits
from wire.control import Control, pack, unpack
from wire.frames import WireError
from wire.waking import ready

log = logging.getLogger("remote")

REAP_PATIENCE = 5.0
"""Seconds for the threads of a killed guest to end."""


class Loop(Protocol):
    """What a guest needs of what serves it in each turn (remote/remote.py)."""

    options: Options
    finished: bool

    @property
    def store(self) -> FileStore:
        """Files of its home."""

    def home_files(self, port: int) -> HomeFiles:
        """Files of the home, whose server is at that port. Errors: OSError."""

    def wake(self) -> None:
        """Has a turn come at once; callable from any thread."""

    def has_others(self) -> bool:
        """Whether a guest is here besides this one."""

    def finish(self, reason: str) -> None:
        """Ends this remote at the end of this turn, and the guest with it."""

    def keep_pages(self) -> None:
        """It does not move after all."""

    def released(self) -> None:
        """The guest has let go of its memory: its parent goes on if it has waited for that."""

    def bear(self, parent: Guest, child: Child) -> None:
        """A child of the guest runs from here on, served by the same program. Errors: OSError."""


class Guest:
    """See the module. tracee: what its tracer knows of it."""

    def __init__(
        self, loop: Loop, frozen: Frozen, sandbox: Sandbox, link: GuestEnd, uid: int, command: str, userfaultfd: int = -1,
        taker: Taker | None = None, home_nodes: str = "", is_counted: bool = False,
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
        """which nodes of memory its home has, as the kernel there tells them"""
        self.command = command
        self.userfaultfd = userfaultfd
        """by which its writes can be noted (engine/pour/precopy.py); -1: not yet, or they cannot"""
        self.goes_whole = not isinstance(link, AwayLink)
        """memory goes neither ahead of it nor after it: the reference interceptor writes into it past all that takes note"""
        self.can_be_watched = not self.goes_whole
        self._taker = taker
        """of memory that follows it"""
        self._quiet: Event | None = None
        """what asks for a standstill, until all threads know of their ticks what only home knows"""
        self._later = Later(tracee, self.handle)
        self._door = Door(link, frozen)
        self._signals = GuestSignals(tracee)
        self.waits = Waits(tracee, self._door, self._signals, self)
        self._dying = Dying(tracee)
        self._delivery = Delivery(tracee, self._door, self._signals, self.waits, self._dying, self)
        self.masks = Masks(tracee, self._signals)
        self._freezing = Freezing(tracee, self._door, self._signals, self.waits, self.masks, self._dying, self, loop.has_others)
        self.births = Births(
            tracee, sandbox, self._later, self._signals, self.masks, self._freezing,
            lambda secret: Reception(loop.options.address, secret, loop.wake), lambda child: loop.bear(self, child),
        )  # fmt: skip
        self.marks = Marks(tracee, self._later)
        self._unchanged = Unchanged(tracee, self.marks, home_nodes)
        self._own_proc = OwnProc(tracee)
        self._mappings = Mappings(tracee, sandbox, loop.store)
        self._executions = Executions(tracee)
        self._direct = DirectFiles(tracee, loop.options, uid, loop.home_files, loop.wake)
        self._answering = (self._unchanged, self.births, self._mappings, self._own_proc, self.marks, self.masks)
        """who is asked about a call that the link does not make, one after the other"""
        self._cpu_before = _cpu_seconds(self.pid)
        self._cpu_in_all: float | None = None
        if not is_counted:
            link.account.begin()

    # -- life -----------------------------------------------------------------------------------------------------------

    def run(self, pending: Pending | None = None) -> None:
        """Lets the frozen guest go, for the first time (with the signals that waited for it where it was) or after thaw()."""
        assert self.tracee.frozen is not None
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
        """Whether it runs, and its stops and its link tell of all that is to be done for it."""
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
        from remote.trace import Trace  # what it brings along, few guests need

        def send(lines: bytes, held: bool) -> None:
            self.link.send(Control.TRACED, 0, pack(lines=lines, held=held), held)

        self.link.trace_options |= tracing.PTRACE_O_TRACESYSGOOD
        self.tracee.trace = Trace(self._loop.options.node, self.tracee.program_tid, send)

    def reads_here(self) -> int:
        """Bytes that it has read by calls of its own here, without home."""
        return _bytes_read(self.pid)

    def memory(self) -> int:
        """Resident bytes."""
        try:
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        except OSError:
            pass
        return 0

    def cpu_seconds(self) -> float:
        """Seconds of cpu that it has used since it came."""
        return self._cpu_in_all if self._cpu_in_all is not None else max(0.0, _cpu_seconds(self.pid) - self._cpu_before)

    def destroy(self) -> None:
        """Ends the guest and everything that was made for it."""
        self.end().leave()

    def end(self) -> Sandbox:
        """Ends the guest, and leaves its place in the sandbox to another."""
        if self._taker is not None:  # its own threads, and ours, may wait for a page that never comes
            self._kill()
            self._taker.close()
        self.births.close()
        self.link.close()
        self._direct.close()
        self._mappings.close()
        self._kill()
        if self.userfaultfd >= 0:
            os.close(self.userfaultfd)
            self.userfaultfd = -1
        return self.sandbox

    def _kill(self) -> None:
        if self.tracee.threads:
            self._cpu_in_all = self.cpu_seconds()
            for tid in self.tracee.threads:
                tracing.unfollow(tid)
            end_traced(self.pid, list(self.tracee.threads))
            self.tracee.threads.clear()

    def child(self, loop: Loop, born: Child) -> Guest:
        """A process that was born of this guest, and has not run yet."""
        self.sandbox.join()
        child = Guest(loop, born.frozen, self.sandbox, born.link, self.uid, self.command, home_nodes=self.home_nodes)
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
        elif self._direct.handle(event):
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
        elif event.kind == Control.PAUSE:
            self.tracee.is_pausing = True
            self._door.begin_pause()
            self.link.pause()
            self.link.send(Control.PAUSED)
        elif event.kind == Control.QUIET:
            if self._signals.is_asking:
                self._quiet = event  # home answers, as long as it waits for FROZEN
            else:
                self._stand_still(event)
        elif event.kind == Control.THAW:
            self.thaw(int(unpack(event.data).get("watched", 0)))
        elif event.kind == Control.EXECUTED:
            self._over()
        elif event.kind == Control.STOPPED:
            self.tracee.is_stopped = True
            self.tracee.undecided.clear()
            for tid in self.tracee.threads if self.tracee.frozen is None else ():
                if not self.tracee.stands(tid):
                    tracing.interrupt(tid)
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
        elif event.kind == Control.OVERRUNS:
            self._signals.overruns(event.tid, int(unpack(event.data)["overruns"]))
            quiet, self._quiet = self._quiet, None
            if quiet is not None:
                self.handle(quiet)
        elif event.kind == Control.THREAD_EXITED:
            self.link.answer(event.tid, proceed=True)
        else:
            log.debug("event %s ignored", event.kind)

    def _carry(self, told: dict[str, Any]) -> None:
        """What it has used before it came here, and may still use. Errors: ValueError, OSError."""
        used = account.check(told.get("used"))
        self.link.account.carry(used)
        self._direct.carry(told.get("own"))
        before = sum(total for tid, total, *_ in used if tid == account.WHOLE)
        self._signals.is_limited = account.limit_guest(self.pid, told.get("limit"), before)

    # -- stops of the guest -----------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Handles whatever has happened to the guest's threads."""
        if self.tracee.frozen is not None:
            return
        for stop in self.tracee.poll():
            self.handle_stop(stop)
        self._signals.look()
        self._direct.look()
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
            if tracee.trace is not None and tracee.trace.look(stop.tid):
                tracing.interrupt(stop.tid)
            tracing.proceed(stop.tid)
        elif tracee.is_stopped or stop.tid in tracee.undecided:
            halves.halt(tracee, self._door, stop)
        else:
            self._go_on(stop.tid)

    def _go_on(self, tid: int) -> None:
        """A thread in a stop that tells nothing more."""
        if self.waits.settle(tid):
            return
        if self._door.has_answered(tid) and not self._signals.is_due(tid):
            self._door.forget(tid)
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

    def _over(self) -> None:
        """The process executes another program at home: what waits for it, and what it has used, is told, and nothing of it runs any
        more. Who waits for its memory (vfork) goes on."""
        self.tracee.is_pausing = True
        self.link.pause()
        error = self._freezing.freeze(is_over=True)
        pending = [] if error else self._freezing.pending()
        ignored = tracing.signal_state(self.pid, self.pid).ignored
        self.link.send(Control.OVER, 0, pack(pending=pending, used=self.link.account.used(), ignored=ignored))
        self._kill()
        self._loop.released()

    def _stand_still(self, event: Event) -> None:
        """QUIET: every thread comes to a standstill, and home is told what waits for it."""
        again = bool(self.births.awaited)
        error = "it waits for a child that has its memory (vfork)" if again else self._freezing.freeze()
        blocked, error = ([], error) if error or not unpack(event.data).get("watch") else self._prepare_to_watch()
        pending, used = ([], []) if error else (self._freezing.pending(), self.link.account.used())
        positions = [] if error else self._direct.positions()
        self.link.send(
            Control.FROZEN, 0,
            pack(error=error, again=again, pending=pending, used=used, positions=positions, own=self._direct.own(), blocked=blocked),
        )  # fmt: skip

    def _prepare_to_watch(self) -> tuple[list[list[int]], str]:
        """What its threads block, or why that cannot be told."""
        assert self.tracee.frozen is not None
        try:
            return self.masks.prepare(self.tracee.frozen), ""
        except (FarhomeError, OSError) as error:
            log.warning("masks of the guest cannot be watched", exc_info=True)
            return [], sentence(error)

    def thaw(self, watched: int = 0) -> None:
        """The move is off: the guest runs on, and takes calls again. watched: if not 0, what waits at home from now on."""
        self.tracee.is_pausing, self._quiet = False, None
        self._loop.keep_pages()
        if self.tracee.frozen is None:
            self.waits.thaw()
            self.link.unpause()
            for event in self._executions.again():
                self.handle(event)
            return
        self._executions.forget()
        self._direct.forget()
        if watched:
            self.masks.take(self.tracee.frozen, watched)
        self.run()
        self.link.unpause()


def _bytes_read(pid: int) -> int:
    """By calls that it has made here, 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/io", "rb") as source:
            return int(source.readline().partition(b":")[2])
    except (OSError, ValueError):
        return 0


def _cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process, 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ends_by(pid: int, number: int) -> bool:
    """Whether a process as a whole is being ended by that signal, or has been (the last field of /proc/PID/stat, its exit code)."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().split()[-1]) & 0x7F == number
    except (OSError, ValueError):
        return True


def end_traced(pid: int, tids: list[int]) -> None:
    """Kills a process that this thread traces and takes its threads' ends: what is traced stays a zombie until its tracer looks,
    and would hold up the end of its pid namespace."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    left = set(tids)
    end = time.monotonic() + REAP_PATIENCE
    pidfd = _pidfd(pid)
    while left and time.monotonic() < end:
        for stop in tracing.poll(list(left)):
            if stop.cause in (Cause.EXITED, Cause.KILLED):
                left.discard(stop.tid)
            else:
                tracing.proceed(stop.tid)
        if left:
            ready([pidfd] if pidfd is not None else [], 0.005)
    if pidfd is not None:
        os.close(pidfd)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
