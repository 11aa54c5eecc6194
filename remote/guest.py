"""One guest: its sandbox, its end of the link, its signals, its freezing and thawing.

The guest is seized for as long as it is here (with EXITKILL: it never outlives its supervisor), so that every signal stops it
first. A signal-delivery-stop is where a call *at the door* is seen: caught by the filter, not yet received from the listener. It is
rewound to before the call, and the handler runs as if the signal had come just before.
"""

from __future__ import annotations

import logging
import os
import signal
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.arrival import seccomp_suspended
from engine.capture import pending_signals
from engine.files import FileStore
from engine.pending import Pending, put
from kernel_helpers import account, inject, tracing
from kernel_helpers.inject import Frozen, Thread
from kernel_helpers.link import AwayLink, Event, Kind
from kernel_helpers.numbers import NAMES
from kernel_helpers.tracing import Cause, Stop
from remote.births import Births
from remote.execution import Executions
from remote.intercept_ptrace import PtraceLink
from remote.mapping import Mappings
from wire.control import Control, pack, unpack
from wire.frames import WireError
from wire.waking import ready

if TYPE_CHECKING:
    from remote.remote import Remote
    from remote.sandbox import Sandbox

log = logging.getLogger("remote")

GuestEnd = AwayLink | PtraceLink
"""The two interceptors."""
FREEZE_PATIENCE = 5.0
"""Seconds for every thread to come to its stop."""

INFOS_MOST = 100_000
"""More signals than a user may have waiting, by default."""
DOOR_PATIENCE = 0.005
"""Seconds for a call that was made to be taken."""
LOOK_PERIOD, LOOK_AGAIN = 0.05, 2.0
"""Seconds: how often, and for how long after a signal, threads are looked at that wait in a call and might not have heard of it."""
LIMIT_PERIOD = 0.25
"""Seconds between looks whether the limit on processor time was met."""
REAP_PATIENCE = 5.0
"""Seconds for the threads of a killed guest to end."""

_COOKIE = struct.Struct("<iiiiiiQ")
"""Head of a siginfo_t with si_code SI_QUEUE: signo, errno, code, pad, pid, uid, value."""
_COOKIE_MARK = 0x6661_7268 << 32


class Guest:
    """frozen is the process as long as every thread stands still for a move, else None."""

    def __init__(self, remote: Remote, frozen: Frozen, sandbox: Sandbox, link: GuestEnd, uid: int, command: str) -> None:
        self._remote = remote
        self.pid = frozen.pid
        self.sandbox = sandbox
        self.link = link
        self.births = Births(self, remote)
        self.shares_memory = False
        """with its parent, which waits until it has ended or called exec"""
        self.uid = uid
        self.command = command
        self.frozen: Frozen | None = frozen
        self._threads: dict[int, Thread] = dict(frozen.threads)
        self._tids = {program: host for host, program in program_tids(frozen.pid).items()}
        self._infos: dict[int, bytes] = {}
        self._next_info = 1
        self._halted: set[int] = set()
        self.is_stopped = False
        self._answered = {tid: number for tid, thread in frozen.threads.items() if (number := _interrupted(thread)) is not None}
        """host tid -> the call that a thread was taken out of with a restart code that is to count"""
        self._suspended: dict[int, int] = {}
        """host tid -> restart code of the call that home has suspended for the move that is under way"""
        self._is_pausing = False
        self._mappings = Mappings(self, FileStore(remote.options.cache))
        self._executions = Executions(self)
        self._is_limited = False
        self._looked = 0.0
        self._signalled: float | None = None
        self._cpu_before = _cpu_seconds(self.pid)
        link.account.begin()

    # -- life -----------------------------------------------------------------------------------------------------------

    def run(self, pending: Pending | None = None) -> None:
        """Lets the frozen guest go, for the first time (with the signals that waited for it where it was) or after thaw()."""
        assert self.frozen is not None
        if pending:
            with seccomp_suspended(self.frozen):
                put(self.frozen, pending)
        frozen, self.frozen = self.frozen, None
        for thread in frozen.threads.values():
            thread.set_options(tracing.PTRACE_O_EXITKILL | self.link.trace_options)
            thread.restore()
        for thread in frozen.threads.values():
            thread.resume()

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
        return max(0.0, _cpu_seconds(self.pid) - self._cpu_before)

    def destroy(self) -> None:
        """Ends the guest and everything that was made for it."""
        self.end().leave()

    def end(self) -> Sandbox:
        """Ends the guest, and leaves its place in the sandbox to another."""
        self.births.close()
        self.link.close()
        self._mappings.close()
        self._kill()
        return self.sandbox

    def _kill(self) -> None:
        if self._threads:
            end_traced(self.pid, list(self._threads))
            self._threads.clear()

    def child(self, remote: Remote, frozen: Frozen, link: AwayLink, shares_memory: bool) -> Guest:
        """A process that was born of this guest, and has not run yet."""
        self.sandbox.join()
        child = Guest(remote, frozen, self.sandbox, link, self.uid, self.command)
        child.shares_memory = shares_memory
        return child

    def expel(self, reason: str) -> None:
        """Asks the deputy to take it home."""
        self.link.send(Control.EXPEL, 0, pack(reason=reason))

    # -- frames from the deputy -------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """One event of the link."""
        if event.kind == Control.SIGNAL:
            try:
                self._deliver(event)
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
        elif event.kind == Kind.SUSPENDED:
            self._suspension(event.tid, event.code)
        elif event.kind == Kind.GO_HOME_CALL:
            if self._executions.takes(event):
                self._executions.begin(event, waits=self._is_pausing)
            elif not self.births.ask(event) and not self._mappings.ask(event):
                self.go_home(event.tid, event.code)
        elif event.kind == Control.PAUSE:
            self._is_pausing = True
            self._suspended.clear()
            self.link.pause()
            self.link.send(Control.PAUSED)
        elif event.kind == Control.QUIET:
            again = bool(self.births.awaited)
            error = "it waits for a child that has its memory (vfork)" if again else self._freeze()
            pending, used = ([], []) if error else (self.pending(), self.link.account.used())
            self.link.send(Control.FROZEN, 0, pack(error=error, again=again, pending=pending, used=used))
        elif event.kind == Control.THAW:
            self.thaw()
        elif event.kind == Control.EXECUTED:
            self._over()
        elif event.kind == Control.STOPPED:
            self.is_stopped = True
            for tid in self._threads:
                tracing.interrupt(tid)
        elif event.kind == Control.CONTINUED:
            self.is_stopped = False
            halted, self._halted = self._halted, set()
            for tid in halted:
                tracing.proceed(tid)
        elif event.kind in (Control.MAPPED, Control.CONTENT):
            self._mappings.handle(event)
        elif event.kind == Control.BORN:
            born = unpack(event.data)
            self.births.born(event.tid, int(born["thread"]), bool(born["again"]))
        elif event.kind == Control.THREAD_EXITED:
            self.link.answer(event.tid, proceed=True)
        else:
            log.debug("event %s ignored", event.kind)

    def go_home(self, tid: int, number: int, reason: str = "") -> None:
        """Asks home to take the guest back, for a thread's call that only home can make."""
        self.link.send(Control.GO_HOME, tid, pack(number=number, name=reason or NAMES.get(number, str(number))))

    def host_tid(self, tid: int) -> int | None:
        """A thread's id as this process sees it."""
        return self._tids.get(tid)

    def add_thread(self, newborn: Thread, tid: int) -> None:
        """A thread that was born here, before it runs. Errors: OSError, MemoryError."""
        assert isinstance(self.link, AwayLink)
        self._threads[newborn.tid], self._tids[tid] = newborn, newborn.tid
        self.link.add_thread(newborn.tid, tid)

    def _carry(self, told: dict[str, Any]) -> None:
        """What it has used before it came here, and may still use. Errors: ValueError, OSError."""
        used = account.check(told.get("used"))
        self.link.account.carry(used)
        before = sum(total for tid, total, *_ in used if tid == account.WHOLE)
        self._is_limited = account.limit_guest(self.pid, told.get("limit"), before)

    def _deliver(self, event: Event) -> None:
        """A signal of home: queued to the guest with a cookie, exchanged for the true siginfo when it is delivered."""
        fields = unpack(event.data)
        host = self._tids.get(event.tid) if event.tid else None
        if event.tid and host is None:
            return
        self.queue(int(fields["number"]), bytes(fields["info"]), host)

    def queue(self, number: int, info: bytes, host: int | None) -> None:
        state = tracing.signal_state(self.pid, host or self.pid)
        if state.is_ignored(number) and not state.is_blocked(number):
            return
        # One that we could queue as it is gets a cookie, too: its sender's pid would be lost, for we are outside of the guest's pid
        # namespace (signal.c, send_signal_locked).
        cookie = self._next_info
        self._next_info += 1
        self._infos[cookie] = info
        if len(self._infos) > INFOS_MOST:
            # A signal that waits already is not queued again, and its cookie never comes back.
            self._infos.pop(next(iter(self._infos)))
        tracing.queue_signal(self.pid, host, number, _COOKIE.pack(number, 0, tracing.SI_QUEUE, 0, 0, 0, _COOKIE_MARK | cookie))
        self._signalled = time.monotonic()
        self._cancel_interruptible()

    def _cancel_interruptible(self) -> None:
        """Threads inside a forwarded call cannot take a signal (WAIT_KILLABLE_RECV): their calls are asked back."""
        self._looked = time.monotonic()
        for tid, call in self.link.parked().items():
            host = self._tids.get(tid)
            if host is None:
                continue
            if call.sigmask is not None and self._waits_for_mask(host, call.sigmask):
                self.link.send(Control.GO_HOME, tid, pack(number=call.number, name=NAMES.get(call.number, str(call.number))))
            elif self._is_interruptible(host):
                self.link.send(Control.CANCEL, tid)

    def _waits_for_mask(self, tid: int, mask: int) -> bool:
        """Whether a signal is pending that the thread blocks, but not with the mask of the call that it waits in (ppoll and its
        like). Only a kernel that knows the mask can end that call: home's."""
        try:
            return tracing.signal_state(self.pid, tid).waits_for(mask)
        except ProcessLookupError:
            return False

    def _suspension(self, tid: int, code: int) -> None:
        """Home has suspended a call: the thread restarts it by the kernel's own rules, or makes it again after a freeze."""
        host = self._tids.get(tid)
        if host is None:
            return
        # The trap that INTERRUPT leaves makes sure that the thread passes through get_signal(): only there is a restart
        # code turned into a restart; with nothing pending errno 512 would reach the program.
        tracing.interrupt(host)
        # Calls that a handler ends with EINTR, and that go on when none runs (poll and sleeps: -516; epoll_wait: EINTR by
        # the mere stop at home), behave like ERESTARTNOHAND.
        code = code if code in inject.RESTART_CODES[:3] else -514
        call = self.link.parked().get(tid)
        if call is not None:
            self._answered[host] = call.number
        if self._is_pausing:
            self._suspended[host] = code
        self.link.answer(tid, error=code)

    # -- stops of the guest -----------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Handles whatever has happened to the guest's threads."""
        if self.frozen is not None:
            return
        for stop in tracing.poll([tid for tid in self._threads if tid not in self._halted]):
            self._handle_stop(stop)
        now = time.monotonic()
        if (self._is_limited and now - self._looked > LIMIT_PERIOD) or (self._signalled is not None and now - self._looked > LOOK_PERIOD):
            # SIGXCPU comes from this node's kernel, perhaps to a thread that waits for home and hears of nothing. And a signal of home
            # may have come when a call had been taken from its thread and was not yet on its way home: nobody asked for it back.
            self._cancel_interruptible()
            if self._signalled is not None and now - self._signalled > LOOK_AGAIN:
                self._signalled = None

    def _handle_stop(self, stop: Stop) -> None:
        if self.link.stopped(stop):
            return
        if stop.cause in (Cause.EXITED, Cause.KILLED):
            self._thread_gone(stop)
        elif stop.cause is Cause.SIGNAL:
            self._signal_stop(stop)
        elif self.is_stopped:
            self._halted.add(stop.tid)
        else:
            if stop.tid in self._answered and not self._is_interruptible(stop.tid):
                self._answered.pop(stop.tid, None)
            tracing.proceed(stop.tid)

    def _is_interruptible(self, tid: int) -> bool:
        try:
            return tracing.signal_state(self.pid, tid).deliverable()
        except ProcessLookupError:
            return False

    def _thread_gone(self, stop: Stop) -> None:
        self._threads.pop(stop.tid, None)
        if isinstance(self.link, AwayLink):
            self.link.remove_thread(stop.tid, self._program(stop.tid))
            self._tids = {program: host for program, host in self._tids.items() if host != stop.tid}
        is_last = stop.tid == self.pid or not self._threads
        if is_last and stop.cause is Cause.KILLED and not self._remote.finished:
            log.info("guest %d was killed by signal %d", self.pid, stop.number)
            self.link.send(Control.GUEST_DIED, 0, pack(number=stop.number, core=stop.core))
            self.link.flush(1.0)

    def _signal_stop(self, stop: Stop) -> None:
        number, tid = stop.number, stop.tid
        info = tracing.signal_info(tid)
        at_door = self._rewind_from_door(tid)
        true = self._true_info(info)
        if true != info:
            self._infos.pop(_cookie(info), None)
            tracing.set_signal_info(tid, true)
        state = tracing.signal_state(self.pid, tid)
        if number in tracing.STOPPING and not state.is_caught(number) and not state.is_ignored(number):
            self.link.send(Control.STOP_BY_DEFAULT, 0, pack(number=number))
            tracing.proceed(tid)
            return
        if at_door and state.is_caught(number) and not inject.comes_again(true):
            # Such a call can be one that the signal is to end. So it is let in first, and the signal comes to it where it waits.
            tracing.proceed(tid)
            self._await_call(tid)
            self.queue(number, true, tid)
            return
        if state.is_caught(number):
            self._suspended.pop(tid, None)
            self.link.abandon(self._program(tid))
        tracing.proceed(tid, number)

    def _await_call(self, host: int) -> None:
        """Until the call that a thread is about to make is on its way home, or a moment has passed."""
        program = self._program(host)
        end = time.monotonic() + DOOR_PATIENCE
        while program not in self.link.parked() and time.monotonic() < end:
            time.sleep(0.0001)  # no descriptor tells of it

    def _true_info(self, info: bytes) -> bytes:
        """What home's kernel said of a signal that was queued with a cookie."""
        return self._infos.get(_cookie(info), info)

    def _rewind_from_door(self, tid: int) -> bool:
        """A call that was caught and not taken is put back to before it. Whether there was one."""
        registers = tracing.registers(tid)
        if not self._is_at_door(tid, registers):
            self._answered.pop(tid, None)
            return False
        inject.normalise_restart(registers)
        tracing.set_registers(tid, registers)
        return True

    def _is_at_door(self, tid: int, registers: inject.Registers) -> bool:
        """Whether a stopped thread was interrupted in a call that nobody has taken from it yet."""
        number, code = inject.signed(registers.orig_rax), inject.signed(registers.rax)
        arguments = (registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9)
        return (
            number >= 0
            and code in inject.RESTART_CODES
            and self._answered.get(tid) != number
            and self.link.is_notified(number, arguments)
        )

    def _program(self, host: int) -> int:
        return next((program for program, tid in self._tids.items() if tid == host), 0)

    # -- standing still -----------------------------------------------------------------------------------------------------

    def _over(self) -> None:
        """The process executes another program at home: what waits for it, and what it has used, is told, and nothing of it runs any
        more. Who waits for its memory (vfork) goes on."""
        self._is_pausing = True
        self.link.pause()
        error = self._freeze(is_over=True)
        pending = [] if error else self.pending()
        ignored = tracing.signal_state(self.pid, self.pid).ignored
        self.link.send(Control.OVER, 0, pack(pending=pending, used=self.link.account.used(), ignored=ignored))
        self._kill()
        self._remote.tree.released(self._remote)

    def _freeze(self, is_over: bool = False) -> str:
        """Brings every thread to a ptrace stop in plain user mode. Returns an error sentence, or nothing. is_over: for good, whatever
        its calls are at."""
        if self.frozen is not None:
            return ""
        if self.is_stopped and not is_over:
            return "it is stopped"
        parked = self.link.parked()
        if not is_over and (under_way := [call.number for call in parked.values() if call.sent]):
            return f"home has not answered {NAMES.get(under_way[0], under_way[0])}"
        threads: dict[int, Thread] = {}
        taken: list[tuple[int, bytes]] = []
        try:
            for tid in self._threads:
                tracing.interrupt(tid)
            for tid in parked:
                # Calls that only home makes, and whatever was suspended just now: back to before the call.
                self.link.answer(tid, error=-513)
            for tid in list(self._threads):
                taken += self.await_trap(tid)
                if tid not in self._threads:
                    continue  # its exit was under way
                threads[tid] = Thread(tid, self.pid)
                threads[tid].capture()
            frozen = Frozen(self.pid, threads)
            for tid, thread in threads.items():
                if not self._is_at_door(tid, thread.registers):
                    inject.carry_restart(thread.registers)
                elif tid in self._suspended:  # it was let go meanwhile, and has made the same call again
                    thread.registers.rax = self._suspended[tid] & inject.U64
                else:
                    inject.normalise_restart(thread.registers)
            self._answered = {tid: number for tid, thread in threads.items() if (number := _interrupted(thread)) is not None}
            for thread in threads.values():
                thread.set_options(tracing.PTRACE_O_EXITKILL | tracing.PTRACE_O_SUSPEND_SECCOMP)
            put(frozen, [(self._program(tid), info) for tid, info in taken])
            self.frozen = frozen
            if self._remote.tree.has_others(self._remote):
                self.link.unpause()  # they go on; this one stands in its stops
        except (OSError, TimeoutError) as error:
            log.warning("the guest did not freeze", exc_info=True)
            for thread in threads.values():
                with suppress(OSError):
                    thread.set_options(tracing.PTRACE_O_EXITKILL | self.link.trace_options)
                    thread.restore()
                    thread.resume()
            self.link.unpause()
            return str(error) or "the guest did not freeze"
        return ""

    def await_trap(self, tid: int) -> list[tuple[int, bytes]]:
        """Waits for the stop that INTERRUPT brings; signals about to be delivered are taken: (tid, siginfo)."""
        taken: list[tuple[int, bytes]] = []
        end = time.monotonic() + FREEZE_PATIENCE
        while time.monotonic() < end:
            stops = tracing.poll([tid])
            if not stops:
                time.sleep(0.0001)  # no descriptor tells of a ptrace stop
                continue
            stop = stops[0]
            if stop.cause is Cause.TRAP:
                return taken
            if stop.cause in (Cause.EXITED, Cause.KILLED):
                self._thread_gone(stop)
                if tid == self.pid or not self._threads:
                    raise ProcessLookupError(3, "the guest has ended")
                return taken
            if stop.cause is Cause.SIGNAL:
                if tid not in self._suspended and self._is_at_door(tid, tracing.registers(tid)):
                    self._rewind_from_door(tid)
                info = tracing.signal_info(tid)
                if not inject.comes_again(info):
                    taken.append((tid, self._true_info(info)))
            elif stop.cause is Cause.OTHER:
                self._rewind_from_entry(tid)
            tracing.proceed(tid)
        raise TimeoutError(f"thread {tid} of the guest does not stop")

    def _rewind_from_entry(self, tid: int) -> None:
        """A call that was caught by ptrace on the way to the stop has not been made: back to before it."""
        registers = tracing.registers(tid)
        registers.rax, registers.orig_rax = registers.orig_rax, inject.U64
        registers.rip -= 2
        tracing.set_registers(tid, registers)

    def pending(self) -> Pending:
        """What waits for the frozen guest: (tid as the program sees it, 0 for the process; siginfo)."""
        assert self.frozen is not None
        found = [(0, self._true_info(info)) for info in pending_signals(self.pid, True)]
        for tid in self.frozen.threads:
            found += [(self._program(tid), self._true_info(info)) for info in pending_signals(tid, False)]
        return found

    def thaw(self) -> None:
        """The move is off: the guest runs on, and takes calls again."""
        self._is_pausing = False
        if self.frozen is None:
            self.link.unpause()
            for event in self._executions.again():
                self.handle(event)
            return
        self._executions.forget()
        self.run()
        self.link.unpause()


def _interrupted(thread: Thread) -> int | None:
    """The number of the call that a stopped thread was taken out of with a restart code."""
    number, code = inject.signed(thread.registers.orig_rax), inject.signed(thread.registers.rax)
    return number if number >= 0 and code in inject.RESTART_CODES else None


def _cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process, 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def program_tids(pid: int) -> dict[int, int]:
    """host tid -> tid as the program sees it (innermost of NSpid)."""
    result = {}
    for entry in Path(f"/proc/{pid}/task").iterdir():
        for line in (entry / "status").read_text().splitlines():
            if line.startswith("NSpid:"):
                result[int(entry.name)] = int(line.split()[-1])
    return result


def _cookie(info: bytes) -> int:
    """The number of a cookie, or 0."""
    if tracing.signal_code(info) != tracing.SI_QUEUE:
        return 0
    value = int(_COOKIE.unpack_from(info)[6])
    return value & 0xFFFF_FFFF if value >> 32 << 32 == _COOKIE_MARK else 0


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
