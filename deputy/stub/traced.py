"""A traced process whose threads are brought to a stop for a moment, make calls for us there, and go on as they were."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.process import many, tracing
from kernel_helpers.process.injection.beside import Beside, beside
from kernel_helpers.process.seizing import find_instruction
from kernel_helpers.process.syscalls import SYS
from kernel_helpers.process.thread import Thread
from kernel_helpers.process.tracing import Cause, Stop

_WALL = 0x40000000
LOOK = 0.02
"""Seconds between two checks whether a thread that is waited for has ended."""
DEATH_PATIENCE = 1.0
"""Seconds within which all threads of a process whose main thread has ended are heard of."""
_libc = ctypes.CDLL(None, use_errno=True)


class Replaced(FarhomeError):
    """It executes another program."""


class Traced:
    """One process that is seized.

    `tids`: its threads as this tracer sees them; `program`: which id the process itself knows each of them by, those included that have
    ended. `on_stop` is called with every stop that this class meets and did not cause, and has to let the thread go on
    (deputy.signals.signals does); without it signals that come meanwhile are sent again.
    """

    def __init__(self, pid: int, program: Mapping[int, int]) -> None:
        self.pid = pid
        self.tids: list[int] = list(program)
        self.on_stop: Callable[[Stop], None] | None = None
        self.executed: int | None = None
        """the thread (the program's id) by whose call the process is another program now: nothing of the old one is left"""
        self.detained: set[int] = set()
        """threads that on_stop has left in a stop until something is known"""
        self.awaited = 0
        """the thread that interrupt() waits for"""
        self._program = dict(program)
        self._later: list[tuple[int, bytes]] = []
        self._last_stop: Stop | None = None
        self.place: Beside | None = None
        """of injecting()"""

    def program_tid(self, tid: int) -> int:
        """Return the program's own id of a thread."""
        return self._program[tid]

    def host(self, program: int) -> int | None:
        """Of a thread that lives, by the program's id of it, the id that this tracer sees."""
        return next((host for host, tid in self._program.items() if tid == program and host in self.tids), None)

    def is_replaced(self) -> bool:
        """Return whether it executes another program, which may be why a thread does not stop: its others have to be seen to end."""
        if self.executed is None and self.on_stop is not None:
            for stop in tracing.poll(list(self.tids)):
                self.on_stop(stop)
        return self.executed is not None

    @property
    def is_group_stop(self) -> bool:
        """Whether the last interrupt() found its thread stopped together with its process."""
        return self._last_stop is not None and self._last_stop.cause is Cause.GROUP_STOP

    def thread_gone(self, tid: int) -> None:
        """A thread was reported ended."""
        if tid in self.tids:
            self.tids.remove(tid)

    def ask_to_stop(self, tids: Iterable[int]) -> None:
        """Begins to bring threads to a stop of our making; interrupt() awaits each."""
        many.interrupt(list(tids))

    def interrupt(self, tid: int, timeout: float, is_asked: bool = False, first: int | None = None) -> Stop | None:
        """Brings a thread to a stop of our making, or awaits that, if it is asked for. None: it does not come within `timeout` s, or it has
        ended. first: what it has reported since then (as waitpid has it), taken from its queue already."""
        self.awaited = tid
        try:
            if not is_asked and first is None:
                first = self._ask(tid)
            return self._interrupt(tid, timeout, first)
        except ChildProcessError:
            return None  # somebody has waited for its end
        finally:
            self.awaited = 0

    @staticmethod
    def _ask(tid: int) -> int | None:
        """Asks a thread to stop, unless it stands in a stop that nobody has waited for: returns that, as waitpid has it. A thread that is
        asked in a stop comes to one more when it is let go; if each is taken for the next, it never runs again."""
        got, status = os.waitpid(tid, os.WNOHANG | _WALL)
        if got == tid:
            return status
        tracing.interrupt(tid)
        return None

    def _interrupt(self, tid: int, timeout: float, first: int | None) -> Stop | None:
        if tid in self.detained:
            self.detained.discard(tid)
            tracing.proceed(tid)
        end, look = time.monotonic() + timeout, time.monotonic() + LOOK
        while True:
            got, status = (tid, first) if first is not None else os.waitpid(tid, os.WNOHANG | _WALL)
            first = None
            if got != tid:
                if (now := time.monotonic()) > end:
                    return None
                if now > look:
                    if tracing.is_dead(tid):
                        return None  # the others have to be waited for first
                    look = now + LOOK
                time.sleep(0.00002)
                continue
            stop = tracing.decode(tid, status)
            if stop.cause in (Cause.TRAP, Cause.GROUP_STOP):
                self._last_stop = stop
                return stop
            self._meet(stop)
            if stop.cause in (Cause.EXITED, Cause.KILLED) or (stop.cause is Cause.EXECUTED and self.on_stop is not None):
                return None
            first = self._ask(tid)  # the stop for a signal may have taken away what was asked for

    def meet_signals(self) -> None:
        """Lets threads go on that signals have stopped. For callers that wait for what only they can do: of stops of the whole process, and
        of their ends, nobody hears by this."""
        for tid in list(self.tids):
            if tracing.stops_for_signal(tid):
                for stop in tracing.poll([tid]):
                    self._meet(stop)

    def _meet(self, stop: Stop) -> None:
        """A stop that we did not cause, and that is none of the whole process."""
        if self.on_stop is not None:
            self.on_stop(stop)
        elif stop.cause is Cause.SIGNAL:
            info = tracing.signal_info(stop.tid)
            tracing.proceed(stop.tid)
            self._later.append((stop.tid, info))
        elif stop.cause in (Cause.EXITED, Cause.KILLED):
            self.thread_gone(stop.tid)
        else:
            tracing.proceed(stop.tid)

    def let_go(self, tid: int) -> None:
        """A thread that interrupt() stopped goes on: runs, or stays in its group stop."""
        stop = self._last_stop
        assert stop is not None and stop.tid == tid
        for thread, info in self.take_later():
            self.send_again(thread, info)
        if self.on_stop is not None:
            self.on_stop(stop)
        elif stop.cause is Cause.GROUP_STOP:
            tracing.listen(tid)
        else:
            tracing.proceed(tid)

    @contextmanager
    def injecting(self, program: int = 0) -> Iterator[Thread]:
        """A thread (the program's id, or any) that is stopped for injected calls and goes on with what it did. Errors: Replaced,
        TimeoutError, ProcessLookupError."""
        tid = self.host(program) or next(iter(self.tids), 0)
        if not tid:
            raise ProcessLookupError(errno.ESRCH, f"stub {self.pid} has ended")
        if self.executed is not None or self.interrupt(tid, 5.0) is None:
            end = time.monotonic() + DEATH_PATIENCE
            while not self.is_replaced() and tid in self.tids and tracing.is_dead(tid) and time.monotonic() < end:
                time.sleep(0.001)  # of it, or of its others: that it has been killed, or executes another program
            if self.executed is not None:
                raise Replaced
            if tid not in self.tids:
                raise ProcessLookupError(errno.ESRCH, f"stub {self.pid} has ended")
            raise TimeoutError(f"stub {self.pid} does not stop")
        thread = Thread(tid, self.pid)
        thread.instruction = self._find_instruction()
        thread.capture()
        try:
            with beside(tid) as self.place:
                yield thread
        finally:
            kept = thread.take_in_hand()
            thread.restore()
            for info in kept:
                self.send_again(tid, info)
            if self.is_group_stop:
                # The injected calls have taken the thread out of that stop: a trap brings it back to one that it can be left in,
                # and reports whether the group is still stopped.
                tracing.interrupt(tid)
                tracing.proceed(tid)
                self.interrupt(tid, 5.0)
            if tid in self.tids:
                self.let_go(tid)

    def _find_instruction(self) -> int:
        """Address of a `syscall` instruction in it. Errors: OSError."""
        return find_instruction(self.pid)

    def send_again(self, tid: int, info: bytes) -> None:
        """Queues a signal that a stop had taken, before the thread goes on: it would take what has come since. Its origin stays known where
        the kernel lets us say so. A stop signal is over when the process has been continued meanwhile."""
        number, code = tracing.signal_number(info), tracing.signal_code(info)
        if tracing.is_void(number, self.pid, tid):
            return
        if code < 0 and code != tracing.SI_TKILL:
            tracing.queue_signal(self.pid, tid, number, info)
        elif code == tracing.SI_TKILL:
            _libc.syscall(SYS.tgkill, self.pid, tid, number)
        else:
            os.kill(self.pid, number)

    def take_later(self) -> list[tuple[int, bytes]]:
        """Signals that interrupt() took and nobody has been given: thread and siginfo of each."""
        later, self._later = self._later, []
        return later


__all__ = ["Replaced", "Traced"]
