"""The births of one guest: what it asks home for, and what becomes of home's answer.

remote                                        deputy
  |--- NEW_THREAD / NEW_PROCESS -------------->|  the stub makes the same
  | <-- BORN (the id) -------------------------|  or: no, go home; or, before a move: not now, ask again
  |  remote/requests/birth.py; the new task is known to the link first, then both run
"""

from __future__ import annotations

import logging
import secrets
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from engine.phases import Phases
from kernel_helpers.common.errors import FarhomeError, sentence
from kernel_helpers.link.ends.away import AwayLink
from kernel_helpers.link.ends.events import Event
from kernel_helpers.link.ends.session import Branch
from kernel_helpers.process import tracing
from kernel_helpers.process.injection.beside import Beside, beside
from kernel_helpers.process.seizing import Frozen, find_instruction, is_instruction
from kernel_helpers.process.syscalls import ERESTARTNOINTR, SYS
from kernel_helpers.process.thread import Thread
from remote.reception import Reception
from remote.requests import birth
from remote.requests.birth import Wanted
from remote.requests.later import Later
from remote.sandbox.sandbox import Sandbox
from remote.tracee.freezing import Freezing
from remote.tracee.masks import Masks
from remote.tracee.signals import GuestSignals
from remote.tracee.tracee import Tracee
from wire.channel import SECRET
from wire.control import Control, pack

log = logging.getLogger("remote")


@dataclass
class _Asked:
    """A birth that home has been asked for; of a process, where its deputy will connect, and how its calls go home before that. has_begun:
    the new task runs."""

    wish: Wanted
    reception: Reception | None = None
    secret: bytes = b""
    branch: Branch | None = None
    has_begun: bool = False

    def forget(self) -> None:
        """Nothing comes of it."""
        if self.reception is not None:
            self.reception.close()
        if self.branch is not None:
            self.branch.close()


@dataclass(frozen=True)
class Child:
    """A process that was born by the thread `maker` (ours), and has not run yet: its id at home, and where its deputy will connect. branch:
    inside of which its calls go home before that."""

    frozen: Frozen
    link: AwayLink
    number: int
    maker: int
    shares_memory: bool
    reception: Reception
    secret: bytes
    branch: Branch


class Births:
    """See the module. `awaited`: threads (host tids) that stand still until their child has let go of their memory. expect: where a
    deputy will connect that has this secret; bear: has a child looked after, and run."""

    def __init__(
        self, tracee: Tracee, sandbox: Sandbox, later: Later, signals: GuestSignals, masks: Masks, freezing: Freezing,
        expect: Callable[[bytes], Reception], bear: Callable[[Child], None],
    ) -> None:  # fmt: skip
        self._tracee = tracee
        self._sandbox = sandbox
        self._later = later
        self._signals = signals
        self._masks = masks
        self._freezing = freezing
        self._expect = expect
        self._bear = bear
        self._asked: dict[int, _Asked] = {}
        self._impossible: set[int] = set()
        self._instruction = 0
        self._branches = 0
        self.awaited: dict[int, tuple[int, Thread]] = {}

    def ask(self, event: Event) -> bool:
        """Whether the call that the guest's thread waits in makes what can be born here; home is asked for it then."""
        tracee, tid = self._tracee, event.tid
        host = tracee.host_tid(tid)
        if host is None or event.code not in birth.CALLS or not isinstance(tracee.link, AwayLink):
            return False
        if self._later.keeps(event):  # a child would lack that memory, too
            return True
        if tid in self._impossible:  # home has one too many now; there everything is put in order
            self._impossible.discard(tid)
            return False
        try:
            wish = birth.wanted(host, event.code, struct.unpack("<6Q", event.data))
            if wish is None or (wish.is_process and not wish.shares_memory and birth.shared_memory(tracee.pid)):
                return False
            self._ask(tid, wish)
        except OSError as error:
            log.info("no birth: %s", error)
            return False
        return True

    def _ask(self, tid: int, wish: Wanted) -> None:
        if not wish.is_process:
            self._asked[tid] = _Asked(wish)
            self._tracee.link.send(Control.NEW_THREAD, tid)
            return
        secret = secrets.token_bytes(SECRET)
        reception = self._expect(secret)
        self._branches += 1
        assert isinstance(self._tracee.link, AwayLink)
        self._asked[tid] = _Asked(wish, reception, secret, Branch(self._tracee.link, self._branches))
        asks = pack(
            port=reception.port, secret=secret, exit_signal=wish.exit_signal, shares=wish.shares_memory, branch=self._branches
        )  # fmt: skip
        self._tracee.link.send(Control.NEW_PROCESS, tid, asks)

    def born(self, tid: int, number: int, again: bool) -> None:
        """Home has what the call of `tid` is to make, by that id; or (0) has not, and the call is made again, or takes the guest home."""
        tracee, asked = self._tracee, self._asked.pop(tid, None)
        host, call = tracee.host_tid(tid), tracee.link.parked().get(tid)
        if asked is None or host is None or call is None or call.number not in birth.CALLS:
            if asked is not None:
                asked.forget()
            return
        if not number and not again:
            asked.forget()
            tracee.go_home(tid, call.number)
            return
        taken: list[tuple[int, bytes]] = []
        try:
            if number:
                self._sandbox.ask_for_next_pid(number)
            tracing.interrupt(host)
            tracee.link.answer(tid, error=ERESTARTNOINTR)
            if not number:
                return  # what happens at its stop is what happens at any
            with beside(host) as place:
                self._make(host, number, asked, place, taken)
        except ProcessLookupError:
            log.debug("it ended in a birth")
        finally:
            if not asked.has_begun:  # who calls for a child that there is not finds nobody, and knows it
                asked.forget()
        for _, info in taken:
            self._signals.queue(tracing.signal_number(info), info, host)

    def _make(self, host: int, number: int, asked: _Asked, place: Beside, taken: list[tuple[int, bytes]]) -> None:
        """Has the thread `host` (ours), about to stop, make the new task, and both run; but who makes a child that has its memory waits.
        taken: gets signals that are still to come to that thread. Errors: ProcessLookupError."""
        tracee, tid, phases = self._tracee, self._tracee.program_tid(host), Phases("birth")
        taken += [(host, self._signals.claim(info)) for _, info in self._freezing.await_trap(host)]
        parent = Thread(host, tracee.pid)
        parent.capture()
        parent.set_options(tracing.PTRACE_O_EXITKILL | tracing.PTRACE_O_SUSPEND_SECCOMP)
        phases.done("stop")
        try:
            self._sandbox.await_next_pid(number)
            newborn = birth.bear(parent, asked.wish, number, self._sandbox.first, self._find_instruction())
            place.born(newborn.tid, host)
            phases.done("call")
            self._begin(newborn, number, asked, host)
            asked.has_begun = True
        except (FarhomeError, OSError, StopIteration) as error:
            log.warning("nothing is born: %s", error)
            tracee.link.send(Control.UNBORN, tid, pack(thread=number))
            self._impossible.add(tid)
        else:
            if tracee.trace is not None:
                tracee.trace.ended(host, number)
        taken += [(host, self._signals.claim(info)) for info in parent.take_in_hand()]
        parent.restore()
        parent.set_options(tracing.PTRACE_O_EXITKILL | tracee.link.trace_options)
        if asked.has_begun and asked.wish.is_awaited:
            self.awaited[host] = (number, parent)
        else:
            tracee.follow(host)
            parent.resume()
        phases.done("begin")
        phases.report(log)
        if tracee.is_stopped:
            for stopped in {host, tracee.host_tid(number) or host}:
                tracing.interrupt(stopped)

    def _begin(self, newborn: Thread, number: int, asked: _Asked, maker: int) -> None:
        """The new task runs. Errors: OSError, FarhomeError: it has ended again."""
        tracee = self._tracee
        try:
            if asked.reception is not None and asked.branch is not None:
                self._begin_process(newborn, number, asked.reception, asked.branch, asked, maker)
                return
            tracee.add_thread(newborn, number)
            self._masks.inherit(self._masks, maker, newborn.tid)
        except (OSError, MemoryError) as error:
            with suppress(ProcessLookupError):
                newborn.call(SYS.exit, 0)
            raise FarhomeError(f"the new task cannot be looked after: {sentence(error)}") from error
        newborn.set_options(tracing.PTRACE_O_EXITKILL | tracee.link.trace_options)
        newborn.restore()
        tracee.follow(newborn.tid)
        newborn.resume()

    def _begin_process(self, newborn: Thread, number: int, reception: Reception, branch: Branch, asked: _Asked, maker: int) -> None:
        assert isinstance(self._tracee.link, AwayLink)
        link = AwayLink(self._tracee.link, newborn.pid, {newborn.tid: number})
        frozen = Frozen(newborn.pid, {newborn.tid: newborn}, newborn.instruction)
        self._bear(Child(frozen, link, number, maker, asked.wish.shares_memory, reception, asked.secret, branch))

    def _find_instruction(self) -> int:
        """The address of a `syscall` instruction in the guest. Errors: OSError."""
        pid = self._tracee.pid
        if not self._instruction or not is_instruction(pid, self._instruction):
            self._instruction = find_instruction(pid)
        return self._instruction

    def released_by(self, number: int) -> None:
        """A guest with that id has gone: its parent goes on if it has waited for that."""
        for host, (child, parent) in list(self.awaited.items()):
            if child == number:
                del self.awaited[host]
                with suppress(ProcessLookupError):
                    self._tracee.follow(host)
                    parent.resume()
                    if self._tracee.is_stopped:
                        tracing.interrupt(host)

    def close(self) -> None:
        """Nothing is born any more."""
        for asked in self._asked.values():
            asked.forget()
        self._asked.clear()
