"""Signals, stops and death of the stub.

The stub blocks nothing and is seized, so that every signal that comes to the process at home stops it here first. It is passed
to the guest, never delivered to the stub: the guest has the masks and handlers. Only stops, and death, are the stub's own.
"""

from __future__ import annotations

import logging
import os
import signal
import struct
import time
from collections.abc import Callable

from deputy.link.guestlink import GuestLink
from deputy.signals.cuts import Cuts
from deputy.signals.queues import Queues
from deputy.signals.timers import Ticks
from deputy.stub.stub import Stub
from deputy.stub.terminal import say_on_terminal
from engine.signals.pending import Pending
from engine.signals.ticks import ALARM
from kernel_helpers.link.ends.home import Standing
from kernel_helpers.process import tracing
from kernel_helpers.process.syscalls import SYS
from kernel_helpers.process.tracing import Cause, Stop
from kernel_helpers.usage import account, children
from wire.control import Control

log = logging.getLogger("deputy")

PATIENCE = 10.0
"""Seconds that a call may take longer by which a process has sent itself a signal, where threads at home get no processor."""
SIGNAL_PATIENCE = 0.1
"""Seconds that a thread which sleeps, or stands, may take to stop for a signal; seconds of processor time for one that computes at home."""
ON_ITS_WAY = 0.001
"""Seconds of processor time between taking a signal from its queue and the stop for it: many times as many as it takes."""
TERMINALS = frozenset({signal.SIGTTIN, signal.SIGTTOU})
"""What a terminal sends to the process group of one that is in the background, unless its caller blocks or ignores it."""
THREADS_LOOKED_AT = 16
"""The first of a process may get what is sent to it; the kernel prefers the very first."""


_ENDS = frozenset({1, 2, 3})
"""si_code of SIGCHLD: CLD_EXITED, CLD_KILLED, CLD_DUMPED."""
_CHILD, _CHILD_AT = struct.Struct("<iIi4xqq"), 16
"""Of such a siginfo: pid, uid, status, user and system time in ticks."""
_TICKS = os.sysconf("SC_CLK_TCK")
_TERMINAL_MASK = sum(1 << (number - 1) for number in TERMINALS)


class StubSignals:
    """Follows the threads of one stub."""

    def __init__(self, stub: Stub, link: GuestLink, ended: Callable[[str], None]) -> None:
        """ended: is called with how the stub has ended."""
        self._stub = stub
        self._ended = ended
        self.link = link
        """to the guest, where it is now"""
        self.holds: Callable[[int], bool] = lambda number: False
        """whether the reply to a call of that number waits for signals (deputy/requests/signalfds.py)"""
        self.stopped = False
        """the process is (SIGSTOP, job control), and its guest stands still"""
        self._own_stop: int | None = None
        self._own_death: int | None = None
        self._held: Pending | None = None
        self._continued = 0
        """How often SIGCONT has come."""
        self._carried = 0
        """How many of those the guest knew of when it last came to a node."""
        self._unborn: set[int] = set()
        self._queues = Queues(stub, self.handle)
        self._ticks = Ticks(stub)
        self._asking, self._heard = set[int](), set[int]()
        """threads (the program's ids) that ask how often a timer has expired; those before whose question nothing is left unheard"""
        self._cuts = Cuts(stub)
        stub.on_stop = self.handle

    def poll(self) -> None:
        """Handles whatever has happened to the stub's threads."""
        self._poll_stops()
        heard, self._heard = self._heard, set()
        for tid, target in self._stub.link.signallers():
            standing = self._stub.link.standing(tid)
            if standing.number == SYS.timer_getoverrun:
                self._answer_overruns(tid, int(standing.first), tid in heard)
                continue
            if self.holds(standing.number):
                continue
            # The program goes on when it has sent itself a signal, or stopped a timer; at home it would have got what came by then.
            timer = _timer_of(standing)
            if timer is not None:
                self._ticks.let_in()
            self._await(self._threads_of(target, timer))
            if timer is not None:
                self._send_ticks(self._ticks.take_kept(timer))
            self._stub.link.signals_arrived(tid)

    @property
    def is_asking(self) -> bool:
        """Whether poll() has something to do when all is handled that the guest has said until now."""
        return bool(self._asking)

    def have_heard(self) -> None:
        """All is handled that the guest had said before the last poll(), which answers next time what was asked then."""
        self._heard, self._asking = self._asking, set()

    def _answer_overruns(self, tid: int, timer: int, has_heard: bool) -> None:
        """How often a timer had expired when the guest took its last tick: home's kernel has given out the next, perhaps. has_heard: of
        what the guest has taken before it asked."""
        if not has_heard:
            self._asking.add(tid)
            return
        reported = self._ticks.reported(timer)
        if reported is not None:
            self._stub.link.put_value(tid, reported)
        self._stub.link.signals_arrived(tid)

    def _poll_stops(self) -> None:
        if self._stub.executed is None:
            for stop in tracing.poll(list(self._stub.tids)):
                self.handle(stop)

    def _threads_of(self, target: int, timer: int | None = None) -> list[int]:
        """Threads of the stub (ours) that may be about to get a signal: of the process, of the thread `target` (the program's id; 0: any),
        or of that timer."""
        if target:
            return [tid for tid in self._stub.tids if self._stub.program_tid(tid) == target]
        threads = self._stub.tids[:THREADS_LOOKED_AT]
        return threads + [tid for tid in self._ticks.threads(timer) if tid not in threads]

    def _await(self, threads: list[int]) -> None:
        """Until those threads of the stub (ours) have stopped for what has come to them."""
        begun, used = time.monotonic(), dict[int, float]()
        self._poll_stops()
        while self._stub.tids and self._stub.executed is None and self._may_come(threads, used, time.monotonic() - begun):
            time.sleep(0.0001)  # the kernel wakes a thread of the stub for it: no descriptor reports that
            self._poll_stops()
        self._poll_stops()

    def _may_come(self, threads: list[int], used: dict[int, float], waited: float) -> bool:
        """Whether one of those threads of the stub (ours) may be about to stop for a signal. waited: seconds. used: what each had used when
        it was first seen to compute (seconds): one that gets no processor cannot stop."""
        if waited > PATIENCE:
            return False
        return any(self._is_about_to_stop(tid, used, waited) for tid in threads)

    def _is_about_to_stop(self, tid: int, used: dict[int, float], waited: float) -> bool:
        try:
            state = tracing.signal_state(self._stub.pid, tid)
            if not state.runs:
                return state.deliverable() and waited <= SIGNAL_PATIENCE
            # One that computes may have taken the signal from its queue.
            now = tracing.processor_time(self._stub.pid, tid)
        except ProcessLookupError:
            return False
        return now - used.setdefault(tid, now) <= (SIGNAL_PATIENCE if state.deliverable() else ON_ITS_WAY)

    def handle(self, stop: Stop) -> None:
        """One stop of one thread."""
        if stop.tid == self._stub.pid:
            self._queues.leader_has_stopped()
        if stop.cause in (Cause.EXITED, Cause.KILLED):
            self._thread_gone(stop)
        elif stop.cause is Cause.SIGNAL:
            self._signal(stop)
        elif stop.cause is Cause.EXECUTED:
            self._stub.executed = self._stub.program_tid(tracing.event_message(stop.tid))
        elif stop.cause is Cause.GROUP_STOP:
            if not self.stopped:
                self.stopped = True
                self._report(Control.STOPPED, number=stop.number)
            self._stub.stands(stop.tid)
            tracing.listen(stop.tid)
        else:
            if self.stopped and stop.cause is Cause.TRAP:
                self.stopped, self._own_stop = False, None  # one that waited is over as well
                self._report(Control.CONTINUED)
            self._proceed(stop.tid)

    def _thread_gone(self, stop: Stop) -> None:
        by_itself = self._stub.is_exiting(stop.tid)
        self._stub.thread_gone(stop.tid)
        if stop.tid == self._stub.pid or not self._stub.tids:
            status = f"killed by signal {stop.number}" if stop.cause is Cause.KILLED else f"exit {stop.number}"
            self._ended(status)
        elif stop.cause is Cause.EXITED and by_itself:  # else another thread executes a program, and the guest is over
            self._report(Control.THREAD_EXITED, tid=self._stub.program_tid(stop.tid))

    def _signal(self, stop: Stop) -> None:
        number = stop.number
        if number == self._own_stop:
            self._make_own_stop(stop)
            return
        if number in (self._own_death, signal.SIGSTOP):
            tracing.proceed(stop.tid, number)
            return
        info = tracing.signal_info(stop.tid)
        code = tracing.signal_code(info)
        if number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP) and code > 0:
            log.error("the resident loop of %d failed with signal %d at home", stop.tid, number)
            tracing.proceed(stop.tid, signal.SIGKILL)
            self.kill("the resident loop failed")
            return
        if number == signal.SIGCHLD and self._unborn and int.from_bytes(info[16:20], "little") in self._unborn:
            self._unborn.discard(int.from_bytes(info[16:20], "little"))  # si_pid, where si_code is CLD_*
            self._proceed(stop.tid)
            return
        if number == signal.SIGCHLD and code in _ENDS:
            info = self._with_times(info)
        directed = self._queues.directed_at(stop.tid, info)
        if directed is None:
            return
        self._continued += number == signal.SIGCONT
        if self._ticks.keeps(stop.tid, directed, info):
            self._proceed(stop.tid)
            return
        if self._held is not None:
            self._held.append((directed, info))
            self._proceed(stop.tid)
            return
        # Before the stub goes on: the call that caused the signal (kill, a write to a broken pipe) is replied to after it.
        asks = number in TERMINALS and code == tracing.SI_KERNEL and self._stub.stands_in_call(stop.tid)
        asks |= self._cuts.finds(stop.tid, number)
        self._pass_on(directed, info, asks, self._queues.wanted_by)
        if asks:
            self._stub.detained.add(stop.tid)  # the call is made again, or its rest: not before we know what its caller blocks
        else:
            self._proceed(stop.tid)

    def _with_times(self, info: bytes) -> bytes:
        """A siginfo of a child's end, with what the child has used away as well."""
        pid, uid, status, user, system = _CHILD.unpack_from(info, _CHILD_AT)
        used = children.of_child(self._stub.pid, pid)
        more = (used.user * _TICKS // account.SECOND, used.system * _TICKS // account.SECOND)
        return info[:_CHILD_AT] + _CHILD.pack(pid, uid, status, user + more[0], system + more[1]) + info[_CHILD_AT + _CHILD.size :]

    def blocks(self, masks: dict[int, int], ignored: int) -> None:
        """What threads of the guest (the program's ids) block that are in a call: the terminal is asked again, and decides by that.
        ignored: what the guest ignores."""
        for tid, mask in masks.items():
            host = self._stub.host(tid)
            if host is not None:
                if host in self._stub.detained:
                    self._cuts.decide(host, mask | ignored)
                self._stub.block(host, mask & _TERMINAL_MASK)
        detained, self._stub.detained = self._stub.detained, set()
        for host in detained:
            self._proceed(host)

    def _proceed(self, tid: int) -> None:
        self._stub.rewind_interrupted(tid)
        tracing.proceed(tid)

    def ignore_end_of(self, child: int) -> None:
        """The guest does not hear of the end of that child."""
        self._unborn.add(child)

    def await_unborn(self) -> None:
        """Until the stub has taken what came to it of such an end: if it came home with that in its queue the program would hear it."""
        if self._unborn:
            self.await_own(0)

    def hold(self) -> None:
        """From now on signals are kept: the guest is about to stand still for a move."""
        if self._held is None:
            self._held, self._carried = [], self._continued

    def held(self) -> Pending:
        """Return what was kept since hold(), and the ticks that wait for the guest to take those before them."""
        return list(self._held or []) + self._ticks.kept()

    def note(self, pending: Pending) -> None:
        """These wait for the guest where it is."""
        self._ticks.note(pending)

    def taken(self, timer: int) -> None:
        """The guest has taken the last tick of that timer."""
        kept = self._ticks.taken(timer)
        if kept is not None:
            self._send_ticks([kept])

    def overruns(self, timer: int) -> int:
        """The guest is about to take a tick of that timer, which has waited. How often it has expired since; the tick reports that."""
        self._ticks.let_in()
        self._await(self._threads_of(0, timer))
        times = self._ticks.take_late(timer)
        following = self._ticks.forget(timer)
        self._ticks.let_in()  # what came just now had its thread block it once more
        if following is not None:
            self._send_ticks([following])
        return times

    def await_own(self, tid: int) -> None:
        """Until what may come to that thread (the program's id) has come."""
        self._await(self._threads_of(tid))

    def give_up(self, mask: int) -> Pending:
        """Return what is kept of these signals, and is to wait in the kernel's queues."""

        def is_wanted(one: tuple[int, bytes]) -> bool:
            return bool(mask >> tracing.signal_number(one[1]) - 1 & 1)

        held = self._held or []
        if self._held is not None:
            self._held = [one for one in held if not is_wanted(one)]
        return [one for one in held if is_wanted(one)] + self._ticks.give_up(is_wanted)

    def hold_again(self, given: Pending) -> None:
        """What was given up waits here after all."""
        if self._held is not None:
            self._held = given + self._held

    def _send_ticks(self, ticks: Pending) -> None:
        if self._held is not None:
            self._held += ticks
            return
        for tid, info in ticks:
            self._pass_on(tid, info)

    def let_go(self) -> None:
        """Sends what was kept to the guest where it is now."""
        kept, self._held = self._held or [], None
        for tid, info in kept:
            self._pass_on(tid, info)

    def _pass_on(self, tid: int, info: bytes, asks: bool = False, wanted_by: int = 0) -> None:
        number = tracing.signal_number(info)
        continued = {"continued": self._continued} if number == signal.SIGCONT else {}
        self._report(Control.SIGNAL, tid=tid, barrier=True, number=number, info=info, asks=asks, wanted_by=wanted_by, **continued)

    def stop_by(self, number: int, continued: int | None) -> None:
        """The guest met the default action of a stop signal: the stub makes that stop, if the kernel agrees (orphaned groups), and if
        the process has not been continued since. The guest's thread waits until it knows. continued: of the last SIGCONT that the guest
        knows where it is."""
        if self.stopped:
            return  # the guest knows of it, and hears when that is over
        try:
            is_over = (self._carried if continued is None else continued) < self._continued
            if is_over or tracing.signal_state(self._stub.pid, self._stub.pid).voids(number):
                self._report(Control.CONTINUED)
                return
            self._own_stop = number
            os.kill(self._stub.pid, number)
        except ProcessLookupError:
            pass

    def settle_stop(self) -> None:
        """Until it is known whether the stop that the guest has met last stops the process, which it takes along when it moves."""
        end = time.monotonic() + PATIENCE
        self._poll_stops()
        while self._own_stop is not None and self._stub.tids and self._stub.executed is None and time.monotonic() < end:
            time.sleep(0.0001)  # as in _await()
            self._poll_stops()

    def _make_own_stop(self, stop: Stop) -> None:
        """A thread is about to make the stop that the guest has met: whether there is one, its next stop shows."""
        self._own_stop = None
        tracing.interrupt(stop.tid)
        tracing.proceed(stop.tid, stop.number)
        found = self._queues.await_stop(stop.tid)
        if found is None:
            return
        if self._stub.awaited == stop.tid:
            tracing.interrupt(stop.tid)  # in place of the stop that somebody waits for, and that we have had
        was_stopped = self.stopped
        self.handle(found)
        if not self.stopped and not was_stopped:
            self._report(Control.CONTINUED)

    def die_by(self, number: int) -> None:
        """Ends the stub by that signal, so that its parent sees what really happened."""
        self._own_death = number
        if number != signal.SIGKILL:  # which has no other
            self._stub.default_action(number)
        try:
            os.kill(self._stub.pid, number)
        except ProcessLookupError:
            pass

    def kill(self, sentence: str) -> None:
        """SIGKILL, with one line on the process's terminal if it has one."""
        say_on_terminal(self._stub.pid, sentence)
        try:
            os.kill(self._stub.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._stub.reap(5.0)

    def _report(self, control: Control, tid: int = 0, barrier: bool = False, **fields: object) -> None:
        self.link.send(control, tid, barrier, **fields)


def _timer_of(standing: Standing) -> int | None:
    """Which timer a call sets or stops."""
    if standing.number in (SYS.timer_settime, SYS.timer_delete):
        return int(standing.first) & 0xFFFFFFFF
    return ALARM if standing.number in (SYS.alarm, SYS.setitimer) else None
