"""Which queue of the kernel's a signal of the stub was in: that of a thread, at which it is directed, or that of the process.

A siginfo tells it of few signals. tgkill(2) has a si_code of its own; a timer's tick (SIGEV_SIGNAL, SIGEV_THREAD_ID), what
rt_sigqueueinfo(2) and rt_tgsigqueueinfo(2) send, what a descriptor's owner gets (F_OWNER_PID, F_OWNER_TID), and what the kernel sends
to the caller of a write look the same either way. But the kernel knows: a signal that its tracer lets through to a thread which blocks
it by now goes back to the queue that it came from (signal.c, ptrace_signal). There it can be looked for, and comes once more.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.capture import pending_signals
from kernel_helpers import tracing
from kernel_helpers.tracing import Cause, Stop

if TYPE_CHECKING:
    from deputy.stub import Stub

_WALL = 0x40000000
_ALL = (1 << 64) - 1
_SI_USER, _SI_KERNEL = 0, 0x80
_POLL_CODES = range(1, 7)
"""si_code of what a descriptor's owner gets, POLL_IN to POLL_HUP; of some signals the codes of something else."""
_OWN_CODES = frozenset({signal.SIGCHLD, signal.SIGTRAP, signal.SIGSYS, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
_OF_A_CALL = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
_OF_A_DESCRIPTOR = frozenset({signal.SIGIO, signal.SIGURG})
PATIENCE = 10.0
"""Seconds for a stopped thread to stop once more; and for a signal that was put back to come."""


class Queues:
    """Of one stub. handle: takes the stops that are met by the way."""

    def __init__(self, stub: Stub, handle: Callable[[Stop], None]) -> None:
        self._stub = stub
        self._handle = handle
        self._known: list[tuple[bytes, int, float]] = []
        """siginfo, what directed_at() says of it, until when"""

    def directed_at(self, tid: int, info: bytes) -> int | None:
        """For a signal-delivery-stop: the thread (the program's id) at which the signal is directed; 0: it is for the process; None: the
        thread goes on, and the signal comes again."""
        code = tracing.signal_code(info)
        if code == tracing.SI_TKILL:
            return self._stub.program_tid(tid)
        if len(self._stub.tids) == 1 or not _is_ambiguous(tracing.signal_number(info), code):
            return 0
        now = time.monotonic()
        self._known = [known for known in self._known if known[2] > now]
        for index, (known, directed, _) in enumerate(self._known):
            if known == info:
                del self._known[index]
                return directed
        return self._put_back(tid, info)

    def _put_back(self, tid: int, info: bytes) -> int | None:
        mask = tracing.signal_mask(tid)
        tracing.set_signal_mask(tid, _ALL)
        tracing.interrupt(tid)
        tracing.proceed(tid, tracing.signal_number(info))
        stop = self.await_stop(tid)
        if stop is None:
            return 0
        directed = self._stub.program_tid(tid) if info in pending_signals(tid, False) else 0
        self._known.append((info, directed, time.monotonic() + PATIENCE))
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


def _is_ambiguous(number: int, code: int) -> bool:
    """Whether a signal of that kind may have been in either queue."""
    if number in tracing.STOPPING or number == signal.SIGCONT:
        return False  # to queue one is an act of its own
    if code == _SI_USER:
        return number in _OF_A_CALL
    if code == _SI_KERNEL:
        return number in _OF_A_DESCRIPTOR
    return code < 0 or (code in _POLL_CODES and number not in _OWN_CODES)
