"""The births of one guest: what it asks home for, and what becomes of home's answer.

remote                                        deputy
  |--- NEW_THREAD / NEW_PROCESS -------------->|  the stub makes the same
  | <-- BORN (the id) -------------------------|  or: no, go home; or, before a move: not now, ask again
  |  remote/birth.py; the new task is known to the link first, then both run
"""

from __future__ import annotations

import logging
import secrets
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.phases import Phases
from kernel_helpers.errors import FarhomeError, sentence
from kernel_helpers.link.link import AwayLink, Event
from kernel_helpers.process import tracing
from kernel_helpers.process.inject import Thread
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import ERESTARTNOINTR, SYS
from remote import birth
from remote.birth import Wanted
from remote.freezing import await_trap
from remote.reception import Reception
from wire.control import Control, pack

if TYPE_CHECKING:
    from remote.guest import Guest
    from remote.remote import Remote

log = logging.getLogger("remote")

SECRET = 32


@dataclass(frozen=True)
class _Asked:
    """A birth that home has been asked for; of a process, where its deputy will connect."""

    wish: Wanted
    reception: Reception | None = None
    secret: bytes = b""

    def forget(self) -> None:
        """Nothing comes of it."""
        if self.reception is not None:
            self.reception.close()


class Births:
    """See the module. `awaited`: threads (host tids) that stand still until their child has let go of their memory."""

    def __init__(self, guest: Guest, remote: Remote) -> None:
        self._guest = guest
        self._remote = remote
        self._asked: dict[int, _Asked] = {}
        self._impossible: set[int] = set()
        self.awaited: dict[int, tuple[int, Thread]] = {}

    def ask(self, event: Event) -> bool:
        """Whether the call that the guest's thread waits in makes what can be born here; home is asked for it then."""
        guest, tid = self._guest, event.tid
        host = guest.host_tid(tid)
        if host is None or event.code not in birth.CALLS or not isinstance(guest.link, AwayLink):
            return False
        if guest.later.keeps(event):  # a child would lack that memory, too
            return True
        if tid in self._impossible:  # home has one too many now; there everything is put in order
            self._impossible.discard(tid)
            return False
        try:
            wish = birth.wanted(host, event.code, struct.unpack("<6Q", event.data))
            if wish is None or (wish.is_process and not wish.shares_memory and birth.shared_memory(guest.pid)):
                return False
            self._ask(tid, wish)
        except OSError as error:
            log.info("no birth: %s", error)
            return False
        return True

    def _ask(self, tid: int, wish: Wanted) -> None:
        if not wish.is_process:
            self._asked[tid] = _Asked(wish)
            self._guest.link.send(Control.NEW_THREAD, tid)
            return
        secret = secrets.token_bytes(SECRET)
        reception = Reception(self._remote.options.address, secret, self._remote.tree.waker.wake)
        self._asked[tid] = _Asked(wish, reception, secret)
        self._guest.link.send(
            Control.NEW_PROCESS, tid, pack(port=reception.port, secret=secret, exit_signal=wish.exit_signal, shares=wish.shares_memory)
        )

    def born(self, tid: int, number: int, again: bool) -> None:
        """Home has what the call of `tid` is to make, by that id; or (0) has not, and the call is made again, or takes the guest home."""
        guest, asked = self._guest, self._asked.pop(tid, None)
        host, call = guest.host_tid(tid), guest.link.parked().get(tid)
        if asked is None or host is None or call is None or call.number not in birth.CALLS:
            if asked is not None:
                asked.forget()
            return
        if not number and not again:
            asked.forget()
            guest.go_home(tid, call.number)
            return
        taken: list[tuple[int, bytes]] = []
        has_begun = False
        phases = Phases("birth")
        try:
            tracing.interrupt(host)
            guest.link.answer(tid, error=ERESTARTNOINTR)
            if not number:
                return  # what happens at its stop is what happens at any
            taken = await_trap(guest, host)
            parent = Thread(host, guest.pid)
            parent.capture()
            parent.set_options(tracing.PTRACE_O_EXITKILL | tracing.PTRACE_O_SUSPEND_SECCOMP)
            phases.done("stop")
            try:
                guest.sandbox.set_next_pid(number)
                newborn = birth.bear(parent, asked.wish, number, guest.sandbox.first)
                phases.done("call")
                self._begin(newborn, number, asked, host)
                has_begun = True
            except (FarhomeError, OSError, StopIteration) as error:
                log.warning("nothing is born: %s", error)
                guest.link.send(Control.UNBORN, tid, pack(thread=number))
                self._impossible.add(tid)
            else:
                if guest.trace is not None:
                    guest.trace.ended(host, number)
            taken += [(host, guest.signals.claim(info)) for info in parent.take_in_hand()]
            parent.restore()
            parent.set_options(tracing.PTRACE_O_EXITKILL | guest.link.trace_options)
            if has_begun and asked.wish.is_awaited:
                self.awaited[host] = (number, parent)
            else:
                guest.follow(host)
                parent.resume()
            phases.done("begin")
            phases.tell(log)
            if guest.is_stopped:
                for stopped in {host, guest.host_tid(number) or host}:
                    tracing.interrupt(stopped)
        except ProcessLookupError:
            log.debug("it ended in a birth")
        finally:
            if not has_begun:  # who calls for a child that there is not finds nobody, and knows it
                asked.forget()
        for _, info in taken:
            guest.signals.queue(tracing.signal_number(info), info, host)

    def _begin(self, newborn: Thread, number: int, asked: _Asked, maker: int) -> None:
        """The new task runs. Errors: OSError, FarhomeError: it has ended again."""
        guest = self._guest
        try:
            if asked.reception is not None:
                self._begin_process(newborn, number, asked.reception, asked, maker)
                return
            guest.add_thread(newborn, number)
            guest.masks.inherit(guest.masks, maker, newborn.tid)
        except (OSError, MemoryError) as error:
            with suppress(ProcessLookupError):
                newborn.call(SYS.exit, 0)
            raise FarhomeError(f"the new task cannot be looked after: {sentence(error)}") from error
        newborn.set_options(tracing.PTRACE_O_EXITKILL | guest.link.trace_options)
        newborn.restore()
        guest.follow(newborn.tid)
        newborn.resume()

    def _begin_process(self, newborn: Thread, number: int, reception: Reception, asked: _Asked, maker: int) -> None:
        guest, remote = self._guest, self._remote
        assert isinstance(guest.link, AwayLink)
        link = AwayLink(guest.link, newborn.pid, {newborn.tid: number})
        try:
            child = remote.tree.bear(remote, number, reception, asked.secret)
        except BaseException:
            link.close()
            raise
        frozen = Frozen(newborn.pid, {newborn.tid: newborn})
        born = guest.child(child, frozen, link, asked.wish.shares_memory)
        born.masks.inherit(guest.masks, maker, newborn.tid)
        child.patience.limit = remote.patience.limit
        child.settle(born)
        born.run()
        remote.tree.newborns.add(child, {"event": "born", "pid": number})
        log.info("guest %s:%d was born as %d", remote.options.home, number, newborn.pid)

    def released_by(self, number: int) -> None:
        """A guest with that id has gone: its parent goes on if it has waited for that."""
        for host, (child, parent) in list(self.awaited.items()):
            if child == number:
                del self.awaited[host]
                with suppress(ProcessLookupError):
                    self._guest.follow(host)
                    parent.resume()
                    if self._guest.is_stopped:
                        tracing.interrupt(host)

    def close(self) -> None:
        """Nothing is born any more."""
        for asked in self._asked.values():
            asked.forget()
        self._asked.clear()
