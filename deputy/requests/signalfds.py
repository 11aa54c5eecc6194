"""Signals that a process which is away reads by signalfds wait at home where its threads block them: the stub's threads block the same.

What is blocked there home's kernel keeps, for signalfd, poll, epoll, sigtimedwait and all that is sent, as for any process; what is not
comes to the guest as ever. See remote/tracee/masks.py.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from deputy.link.guestlink import LinkLost
from deputy.requests import freezing
from deputy.requests.freezing import MOMENT_PATIENCE, NotNow
from deputy.stub.traced import Replaced
from engine.signals.pending import Pending, put, settled, take
from engine.signals.signalfds import NAME, UNCATCHABLE, read_by
from engine.signals.ticks import merged
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.link.ends.events import Event
from kernel_helpers.process import tracing
from kernel_helpers.process.syscalls import SYS
from wire.control import Control, unpack
from wire.frames import WireError

if TYPE_CHECKING:
    from deputy.away import Away

log = logging.getLogger("deputy")

_ALL, _SIGNALS = (1 << 64) - 1, 64
_RECEIVING = (SYS.recvmsg, SYS.recvmmsg, SYS.pidfd_getfd)
"""Calls by which a process gets descriptors of others."""


def unpack_masks(data: bytes) -> tuple[int, int]:
    """Return what WATCH or MASK says: a mask, and the signal that is dropped or 0. Errors: WireError."""
    fields = unpack(data)
    try:
        mask, dropped = int(fields["mask"]), int(fields.get("dropped", 0))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise WireError("a mask of signals that is none") from None
    return mask & _ALL & ~UNCATCHABLE, dropped if 0 < dropped <= _SIGNALS else 0


class Signalfds:
    """Of one process that is away. lost: is called with a reason if its guest is."""

    def __init__(self, away: Away, lost: Callable[[str], None]) -> None:
        self._away = away
        self._lost = lost
        self._since = 0.0

    @property
    def is_asked(self) -> bool:
        """Whether a thread of the guest waits for grow()."""
        return bool(self._away.watch_next)

    def handle(self, event: Event) -> bool:
        """Return whether a frame from the remote is about this, and has been dealt with. Errors: WireError."""
        if event.kind not in (Control.WATCH, Control.MASK):
            return False
        mask, dropped = unpack_masks(event.data)
        if event.kind == Control.MASK:
            self._set(event.tid, mask, dropped)
        else:
            self._ask(mask)
        return True

    def _ask(self, mask: int) -> None:
        self._since = self._since if self.is_asked else time.monotonic()
        self._away.watch_next |= mask

    def holds(self, number: int) -> bool:
        """Return whether a call that has ended, of that number, has brought a signalfd, and its reply waits until signals that it reads
        wait here: it goes when the guest stands still."""
        if number not in _RECEIVING:
            return False
        if not self.is_asked:
            self._ask(self._read() & ~self._away.stub.watched)
        return self.is_asked and not self._away.link.still

    def _read(self) -> int:
        """The signals that the process reads by any signalfd."""
        directory, found = f"/proc/{self._away.pid}/fd", []
        with suppress(FileNotFoundError, ProcessLookupError):
            for name in os.listdir(directory):
                with suppress(FileNotFoundError):
                    if os.readlink(f"{directory}/{name}") == NAME:
                        found.append(name)
            return read_by(self._away.pid, found)
        return 0

    def _set(self, tid: int, mask: int, dropped: int) -> None:
        """The guest's thread (the program's id) is about to block that. dropped: a signal that the process comes to ignore, or 0. Answered
        in any case, or the thread would wait for good."""
        away = self._away
        stub, host, waiting = away.stub, away.stub.host(tid), 0
        if host is not None:
            try:
                stub.keep(host, mask)
                if dropped and stub.watched >> dropped - 1 & 1:
                    stub.drop(tid, dropped)
                away.signals.await_own(tid)
                state = tracing.signal_state(stub.pid, host)
                waiting = state.pending | state.shared_pending
            except (Replaced, ProcessLookupError):
                pass  # it has ended, and the guest hears of it
            except OSError as error:
                self._give_up(error)
        away.link.send(Control.MASKED, tid, pending=waiting)

    def grow(self) -> None:
        """More signals wait here: those that wait for the guest come, while it stands still."""
        away = self._away
        try:
            pending = freezing.freeze_guest(away, self._since)
        except Replaced:
            return
        except LinkLost as lost:
            self._lost(str(lost))
            return
        except (FarhomeError, WireError, OSError) as error:
            if not isinstance(error, NotNow) or time.monotonic() - self._since > MOMENT_PATIENCE:
                self._give_up(error)
            return
        try:
            _fetch(away, pending)
        except (FarhomeError, OSError) as error:
            self._give_up(error)
        away.watch_next = 0
        freezing.thaw(away)

    def _give_up(self, error: Exception) -> None:
        log.warning("signals of process %d cannot wait here while it is away: %s", self._away.pid, error)
        self._away.watch_next = 0  # who asked asks again
        self._away.go_home_reason = "signalfd"


def adopt(away: Away, pending: Pending) -> Pending:
    """The guest stands still and is about to hop: from there on the signals that are asked for wait here. Returns what is left for it of
    what waits. Errors: FarhomeError, OSError."""
    if not away.watch_next:
        return pending
    watched = _fetch(away, pending)
    away.watch_next = 0
    return [one for one in pending if not watched >> tracing.signal_number(one[1]) - 1 & 1]


def _fetch(away: Away, pending: Pending) -> int:
    """Returns which signals wait here from now on. Errors: FarhomeError, OSError."""
    stub, watched = away.stub, away.stub.watched | away.watch_next
    held = away.signals.give_up(watched)
    waiting = settled(merged([one for one in pending if watched >> tracing.signal_number(one[1]) - 1 & 1] + held))
    frozen = stub.stop()
    try:
        try:
            put(frozen, waiting)
        except OSError:
            away.signals.hold_again(held)
            with suppress(OSError):  # those that came before wait for the guest where it is
                put(frozen, [one for one in take(frozen, but=~watched) if one not in waiting])
            raise
        stub.watch(watched, away.link.blocked)
    finally:
        stub.resume_as_stub()
    away.link.watched = watched
    return watched


__all__ = ["Signalfds", "adopt", "unpack_masks"]
