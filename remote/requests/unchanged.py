"""Calls that change nothing where the guest is: of ids and capabilities, which count at home, where its calls are made; and where memory
lies on a node that has but one place for it, as its home has."""

from __future__ import annotations

import struct

from engine.mappings.memory_nodes import ONE, memory_nodes
from kernel_helpers.calls.table import Class, row_of
from kernel_helpers.link.ends.events import Event
from kernel_helpers.process import tracing
from kernel_helpers.process.syscalls import ERESTARTNOINTR, SYS
from remote.requests.marks import Marks
from remote.tracee.tracee import Tracee

_MODES, _MODE_FLAGS = range(5), 1 << 14 | 1 << 15
"""Of mbind(2), MPOL_DEFAULT to MPOL_LOCAL: what any kernel knows."""
_MOVE_ALL = 4
"""MPOL_MF_MOVE_ALL, for which the kernel wants a right that no guest has."""


class Unchanged:
    """Of one guest. home_nodes: memory_nodes() of its home."""

    def __init__(self, tracee: Tracee, marks: Marks, home_nodes: str) -> None:
        self._tracee = tracee
        self._marks = marks
        self._home_nodes = home_nodes

    def ask(self, event: Event) -> bool:
        """Return whether the call that the guest's thread waits in is such a one; it is taken care of then."""
        tracee, host = self._tracee, self._tracee.host_tid(event.tid)
        if host is None:
            return False
        if event.code != SYS.mbind and row_of(event.code).class_ is not Class.RIGHTS:
            return False
        arguments = struct.unpack("<6Q", event.data)
        if event.code == SYS.mbind:
            is_plain = arguments[2] & ~_MODE_FLAGS in _MODES and not arguments[5] & _MOVE_ALL
            return self._home_nodes == memory_nodes() == ONE and is_plain and tracee.link.answer(event.tid, proceed=True)
        if tracee.is_pausing:  # nothing more goes home now; the call is made again when it may
            tracing.interrupt(host)
            return tracee.link.answer(event.tid, error=ERESTARTNOINTR)
        self._marks.home_lets_lock = 0  # it may lock less without CAP_IPC_LOCK, and home alone knows how much
        try:
            return tracee.link.forward(event.tid, event.code, arguments)
        except OSError:
            return False
