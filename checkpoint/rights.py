"""Doing what a user could do, with the user's rights and no others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kernel_helpers.common.errors import FarhomeError


@dataclass(frozen=True)
class User:
    """Who a process is: all its user ids are the same."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def status(pid: int) -> dict[str, str]:
    """/proc/PID/status by its names. Errors: ProcessLookupError."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as lines:
            return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    except FileNotFoundError:
        raise ProcessLookupError(f"no process {pid}") from None


def user_of(pid: int) -> User:
    """Errors: ProcessLookupError; FarhomeError: it has more than one user or group id."""
    reported = status(pid)
    uids, gids = ({int(word) for word in reported[name].split()} for name in ("Uid", "Gid"))
    if len(uids) > 1 or len(gids) > 1:
        raise FarhomeError("it runs with more than one user or group id")
    return User(uids.pop(), gids.pop(), tuple(int(word) for word in reported.get("Groups", "").split()))


@contextmanager
def rights_of(user: User) -> Iterator[None]:
    """Files are opened, made and removed as by that user: the effective ids are his, and no capability is left. For a program of one
    thread, which is root. Errors: OSError."""
    if user.uid == 0 and user.gid == 0:
        yield
        return
    groups, mask = os.getgroups(), os.umask(0o077)
    os.setgroups(user.groups)
    os.setegid(user.gid)
    os.seteuid(user.uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
        os.umask(mask)
