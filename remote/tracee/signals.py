"""The signals of one guest: those of home are queued to it, and calls that they are to end are asked back.

A signal of home is queued with a *cookie* in place of its siginfo, and exchanged for the true siginfo in the signal-delivery-stop:
no other way lets one process queue another a signal that looks as if it came from the kernel or a third process.
"""

from __future__ import annotations

import signal
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from engine.signals.pending import Pending
from engine.signals.ticks import overrun, timer_of
from kernel_helpers.link.ends.events import Event, Parked
from kernel_helpers.process import tracing
from kernel_helpers.process.syscalls import SYS
from remote.tracee.tracee import Tracee
from wire.control import Control, pack, unpack

INFOS_MOST = 100_000
"""More signals than a user may have waiting, by default."""
HALT_PATIENCE = 0.1
"""Seconds for a thread to come to the stop that it was asked for."""
LOOK_PERIOD, LOOK_AGAIN = 0.05, 2.0
"""Seconds: how often, and for how long after a signal, threads are looked at that wait in a call and might not have heard of it."""
LATE = 0.05
"""Seconds after which a timer's signal may report more overruns than when it was sent."""
LIMIT_PERIOD = 0.25
"""Seconds between checks whether the limit on processor time was met."""

_COOKIE = struct.Struct("<iiiiiiQ")
"""Head of a siginfo_t with si_code SI_QUEUE: signo, errno, code, pad, pid, uid, value."""
_COOKIE_MARK = 0x6661_7268 << 32


@dataclass(frozen=True)
class _Tick:
    """A timer's signal; since when it has been on its way (time.monotonic()), 0: for longer."""

    number: int
    since: float


class GuestSignals:
    """See the module. is_limited: the node's kernel may send SIGXCPU by itself."""

    def __init__(self, tracee: Tracee) -> None:
        self._tracee = tracee
        self.is_limited = False
        self._infos: dict[int, bytes] = {}
        self._anybodys: set[int] = set()
        """cookies of what was sent to the process"""
        self._next_info = 1
        self._looked = 0.0
        self._signalled: float | None = None
        self._preferred = 0
        """the thread (ours) that the kernel has given the last signal for the process, unless that blocked it"""
        self._continued: int | None = None
        self._ticks_looked = 0.0
        self._missed: dict[int, _Tick] = {}
        """those of _ticks that waited nowhere when they were last looked for"""
        self._ticks: dict[int, _Tick] = {}
        """signals of timers that the guest has not taken, by timer"""
        self._asked: dict[int, tuple[bytes, Callable[[bytes], None]]] = {}
        """threads (ours) that stand in a stop until home has reported how often their timer has expired: siginfo, and what takes it then"""

    def deliver(self, event: Event) -> None:
        """A signal of home. Errors: ProcessLookupError."""
        fields = unpack(event.data)
        host = self._tracee.host_tid(event.tid) if event.tid else None
        self._continued = int(fields["continued"]) if "continued" in fields else self._continued
        try:
            if host is not None or not event.tid:
                wanted_by = self._tracee.host_tid(int(fields.get("wanted_by", 0)))
                self.queue(int(fields["number"]), bytes(fields["info"]), host, wanted_by)
        finally:
            if fields.get("asks"):
                self._tracee.link.send(Control.BLOCKS, 0, pack(masks=list(self._masks().items()), ignored=self._ignored()))

    def _masks(self) -> dict[int, int]:
        """What threads (the program's ids) block that are in a call."""
        masks = {}
        for tid in self._tracee.link.parked():
            host = self._tracee.host_tid(tid)
            if host is not None:
                with suppress(ProcessLookupError):
                    masks[tid] = tracing.signal_state(self._tracee.pid, host).blocked
        return masks

    def _ignored(self) -> int:
        """What the guest ignores, by default as well (a mask)."""
        try:
            state = tracing.signal_state(self._tracee.pid, self._tracee.pid)
        except ProcessLookupError:
            return 0
        return state.ignored | sum(1 << number - 1 for number in tracing.IGNORED_BY_DEFAULT if state.is_ignored(number))

    def queue(self, number: int, info: bytes, host: int | None, wanted_by: int | None = None) -> None:
        """Queues a signal to a thread (None: to the process, of which the kernel prefers the thread `wanted_by`, or the first). Errors:
        ProcessLookupError."""
        pid = self._tracee.pid
        state = tracing.signal_state(pid, host or wanted_by or pid)
        ends_stops = number == signal.SIGCONT and any(state.has(stop) for stop in tracing.STOPPING)
        self.note([(0, info)], waits=state.is_blocked(number))
        if state.is_ignored(number) and not state.is_blocked(number) and not ends_stops:
            self.taken(info)
            return
        # One that we could queue as it is gets a cookie, too: its sender's pid would be lost, for we are outside of the guest's pid
        # namespace (signal.c, send_signal_locked).
        cookie = self._next_info
        self._next_info += 1
        self._infos[cookie] = info
        if host is None:
            self._anybodys.add(cookie)
        if len(self._infos) > INFOS_MOST:
            # A signal that waits already is not queued again, and its cookie never comes back.
            self._forget(next(iter(self._infos)))
        reported = _COOKIE.pack(number, 0, tracing.SI_QUEUE, 0, 0, 0, _COOKIE_MARK | cookie)
        preferred = wanted_by or pid
        if host is None and state.is_caught(number) and not state.is_blocked(number):
            stands = state.stands or (number == signal.SIGCONT and self._halts(preferred))
            host = preferred if self._stays(preferred, stands) else None
        tracing.queue_signal(preferred if host is None else pid, host, number, reported)
        if host is None:
            self._preferred = preferred
        self._signalled = time.monotonic()
        self.ask_back()

    def _stays(self, host: int, stands: bool) -> bool:
        """Whether a thread (ours), of several, cannot but take next what is sent to it: it is in a call whose end home reports, or it
        stands in a stop of ours, as who has borne a child does until it has begun, or has let go of the memory that they share. The
        kernel, which prefers the thread for what is sent to the process, gives that to another all the same if something else waits for the
        thread, or it stands: at home neither would be so. Not if the call has a mask of its own, or may be the last."""
        tracee = self._tracee
        if len(tracee.threads) < 2 or host not in tracee.threads:
            return False
        call = tracee.link.parked().get(tracee.program_tid(host))
        if call is None:
            return stands and not tracee.is_stopped
        return call.sigmask is None and call.number not in (SYS.exit, SYS.exit_group)

    def _halts(self, host: int) -> bool:
        """Brings a thread (ours), of several, to a stop. Whether it stands. SIGCONT wakes all threads of a traced process (signal.c,
        prepare_signal): who comes first would take it, and not whom the kernel prefers."""
        tracee, end = self._tracee, time.monotonic() + HALT_PATIENCE
        if len(tracee.threads) < 2 or host not in tracee.threads or tracee.is_stopped or tracee.program_tid(host) in tracee.link.parked():
            return False
        tracing.interrupt(host)
        while time.monotonic() < end and tracee.program_tid(host) not in tracee.link.parked():
            if tracing.signal_state(tracee.pid, host).stands:
                return True
            time.sleep(0.0001)  # no descriptor reports it
        return False

    def note(self, pending: Pending, waits: bool = True) -> None:
        """These wait for the guest, or are about to. waits: nobody takes them soon."""
        for _, info in pending:
            timer = timer_of(info)
            if timer is not None:
                self._ticks[timer] = _Tick(tracing.signal_number(info), time.monotonic() if not waits else 0.0)

    def overruns(self, tid: int, times: int) -> None:
        """The thread (the program's id) that is about to take a tick: how often its timer has expired since."""
        host = self._tracee.host_tid(tid)
        if host in self._asked:
            info, take = self._asked.pop(host)
            take(overrun(info, times))

    @property
    def is_asking(self) -> bool:
        """Whether a thread waits for home's word. Only the home that it has now knows it."""
        return bool(self._asked)

    def forget(self, tid: int) -> None:
        """A thread (ours) has ended."""
        self._asked.pop(tid, None)

    def ask_no_more(self) -> None:
        """Threads that wait for home's word go on without it: nothing comes of it any more."""
        asked, self._asked = self._asked, {}
        for info, take in asked.values():
            take(info)

    def taken(self, info: bytes) -> None:
        """A signal is not on its way to the guest any more: if it was a timer's, home may send the next."""
        timer = timer_of(info)
        if timer is not None and self._ticks.pop(timer, None) is not None:
            self._tracee.link.send(Control.TAKEN, 0, pack(timer=timer))

    def put_back(self, tid: int, info: bytes, is_anybodys: bool) -> None:
        """The thread (ours) has been about to take a signal (claim()), and is to take it later: in the call that it has made since. If that
        blocks it, and it is_anybodys(), another may take it at once. Errors: ProcessLookupError."""
        timer, number = timer_of(info), tracing.signal_number(info)
        tick = self._ticks.get(timer) if timer is not None else None
        if is_anybodys and self._blocks(tid, number):
            others = (other for other in self._tracee.threads if other != tid and not self._blocks(other, number))
            self.queue(number, info, None, next(others, tid))
        else:
            self.queue(number, info, tid)
        if timer is not None and tick is not None:
            self._ticks[timer] = tick  # it has been on its way since then

    def _blocks(self, tid: int, number: int) -> bool:
        """Whether a thread (ours), or the call in which it waits, blocks a signal. Errors: ProcessLookupError."""
        call = self._tracee.link.parked().get(self._tracee.program_tid(tid))
        if call is not None and call.sigmask is not None and call.number != SYS.rt_sigtimedwait:
            return bool(call.sigmask >> number - 1 & 1)
        return tracing.signal_state(self._tracee.pid, tid).is_blocked(number)

    def _look_for_ticks(self) -> None:
        """Ticks that are gone without having been taken: the program has come to ignore them. What waits nowhere once may just have been
        taken, by a thread whose stop is still to be handled: it would count as taken then, and the next one as well, with that stop."""
        states = []
        for tid in self._tracee.threads:
            with suppress(ProcessLookupError):
                states.append(tracing.signal_state(self._tracee.pid, tid))
        missed = {timer: tick for timer, tick in self._ticks.items() if states and not any(state.has(tick.number) for state in states)}
        for timer, tick in missed.items():
            if self._missed.get(timer) is tick:
                del self._ticks[timer]
                self._tracee.link.send(Control.TAKEN, 0, pack(timer=timer))
        self._missed = missed

    def true_info(self, info: bytes) -> bytes:
        """Return what home's kernel said of a signal that was queued with a cookie."""
        return self._infos.get(_cookie(info), info)

    def claim(self, info: bytes) -> bytes:
        """true_info(), for the last time: the signal waits no more."""
        return self._forget(_cookie(info)) or info

    def _forget(self, cookie: int) -> bytes | None:
        self._anybodys.discard(cookie)
        return self._infos.pop(cookie, None)

    def is_anybodys(self, info: bytes) -> bool:
        """Return whether a signal that waits was sent to the process, and not to a thread."""
        return _cookie(info) in self._anybodys

    def take(self, tid: int, info: bytes, take: Callable[[bytes], None]) -> None:
        """The thread (ours), which stands in a stop, has taken a signal (claim()) out of its queue. take: is called with all that is to be
        sent word of it, now or, if it is a tick that has waited, when home has reported the rest."""
        if not self._asks(tid, info, take):
            self.taken(info)
            take(info)

    def _asks(self, tid: int, info: bytes, take: Callable[[bytes], None]) -> bool:
        timer = timer_of(info)
        tick = self._ticks.get(timer) if timer is not None else None
        if tick is None or time.monotonic() - tick.since <= LATE:
            return False
        self._ticks.pop(timer or 0, None)
        self._asked[tid] = (info, take)
        self._tracee.link.send(Control.TAKEN, self._tracee.program_tid(tid), pack(timer=timer, late=True))
        return True

    def look_again(self) -> None:
        """For a while: the process was stopped, and a stopped thread at home cannot always be asked back."""
        self._signalled = time.monotonic()

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing has to be looked for."""
        return not self.is_limited and self._signalled is None and not self._ticks

    def poll(self) -> None:
        """Once in each turn of the loop."""
        now = time.monotonic()
        if self._ticks and now - self._ticks_looked > LOOK_PERIOD:
            self._ticks_looked = now
            self._look_for_ticks()
        if (self.is_limited and now - self._looked > LIMIT_PERIOD) or (self._signalled is not None and now - self._looked > LOOK_PERIOD):
            # SIGXCPU comes from this node's kernel, perhaps to a thread that waits for home and hears of nothing. And a signal of home
            # may have come when a call had been taken from its thread and was not yet on its way home: nobody asked for it back.
            self.ask_back()
            if self._signalled is not None and now - self._signalled > LOOK_AGAIN:
                self._signalled = now if self._waits() else None

    def _waits(self) -> bool:
        """Whether a signal waits for a thread that lets it in: where nobody gets a processor, a call can be on its way home for long before
        it can be asked back. Who is stopped takes none; what the mask of a call keeps out does so until that ends."""
        tracee = self._tracee
        masked = {tracee.host_tid(tid) for tid, call in tracee.link.parked().items() if call.sigmask is not None}
        return not tracee.is_stopped and any(self.is_due(host) for host in list(tracee.threads) if host not in masked)

    def ask_back(self) -> None:
        """Threads inside a forwarded call cannot take a signal (WAIT_KILLABLE_RECV): their calls are asked back."""
        self._looked = time.monotonic()
        tracee = self._tracee
        parked = {host: (tid, call) for tid, call in tracee.link.parked().items() if (host := tracee.host_tid(tid)) is not None}
        is_withheld = False
        preferred = self._takes_from_process(parked)
        for host, (tid, call) in parked.items():
            with suppress(ProcessLookupError):
                state = tracing.signal_state(tracee.pid, host)
                if preferred and host != preferred:
                    state = replace(state, shared_pending=0)
                has_own_mask = call.sigmask is not None and call.number != SYS.rt_sigtimedwait
                if (call.sigmask is not None and state.let_in(call.sigmask)) or (not has_own_mask and state.deliverable()):
                    tracee.link.send(Control.CANCEL, tid)
                elif call.sigmask is not None and has_own_mask:
                    is_withheld |= state.withheld(call.sigmask)
        if is_withheld:  # the kernel may have given the signal to that thread, which it would not have had it known the mask
            for host in tracee.threads:
                if host not in parked and not tracee.stands(host) and self.is_due(host):
                    tracing.interrupt(host)

    def _takes_from_process(self, parked: Mapping[int, tuple[int, Parked]]) -> int:
        """The thread (ours) that takes what waits for the process next, the kernel having preferred it; 0: any may. Who else is asked back
        from a call could be quicker."""
        tracee, host = self._tracee, self._preferred
        if host not in tracee.threads or (host in parked and parked[host][1].number in (SYS.exit, SYS.exit_group)):
            return 0  # the first thread may have ended long before the others
        try:
            state = tracing.signal_state(tracee.pid, host)
        except ProcessLookupError:
            return 0
        mask = parked[host][1].sigmask if host in parked else None
        return host if state.shared_pending & ~(state.blocked if mask is None else mask) else 0

    def is_due(self, tid: int) -> bool:
        """Return whether a signal waits for a thread (as this process sees it) that it does not block."""
        try:
            return tracing.signal_state(self._tracee.pid, tid).deliverable()
        except ProcessLookupError:
            return False

    def stop_at_home(self, number: int) -> None:
        """A stop signal meets its default action: the process stops at home, if it has not been continued since, and then here. STOPPED or
        CONTINUED reports."""
        continued = {} if self._continued is None else {"continued": self._continued}
        self._tracee.link.send(Control.STOP_BY_DEFAULT, 0, pack(number=number, **continued))


def _cookie(info: bytes) -> int:
    """The number of a cookie, or 0."""
    if tracing.signal_code(info) != tracing.SI_QUEUE:
        return 0
    value = int(_COOKIE.unpack_from(info)[6])
    return value & 0xFFFF_FFFF if value >> 32 << 32 == _COOKIE_MARK else 0
