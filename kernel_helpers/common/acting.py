"""Rights with files for a moment: a thread of root's acts as somebody else, and the kernel decides what that one may open."""

from __future__ import annotations

import ctypes
import os
import pwd
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from kernel_helpers.calls.numbers import NUMBERS

NOBODY = 65534
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def acting_as(uid: int, gid: int, groups: Sequence[int] = ()) -> Iterator[None]:
    """This thread's user, group and groups are those as far as files go, without root's capabilities for files. Nobody else's change.
    Errors: PermissionError: we are not root, or the kernel does not do it."""
    before = os.getgroups()
    try:
        _set_groups(groups)
        _set(NUMBERS["setfsgid"], gid)
        _set(NUMBERS["setfsuid"], uid)
        yield
    finally:
        _set(NUMBERS["setfsuid"], os.geteuid())
        _set(NUMBERS["setfsgid"], os.getegid())
        _set_groups(before)


def acting_as_user(uid: int, root_counts: bool) -> AbstractContextManager[None]:
    """As that user, with the groups that they have on this node, but for group 0; root: as nobody, unless root counts."""
    if uid == 0 and root_counts:
        return acting_as(0, 0)
    try:
        entry = pwd.getpwuid(uid) if uid else pwd.getpwuid(NOBODY)
    except KeyError:
        return acting_as(uid or NOBODY, NOBODY)
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid) if uid else []
    return acting_as(entry.pw_uid, entry.pw_gid or NOBODY, [group for group in groups if group])


def _set(call: int, number: int) -> None:
    # They report what it was before, and no failure: whether it is done is asked.
    _libc.syscall(call, number)
    if _libc.syscall(call, -1) & 0xFFFFFFFF != number:
        raise PermissionError("this thread cannot act as somebody else")


def _set_groups(groups: Sequence[int]) -> None:
    if _libc.syscall(NUMBERS["setgroups"], len(groups), (ctypes.c_uint32 * max(1, len(groups)))(*groups)):
        raise PermissionError(ctypes.get_errno(), "this thread cannot have other groups")
