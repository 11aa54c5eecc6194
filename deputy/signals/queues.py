"""Which queue of the kernel's a signal of the stub was in: that of a thread, at which it is directed, or that of the process.

A siginfo shows it for few signals. tgkill(2) has a si_code of its own; a timer's tick (SIGEV_SIGNAL, SIGEV_THREAD_ID), what
rt_sigqueueinfo(2) and rt_tgsigqueueinfo(2) send, what a descriptor's owner gets (F_OWNER_PID, F_OWNER_TID), and what the kernel sends
to the caller of a write look the same either way; and what a thread queues to itself has any si_code. But the kernel knows: a signal that
its tracer lets through to a thread which blocks it by now goes back to the queue that it came from (signal.c, ptrace_signal). There it can
be looked for, and comes once more. Not a tick: its timer has gone on, and should that have expired again the kernel drops what goes back
(signal.c, legacy_queue); whom a timer notifies /proc/PID/timers shows.

Of a signal for the process the kernel prefers the thread by whose id it was sent (kill(2) takes any thread's), then looks for another
(complete_signal). The stub's threads block nothing: so where another than the first gets what was sent, it was sent by that one's id, if a
call of the process says so, or the first was free to take it for a while.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from engine.context.capture import pending_signals
from engine.signals.ticks import SI_TIMER, timer_of
from kernel_helpers.process import tracing
from kernel_helpers.process.syscalls import SYS
from kernel_helpers.process.tracing import Cause, Stop

if TYPE_CHECKING:
    from deputy.stub.stub import Stub
    from kernel_helpers.link.ends.home import Standing

_WALL = 0x40000000
_ALL = (1 << 64) - 1
_SI_USER, _SI_KERNEL = 0, 0x80
_POLL_CODES = range(1, 7)
"""si_code of what a descriptor's owner gets, POLL_IN to POLL_HUP; of some signals the codes of something else."""
_OWN_CODES = frozenset({signal.SIGCHLD, signal.SIGTRAP, signal.SIGSYS, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
_OF_A_CALL = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
_OF_A_DESCRIPTOR = frozenset({signal.SIGIO, signal.SIGURG})
_SENT = frozenset({_SI_USER, tracing.SI_QUEUE})
"""si_code of what kill(2) and sigqueue(3) send."""
_SENDING = frozenset({SYS.kill, SYS.rt_sigqueueinfo, SYS.pidfd_send_signal})
_QUEUING = frozenset({SYS.rt_sigqueueinfo, SYS.rt_tgsigqueueinfo, SYS.pidfd_send_signal})
"""Calls by which a thread may send a siginfo to itself that looks like any other."""
MOMENT = 0.05
"""Seconds for which the first thread may not have been free to take a signal, after it has stopped for another."""
PATIENCE = 10.0
"""Seconds for a stopped thread to stop once more; and for a signal that was put back to come."""


class Queues:
    """Of one stub. handle: takes the stops that are met by the way."""

    def __init__(self, stub: Stub, handle: Callable[[Stop], None]) -> None:
        self._stub = stub
        self._handle = handle
        self._known: list[tuple[bytes, int, int, float]] = []
        """siginfo, what directed_at() says of it, where it came first, until when"""
        self._leader_seen = 0.0
        self.wanted_by = 0
        """by the id of which thread (the program's) the last signal of directed_at(), if for the process, was sent; 0: the first"""

    def directed_at(self, tid: int, info: bytes) -> int | None:
        """For a signal-delivery-stop: the thread (the program's id) at which the signal is directed; 0: it is for the process; None: the
        thread goes on, and the signal comes again."""
        code, self.wanted_by = tracing.signal_code(info), 0
        if len(self._stub.tids) == 1:
            return self._stub.program_tid(tid) if code == tracing.SI_TKILL else 0
        own = [self._stub.link.standing(busy) for busy in self._stub.busy()]
        may_be_own = any(one.number in _QUEUING for one in own)
        if code == tracing.SI_TKILL and not may_be_own:
            return self._stub.program_tid(tid)
        now = time.monotonic()
        first_at = self._stub.program_tid(tid) if tid != self._stub.pid and self._is_preferred(tid, code, own, now) else 0
        if not _is_ambiguous(tracing.signal_number(info), code, may_be_own):
            self.wanted_by = first_at
            return 0
        if code == SI_TIMER and not may_be_own and (notified := _notified_by(self._stub.pid, timer_of(info))) is not None:
            self.wanted_by = first_at
            return self._stub.program_tid(notified) if notified else 0
        self._known = [known for known in self._known if known[3] > now]
        for index, (known, directed, wanted_by, _) in enumerate(self._known):
            if known == info:
                del self._known[index]
                self.wanted_by = wanted_by
                return directed
        return self._put_back(tid, info, first_at)

    def leader_has_stopped(self) -> None:
        """The first thread, for whatever reason: another may get what is sent to the process just now."""
        self._leader_seen = time.monotonic()

    def _is_preferred(self, tid: int, code: int, own: Sequence[Standing], now: float) -> bool:
        """Return whether this thread's signal was sent by its id: the process's own call shows it, or the first thread was free."""
        own = [one for one in own if one.number in _SENDING]
        if code in _SENT and not own and now - self._leader_seen > MOMENT:
            return True
        return any(self._sends_by(standing, tid) for standing in own)

    def _sends_by(self, standing: Standing, tid: int) -> bool:
        """Whether that call of the process sends a signal by the id of the thread."""
        if standing.number in (SYS.kill, SYS.rt_sigqueueinfo):
            return bool(standing.first == self._stub.program_tid(tid))
        return bool(standing.number == SYS.pidfd_send_signal and _named_by(self._stub.pid, standing.first) == tid)

    def _put_back(self, tid: int, info: bytes, first_at: int) -> int | None:
        mask = tracing.signal_mask(tid)
        tracing.set_signal_mask(tid, _ALL)
        tracing.interrupt(tid)
        tracing.proceed(tid, tracing.signal_number(info))
        stop = self.await_stop(tid)
        if stop is None:
            return 0
        directed = self._stub.program_tid(tid) if info in pending_signals(tid, False) else 0
        self._known.append((info, directed, first_at, time.monotonic() + PATIENCE))
        tracing.set_signal_mask(tid, mask)
        if self._stub.awaited == tid:
            tracing.interrupt(tid)  # in place of the stop that somebody waits for, and that we have had
        self._handle(stop)
        return None

    def await_stop(self, tid: int) -> Stop | None:
        """The stop that was asked for. None: the thread has ended, which is dealt with."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                got, status = os.waitpid(tid, os.WNOHANG | _WALL)
            except ChildProcessError:
                return None
            if got != tid:
                os.sched_yield()
                continue
            stop = tracing.decode(tid, status)
            if stop.cause in (Cause.TRAP, Cause.GROUP_STOP):
                return stop
            if stop.cause is Cause.SIGNAL:  # a stop signal, which no mask keeps out
                tracing.interrupt(tid)
                tracing.proceed(tid, stop.number)
                continue
            self._handle(stop)
            return None
        return None


def _named_by(pid: int, descriptor: int) -> int:
    """Which thread or process (ours) a pidfd of that process is for; 0: it is none."""
    try:
        with open(f"/proc/{pid}/fdinfo/{descriptor}", "rb") as reported:
            return next((int(line.split()[1]) for line in reported if line.startswith(b"Pid:")), 0)
    except OSError:
        return 0


def _notified_by(pid: int, timer: int | None) -> int | None:
    """Which thread (ours) a timer of that process notifies; 0: the process; None: there is no such timer, or nobody shows it."""
    try:
        with open(f"/proc/{pid}/timers", encoding="ascii") as reported:
            is_it = False
            for line in reported:
                name, _, value = line.partition(": ")
                is_it = int(value) == timer if name == "ID" else is_it
                if is_it and name == "notify":
                    kind, _, number = value.partition("/")[2].partition(".")
                    return int(number) if kind == "tid" else 0
    except (OSError, ValueError):
        pass
    return None


def _is_ambiguous(number: int, code: int, may_be_own: bool) -> bool:
    """Whether a signal of that kind may have been in either queue. may_be_own: its code may be what the process has written."""
    if number in tracing.STOPPING or number == signal.SIGCONT:
        return False  # to queue one is an act of its own
    if may_be_own:
        return True
    if code == _SI_USER:
        return number in _OF_A_CALL
    if code == _SI_KERNEL:
        return number in _OF_A_DESCRIPTOR
    return code < 0 or (code in _POLL_CODES and number not in _OWN_CODES)
