"""Calls that mark a guest's memory: guards (madvise(2), MADV_GUARD_INSTALL) and locks (mlock(2) and its like). The guest's own kernel makes
them, where they mean here what they mean at home; else home does.

Memory that follows the guest comes first: a page that is put where there is a guard takes its place, and nobody reports a guard to us.
"""

from __future__ import annotations

import errno
import struct

from engine.context.marks import MCL_FUTURE, lock_limit, locked_bytes, mapped_bytes
from engine.mappings.mappings import PAGE
from kernel_helpers.link.ends.events import Event
from kernel_helpers.pages.pages import GUARD_INSTALL, GUARD_REMOVE, knows_guards
from kernel_helpers.process.syscalls import SYS, U64
from remote.requests.later import Later
from remote.tracee.tracee import Tracee

_INT = 0xFFFF_FFFF


class Marks:
    """Of one guest. home_has_guards: its home's kernel knows them; home_lets_lock: bytes that it may lock there, 0: only home knows."""

    def __init__(self, tracee: Tracee, later: Later) -> None:
        self._tracee = tracee
        self._later = later
        self.home_has_guards = True
        self.home_lets_lock = U64

    def ask(self, event: Event) -> bool:
        """Return whether a call that waits is such a one, and has been answered, or is in a moment."""
        if event.code == SYS.madvise:
            return self._guards(event)
        if event.code in (SYS.mlock, SYS.mlock2, SYS.mlockall):
            return self._locks(event)
        return False

    def _guards(self, event: Event) -> bool:
        if struct.unpack_from("<6Q", event.data)[2] & _INT not in (GUARD_INSTALL, GUARD_REMOVE):
            return False
        if not self.home_has_guards:
            self._tracee.link.answer(event.tid, error=-errno.EINVAL)
        elif not knows_guards():
            return False
        elif not self._later.keeps(event):
            self._tracee.link.answer(event.tid, proceed=True)
        return True

    def _locks(self, event: Event) -> bool:
        try:
            may = lock_limit(self._tracee.pid)
            if not self.home_lets_lock or (may < self.home_lets_lock and self._wanted(event) > may):
                return False
        except OSError:
            return False
        self._tracee.link.answer(event.tid, proceed=True)
        return True

    def _wanted(self, event: Event) -> int:
        """Bytes that would be locked. Errors: OSError."""
        first, size = (int(argument) for argument in struct.unpack_from("<2Q", event.data))
        if event.code == SYS.mlockall:
            return U64 if first & MCL_FUTURE else mapped_bytes(self._tracee.pid)
        return locked_bytes(self._tracee.pid) + -(-(first % PAGE + size) // PAGE) * PAGE


__all__ = ["Marks"]
