"""Calls that change nothing where the guest is: ids that its thread has already, and where memory lies on a node that has but one place
for it, as its home has."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from engine.memory_nodes import ONE, memory_nodes
from engine.permission import Credentials
from kernel_helpers import tracing
from kernel_helpers.link import Event
from kernel_helpers.syscalls import ERESTARTNOINTR, SYS
from kernel_helpers.table import row_of

if TYPE_CHECKING:
    from remote.guest import Guest
    from remote.identity import Identities

_UIDS = frozenset({SYS.setuid, SYS.setreuid, SYS.setresuid})
_GIDS = frozenset({SYS.setgid, SYS.setregid, SYS.setresgid})
_MODES, _MODE_FLAGS = range(5), 1 << 14 | 1 << 15
"""Of mbind(2), MPOL_DEFAULT to MPOL_LOCAL: what any kernel knows."""
_MOVE_ALL = 4
"""MPOL_MF_MOVE_ALL, for which the kernel wants a right that no guest has."""
_AS_IT_IS = (1 << 32) - 1


class Unchanged:
    """Of one guest. home_nodes: memory_nodes() of its home."""

    def __init__(self, guest: Guest, home_nodes: str) -> None:
        self._guest = guest
        self._one_node = home_nodes == memory_nodes() == ONE

    def ask(self, event: Event) -> bool:
        """Whether the call that the guest's thread waits in is such a one; it is taken care of then."""
        guest, host = self._guest, self._guest.host_tid(event.tid)
        if host is None:
            return False
        if event.code != SYS.mbind and event.code not in _UIDS | _GIDS:
            return False
        arguments = struct.unpack("<6Q", event.data)
        if event.code == SYS.mbind:
            is_plain = arguments[2] & ~_MODE_FLAGS in _MODES and not arguments[5] & _MOVE_ALL
            return self._one_node and is_plain and guest.link.answer(event.tid, proceed=True)
        try:
            own = Credentials.of(f"/proc/{guest.pid}/task/{host}/status")
            if not _are_own(own.uids if event.code in _UIDS else own.gids, guest.sandbox.identities, event.code, arguments):
                return False
            if guest.is_pausing:  # nothing more goes home now; the call is made again when it may
                tracing.interrupt(host)
                return guest.link.answer(event.tid, error=ERESTARTNOINTR)
            return guest.link.forward(event.tid, event.code, arguments)
        except OSError:
            return False


def _are_own(ids: tuple[int, ...], identities: Identities | None, number: int, arguments: tuple[int, ...]) -> bool:
    """Whether a thread that has these ids (real, effective, saved, of files; as this node sees them) has no others after the call."""
    own = {identities.inside(each) if identities is not None else each for each in ids}
    wanted = {argument & _AS_IT_IS for argument in arguments[: len(row_of(number).arguments)]}
    return len(own) == 1 and wanted <= own | {_AS_IT_IS}
