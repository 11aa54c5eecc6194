"""Bringing the threads of a guest to a standstill between two calls, each in plain user mode; what deputy/requests/freezing.py asks for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from engine.calls.restarts import note_masks
from engine.context.capture import pending_signals
from engine.signals.pending import Pending, put_first
from kernel_helpers.calls.numbers import NAMES
from kernel_helpers.common.errors import sentence
from kernel_helpers.link.ends.events import Parked
from kernel_helpers.process import many, syscalls, tracing
from kernel_helpers.process.injection import native
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS
from kernel_helpers.process.thread import Thread
from kernel_helpers.process.tracing import Cause, Stop
from remote.tracee import halves
from remote.tracee.dying import Dying
from remote.tracee.interrupted import InterruptedCalls
from remote.tracee.masks import Masks
from remote.tracee.signals import GuestSignals
from remote.tracee.tracee import Stops, Tracee
from remote.tracee.waits import Waits

log = logging.getLogger("remote")

YIELDS = 40
"""How often a thread that is to stop is looked at without a pause."""
PATIENCE = 5.0
"""Seconds for every thread to come to its stop."""


@dataclass
class _Attempt:
    """What has become of the threads. halted: stood in a stop before, and still do; reported: their reports that nobody has looked at;
    taken: signals that were about to be delivered (tid, siginfo)."""

    halted: dict[int, Stop]
    stopped: list[int] = field(default_factory=list)
    threads: dict[int, Thread] = field(default_factory=dict)
    taken: list[tuple[int, bytes]] = field(default_factory=list)
    reported: dict[int, int | None] = field(default_factory=dict)


class Freezing:
    """Of one guest. has_others: whether another guest has its listener, too."""

    def __init__(
        self, tracee: Tracee, interrupted: InterruptedCalls, signals: GuestSignals, waits: Waits, masks: Masks, dying: Dying, stops: Stops,
        has_others: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._tracee = tracee
        self._interrupted = interrupted
        self._signals = signals
        self._waits = waits
        self._masks = masks
        self._dying = dying
        self._stops = stops
        self._has_others = has_others

    def freeze(self, is_over: bool = False) -> str:
        """Brings every thread to a ptrace stop in plain user mode. Returns an error sentence, or nothing. is_over: for good, whatever
        its calls are at."""
        tracee = self._tracee
        if tracee.frozen is not None:
            return ""
        parked = tracee.link.parked()
        if not is_over and (under_way := [call.number for call in parked.values() if call.sent]):
            return f"home has not answered {NAMES.get(under_way[0], under_way[0])}"
        attempt = _Attempt(tracee.take_halted() | self._masks.take_waiting())
        try:
            self._signals.ask_no_more()
            self._stop_all(attempt, parked)
            self._settle(attempt, parked)
        except (OSError, TimeoutError) as error:
            log.warning("the guest did not freeze", exc_info=True)
            self._undo(attempt)
            return sentence(error) or "the guest did not freeze"
        return ""

    def would_find_nothing(self) -> bool:
        """Return whether the guest is one thread, in a call that home has been given, and no signal waits for it: all that would be known
        of it when it had stopped. Errors: ProcessLookupError."""
        tracee = self._tracee
        is_held = tracee.frozen is not None or tracee.is_stopped or tracee.undecided or self._dying.is_begun or self._signals.is_asking
        if is_held or len(tracee.threads) != 1:
            return False
        (host,) = tracee.threads
        call = tracee.link.parked().get(tracee.program_tid(host))
        if call is None or not call.sent or tracee.stands(host):
            return False
        state = tracing.signal_state(tracee.pid, host)
        return not (state.pending or state.shared_pending or state.stands)

    def _stop_all(self, attempt: _Attempt, parked: dict[int, Parked]) -> None:
        """Errors: OSError, TimeoutError."""
        tracee = self._tracee
        asked = [tid for tid in tracee.threads if tid not in attempt.halted]
        many.interrupt(asked)
        self._dying.let_freeze()
        for tid in parked:
            # Calls that only home makes, and whatever was suspended just now: back to before the call.
            tracee.link.answer(tid, error=syscalls.ERESTARTNOINTR)
        attempt.reported |= zip(asked, many.reports(asked, many.SOON), strict=True)
        for tid in list(tracee.threads):
            status = attempt.reported.pop(tid, None)
            first = tracing.decode(tid, status) if status is not None else attempt.halted.pop(tid, None)
            attempt.taken += self.await_trap(tid, first)
            if tid in tracee.threads:  # else its exit was under way
                attempt.stopped.append(tid)

    def _settle(self, attempt: _Attempt, parked: dict[int, Parked]) -> None:
        """All have stopped: each stands between two calls. Errors: OSError, TimeoutError."""
        tracee = self._tracee
        found = [Thread(tid, tracee.pid) for tid in attempt.stopped]
        many.capture(tracee.pid, found)
        attempt.threads = {thread.tid: thread for thread in found}
        frozen = Frozen(tracee.pid, attempt.threads)
        self._waits.freeze(frozen)
        self._interrupted.settle(frozen)
        self._put_back_masked(frozen, parked)
        for wrong in many.set_options(found, lambda _: tracing.PTRACE_O_EXITKILL | tracing.PTRACE_O_SUSPEND_SECCOMP).values():
            raise wrong
        put_first(frozen, [self._as_sent(frozen, tid, info) for tid, info in attempt.taken])
        tracee.frozen = frozen
        if self._has_others():
            tracee.link.unpause()  # they go on; this one stands in its stops

    def _undo(self, attempt: _Attempt) -> None:
        """The guest goes on."""
        tracee = self._tracee
        for tid in attempt.stopped:
            with suppress(OSError):
                thread = attempt.threads.get(tid)
                if thread is None:
                    thread = Thread(tid, tracee.pid)
                    thread.capture()
                thread.set_options(tracing.PTRACE_O_EXITKILL | tracee.link.trace_options)
                thread.restore()
                if tracee.is_stopped:
                    tracing.interrupt(thread.tid)
                thread.resume()
        for tid, status in attempt.reported.items():
            if status is not None and tid in tracee.threads:  # nobody else hears of it any more
                self._stops.handle_stop(tracing.decode(tid, status))
        for stop in attempt.halted.values():
            if stop.cause is Cause.OTHER:
                self._masks.again(stop.tid)
            else:
                halves.halt(tracee, self._interrupted, stop)
        tracee.link.unpause()

    def _put_back_masked(self, frozen: Frozen, parked: dict[int, Parked]) -> None:
        tracee = self._tracee
        note_masks(frozen)
        for tid, thread in frozen.threads.items():
            call = parked.get(tracee.program_tid(tid))
            if call is not None and call.sigmask is not None and call.number != SYS.rt_sigtimedwait:
                thread.mask_in_force = call.sigmask
            syscalls.put_back(thread.registers, thread.signal_mask, thread.mask_in_force)

    def await_trap(self, tid: int, first: Stop | None = None) -> list[tuple[int, bytes]]:
        """Waits for the stop that INTERRUPT brings; signals about to be delivered are taken: (tid, siginfo as it was queued here). first:
        the stop that the thread is in, the process being stopped."""
        tracee = self._tracee
        taken: list[tuple[int, bytes]] = []
        end, tries = time.monotonic() + PATIENCE, 0
        while time.monotonic() < end:
            stops, first = [first] if first is not None else tracing.poll([tid]), None
            if not stops:  # no descriptor reports a ptrace stop; it comes in microseconds, as a rule
                time.sleep(0.0001 if tries >= YIELDS else 0)
                tries += 1
                continue
            stop = stops[0]
            if stop.cause is Cause.TRAP:
                return taken
            if stop.cause in (Cause.EXITED, Cause.KILLED):
                self._stops.thread_gone(stop)
                if tid == tracee.pid or not tracee.threads:
                    raise ProcessLookupError(3, "the guest has ended")
                return taken
            if stop.cause is Cause.SIGNAL:
                self._interrupted.rewind_unless_suspended(tid)
                info = tracing.signal_info(tid)
                if not native.comes_again(info):
                    taken.append((tid, info))
            elif stop.cause is Cause.CALL:
                if tracee.trace is not None:
                    tracee.trace.note_stop(tid)
            elif stop.cause is Cause.OTHER:
                _rewind_from_entry(tid)
            tracing.interrupt(tid)  # every stop takes the place of the one that was asked for
            tracing.proceed(tid)
        raise TimeoutError(f"thread {tid} of the guest does not stop")

    def pending(self) -> Pending:
        """Return what waits for the frozen guest: (tid as the program sees it, 0 for the process; siginfo). SIGSTOP and SIGTRAP do not wait
        in the kernel's queues, since they are not blocked while calls are made in a thread (injection/call.c): the thread has them in hand.
        They come first: a SIGCONT that waits is younger than a stop in hand, or the kernel would have dropped it."""
        tracee = self._tracee
        assert tracee.frozen is not None
        threads = tracee.frozen.threads
        found = [(tid, info) for tid, thread in threads.items() for info in thread.in_hand]
        found += [(0, info) for info in pending_signals(tracee.pid, True)]
        waited_for = many.waited_for(list(threads.values()))
        found += [(tid, info) for tid, waits in zip(threads, waited_for, strict=True) if waits for info in pending_signals(tid, False)]
        return [self._as_sent(tracee.frozen, tid, info) for tid, info in found]

    def _as_sent(self, frozen: Frozen, tid: int, info: bytes) -> tuple[int, bytes]:
        """A signal that waits for a thread (ours; 0: for the process), as the program sees it. One of the process's, which the kernel here
        has given to a thread whose call blocks it, waits for any: here that thread has not made the call, at home it is in it."""
        blocked = frozen.threads[tid].mask_in_force if tid else 0
        is_others = blocked >> tracing.signal_number(info) - 1 & 1 and self._signals.is_anybodys(info)
        return self._tracee.program_tid(tid) if tid and not is_others else 0, self._signals.true_info(info)


def _rewind_from_entry(tid: int) -> None:
    """A call that was caught by ptrace on the way to the stop has not been made: back to before it."""
    registers = tracing.registers(tid)
    registers.rax, registers.orig_rax = registers.orig_rax, syscalls.U64
    registers.rip -= 2
    tracing.set_registers(tid, registers)


__all__ = ["Freezing"]
