"""The process executes a program while it is away.

The stub makes the call, so that home's kernel does all of it: descriptors that close, threads that end, names, rights. If it fails the
guest has the errno, as of any call. If it succeeds the stub is the new program, at its first instruction: the one copy that there is.
It is held there, gets what it takes over of the guest (masks, waiting signals), and leaves again for where the guest was, in place of it,
by the ordinary way out; what is sent is the stack and a few pages. If it cannot leave it goes on at home, natively.

    remote                                        deputy
      |--- EXECUTE, CALL (execve) ------------------>|  the stub's thread makes it: PTRACE_EVENT_EXEC
      | <-- EXECUTED --------------------------------|
      |--- OVER (waiting signals, ...) ------------->|  the guest stands still for good
      | <-- replace, prepare ... (as out) -----------|  it ends there, the new program comes
"""

from __future__ import annotations

import errno
import logging
import signal
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deputy.link.guestlink import Announced, GuestLink, LinkLost
from deputy.moves import out_and_hop
from deputy.moves.frozen import Held
from deputy.moves.move import Move, Wanted
from deputy.moves.preparation import Preparation
from deputy.moves.programs import in_place
from deputy.moves.programs.beginning import at_first_instruction
from deputy.moves.programs.in_place import ByConversation, Place
from deputy.moves.report import Report
from engine.leaving.permission import Owner, may_leave
from engine.phases import Phases
from engine.pour.precopy import Progress
from engine.signals.pending import Pending, put, take
from kernel_helpers.calls.numbers import NUMBERS
from kernel_helpers.common.errors import FarhomeError, MoveRefused, sentence
from kernel_helpers.process import tracing
from kernel_helpers.process.injection.beside import beside
from kernel_helpers.process.injection.native import SIGINFO_SIZE
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS
from kernel_helpers.usage import account
from wire.control import Control
from wire.frames import WireError
from wire.logs import start_thread

if TYPE_CHECKING:
    from deputy.away import Away
    from deputy.process import Process

log = logging.getLogger("deputy")

_SI_TIMER = -2
_ACTION = struct.Struct("<QQQQ")
"""The kernel's struct sigaction: handler, flags, restorer, mask."""
_SIG_DFL, _SIG_IGN = 0, 1
_SIGNALS = 64
_UNCATCHABLE = (signal.SIGKILL, signal.SIGSTOP)


@dataclass(frozen=True)
class Inherited:
    """What the new program takes over of the guest: signals blocked and ignored (masks), waiting signals, what was used away, and the place
    that is ready for it."""

    blocked: int
    ignored: int
    pending: Pending
    used: list[list[int]]
    place: Place | None = None


def go_on(process: Process, away: Away, move: Move | None) -> Move | None:
    """The stub is another program: it is held, and leaves again as soon as the target is ready, or goes on at home. The move that was under
    way is made with that, if it was asked for. Returns what is under way then."""
    begun = time.monotonic()
    stub, link, place = away.stub, away.link, away.where
    assert stub.executed is not None
    phases = Phases("execution")
    wanted = move.wanted if move is not None else None
    owners = wanted.preparation.owners if wanted is not None and wanted.preparation else (process.options.owner,)
    reason = away.go_home_reason if away.go_home_reason not in NUMBERS else None  # that of a thread is none any more
    try:
        frozen = at_first_instruction(process.pid)
        phases.done("stop")
        inherited = _ask_what_is_inherited(away, stub.executed, stub.program_tid(process.pid))
        phases.done("guest is over")
        reason = _set_inherited(frozen, inherited, stub.watched) or reason or may_leave(process.pid, owners)
        frozen.park()  # should we die, it goes on here
        phases.done("set inherited")
    except ProcessLookupError:
        _ended(process)
        return move
    except (FarhomeError, OSError) as error:
        log.exception("process %d cannot be held", process.pid)
        process.lost(f"could not be left: {sentence(error)}")
        return move
    finally:
        if move is not None:
            move.overtaken()
    phases.report(log)
    away.is_over()
    process.away, process.shares_memory = None, False
    replacement = Replacement(process, frozen, link, place, inherited, wanted, owners, begun)
    if reason is None and (wanted is None or wanted.preparation is not None):
        return replacement.leave()
    replacement.stay(reason or "")
    if wanted is not None and wanted.preparation is not None:
        wanted.preparation.abandon()
    return None


@dataclass(eq=False)
class Replacement(Move):
    """The program, held at its first instruction, on its way to where the one before was, and what is left of that. place: where that was;
    owners: whose rights bound those of what leaves; begun: when it ended."""

    process: Process
    frozen: Frozen
    link: GuestLink
    place: str
    inherited: Inherited
    wanted: Wanted | None
    owners: Sequence[Owner]
    begun: float
    preparation: Preparation | None = None
    held: Held | None = None
    """the same program, when it has been looked at"""
    failure: FarhomeError | OSError | None = None
    """what came of that else"""

    @property
    def progress(self) -> Progress:
        """Of the memory that goes ahead."""
        return self.preparation.progress if self.preparation is not None else Progress()

    def leave(self) -> Move | None:
        """At once, or (returned) as soon as the target is ready."""
        process, options = self.process, self.process.options
        try:
            self.held = Held.examine(process, self.frozen, self.owners, self.inherited.used)
        except (FarhomeError, OSError) as error:
            self.failure = error
        if self.wanted is None and self._has_entered():
            return None
        self.preparation = self.wanted.preparation if self.wanted is not None else None
        if self.preparation is None:
            self.preparation = Preparation(
                process.pid,
                self.link.target,
                options.node,
                options.engine,
                held_by=process.loop.tracer,
                trace=bool(options.trace),
                owners=(options.owner,),
                link_timeout=options.link_timeout,
            )
            start_thread("preparation", self.preparation.run, process.loop.wake)
        return self

    def _has_entered(self) -> bool:
        """Whether it is in the place of the guest by now, or goes on at home."""
        process = self.process
        try:
            if self.held is None:
                raise self.failure or AssertionError
            size = in_place.enter(process, self.held, self.link, self.inherited.place)
        except ByConversation as why:
            log.debug("process %d executes a program that comes by a conversation: %s", process.pid, why)
            return False
        except (FarhomeError, WireError, OSError) as error:
            self._stay_or_lose(error)
        else:
            ms = (time.monotonic() - self.begun) * 1e3
            self._is_there(ms, size)
        return True

    def _stay_or_lose(self, error: FarhomeError | WireError | OSError) -> None:
        """It could not go. If it was committed, that copy alone may run."""
        if self.process.away is not None:
            self.link.close()
            self.process.lost(f"could not be reached: {sentence(error)}")
            return
        self.stay(error.reason if isinstance(error, MoveRefused) else sentence(error))

    def _is_there(self, ms: float, size: int) -> None:
        process = self.process
        process.note_use()
        log.info("process %d executes a program on %s, held %.1f ms, %d bytes", process.pid, process.where, ms, size)
        self.link.close()  # where the program has come in its place, the guest has ended
        process.mosd.executed(process.where)

    def step(self) -> Move | None:
        """See Move."""
        preparation = self.preparation
        if preparation is not None:
            if not preparation.is_over:
                return self
            self.process.note_use()
            self._leave_prepared(preparation)
        return None

    def _leave_prepared(self, preparation: Preparation) -> None:
        process, wanted = self.process, self.wanted
        try:
            if self.failure is not None:
                raise self.failure
            preparation.check()
            with beside(process.pid):
                report = out_and_hop.leave(process, preparation, self.begun, self.held)
        except (FarhomeError, WireError, OSError) as error:
            preparation.abandon()
            self._stay_or_lose(error)
            return
        if wanted is None:
            self._is_there(report.frozen_ms, report.size)
            return
        log.info("process %d executes a program on %s, held %.1f ms, %d bytes", process.pid, report.where, report.frozen_ms, report.size)
        process.loop.farewells.say(self.link)
        process.mosd.answer(wanted.number, report)
        process.mosd.state(process.where, "moved", report.frozen_ms)
        process.mosd.executed(process.where)

    def stay(self, reason: str) -> None:
        """It goes on at home. reason: why it cannot leave; empty if it shall not."""
        process, wanted = self.process, self.wanted
        self.frozen.detach()
        ms = (time.monotonic() - self.begun) * 1e3
        log.info("process %d executes a program, and not on %s: %s; held %.1f ms", process.pid, self.place, reason or "asked", ms)
        if wanted is not None and wanted.preparation is None:
            process.mosd.answer(wanted.number, Report("home", ms, ms, 0, "execve"))
        elif wanted is not None:
            process.mosd.refuse(wanted.number, reason, process.where)
        why = f"execve: {reason}" if reason else wanted.reason if wanted is not None else "execve"
        process.mosd.state("home", why, ms)
        process.loop.farewells.say(self.link)
        process.finished = True

    def killed(self) -> None:
        """The program has ended where it was held: its tracer takes its end, so that its parent sees it."""
        self.frozen.detach()
        self.abandon()
        self.process.ended("killed")

    def abandon(self) -> None:
        """What was left of the program before ends, and the target undoes everything."""
        self.process.loop.farewells.say(self.link)
        if self.preparation is not None:
            self.preparation.abandon()


def _ask_what_is_inherited(away: Away, caller: int, leader: int) -> Inherited:
    """Asks the remote. If it does not answer any more, the masks are known from before, and what waited there is lost with its node.

    caller: the thread that executed (its id then), which has the leader's id now."""
    link = away.link
    before = link.announced.get(caller, Announced(0, tracing.signal_state(away.pid, away.pid).ignored))
    inherited = Inherited(before.blocked, before.ignored, [], link.home.used_away)
    link.send(Control.EXECUTED, caller)
    try:
        reported = link.wait(Control.OVER, away.answering.handle, link.timeout)
        kept = [(int(tid), bytes(info)) for tid, info in reported["pending"]]
        if any(len(info) != SIGINFO_SIZE for _, info in kept):
            raise WireError("a signal that is none")
        used = account.check(reported["used"])
        inherited = replace(
            inherited, ignored=int(reported["ignored"]),
            place=Place(str(reported["kernel"]), int(reported["lockable"])) if "kernel" in reported else None,
            pending=[(leader if tid == caller else 0, info) for tid, info in kept if tid in (0, caller) and _survives(info)],
            used=[[leader if row[0] == caller else row[0], *row[1:]] for row in used if row[0] in (account.WHOLE, caller)],
        )  # fmt: skip
    except (LinkLost, TimeoutError, WireError, KeyError, TypeError, ValueError) as error:
        log.warning("what waited for the guest on %s is lost: %s", away.where, error)
    return inherited


def _survives(info: bytes) -> bool:
    """The timers of timer_create(2) go with the program, and their signals with them (exec.c, flush_itimer_signals)."""
    return tracing.signal_code(info) != _SI_TIMER


def _set_inherited(frozen: Frozen, inherited: Inherited, watched: int) -> str | None:
    """Returns why the program is not quite what it would be, and had better not move on. watched: signals that may wait here. Errors:
    OSError."""
    kept = take(frozen, but=~watched) if watched else []  # they would go with the actions that are set
    frozen.leader.signal_mask = inherited.blocked
    wrong = tracing.signal_state(frozen.pid, frozen.pid).ignored ^ inherited.ignored
    with frozen.scratch(_ACTION.size) as scratch:
        for number in range(1, _SIGNALS + 1):
            if wrong >> number - 1 & 1 and number not in _UNCATCHABLE:
                handler = _SIG_IGN if inherited.ignored >> number - 1 & 1 else _SIG_DFL
                frozen.write(scratch, _ACTION.pack(handler, 0, 0, 0))
                frozen.call(SYS.rt_sigaction, number, scratch, 0, 8)
    try:
        put(frozen, kept + inherited.pending)
    except OSError as error:
        if error.errno != errno.EAGAIN:
            raise
        log.warning("process %d may not have as many signals waiting as it had: %s", frozen.pid, error)
        return "it is at its limit of waiting signals"
    return None


def _ended(process: Process) -> None:
    """It was killed meanwhile: the tracer takes its end, so that its parent sees it."""
    stops = tracing.poll([process.pid])
    process.ended(f"killed by signal {stops[0].number}" if stops else "killed")


__all__ = ["Replacement", "go_on"]
