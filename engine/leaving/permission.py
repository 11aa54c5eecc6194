"""Whether a process may leave its home: one question before every way out, asked while it stands still.

A node that has a process's memory can make any call at home with that process's rights. So nothing may leave that has more rights than
anyone who wants it away: what the kernel would not let them trace, they cannot send to another node. Asked are all who have a say: the user
who registered the process with farhome, and the user who wants this move.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kernel_helpers.inspection import tasks

_AT_SECURE = 23
_WAKE_ALARM = 1 << 35
"""CAP_WAKE_ALARM, which sessions at a desktop have, and which gives nobody's data away."""
_CHANGES_IDS = 1 << 6 | 1 << 7
"""CAP_SETGID, CAP_SETUID."""
_LINES = re.compile(rb"^(Uid|Gid|Groups|CapInh|CapPrm|CapEff|CapBnd|CapAmb):[\t ]*(.*)$", re.MULTILINE)

LINES = ("Uid:", "Gid:", "Groups:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:")
"""of a status: what reports rights"""

SETUID = "its program has rights of its own (setuid)"
CAPABILITIES = "it has capabilities of its own"
UNREADABLE = "its memory is not to be read by its user (PR_SET_DUMPABLE)"
THREADS_DIFFER = "its threads have different rights (user, group or capabilities)"


@dataclass(frozen=True)
class Owner:
    """A user as the kernel knows them at a socket (SO_PEERCRED, SO_PEERGROUPS)."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    def to_word(self) -> str:
        """For a command line."""
        return f"{self.uid}:{self.gid}:{','.join(str(group) for group in self.groups)}"

    @classmethod
    def from_word(cls, word: str) -> Owner:
        """Errors: ValueError."""
        uid, gid, groups = word.split(":")
        return cls(int(uid), int(gid), tuple(int(group) for group in groups.split(",") if group))

    @property
    def name(self) -> str:
        """That of the user, or the number of one without a name."""
        return _user(self.uid)


ROOT = Owner(0, 0)


Statuses = Mapping[int, bytes]
"""tid -> lines of its status (kernel_helpers/inspection/tasks.py)."""
Reported = tuple[tuple[bytes, bytes], ...]
"""Lines of a status: name, value."""


@dataclass(frozen=True)
class Credentials:
    """The rights of one thread, as /proc/PID/task/TID/status reports them: ids real, effective, saved and of the file system; capabilities
    inheritable, permitted, effective, of the bounding set, ambient."""

    uids: tuple[int, ...]
    gids: tuple[int, ...]
    groups: tuple[int, ...]
    capabilities: tuple[int, ...]

    @classmethod
    def of(cls, lines: Reported) -> Credentials:
        """By those lines of a status that report them."""
        reported = dict(lines)

        def numbers(name: bytes, base: int = 10) -> tuple[int, ...]:
            return tuple(int(word, base) for word in reported.get(name, b"").split())

        capabilities = tuple(number for name in (b"CapInh", b"CapPrm", b"CapEff", b"CapBnd", b"CapAmb") for number in numbers(name, 16))
        return cls(numbers(b"Uid"), numbers(b"Gid"), numbers(b"Groups"), capabilities)

    @property
    def has_capabilities(self) -> bool:
        """Any that matters, the bounding set aside."""
        inheritable, permitted, effective, _, ambient = self.capabilities
        return bool((inheritable | permitted | effective | ambient) & ~_WAKE_ALARM)


def credentials(pid: int, statuses: Statuses | None = None) -> list[Credentials]:
    """Return those of all threads, each once, the first thread's first. statuses: with the lines LINES of all threads, if they have been
    read.
    Errors: ProcessLookupError."""
    reported = statuses if statuses is not None else tasks.texts(pid, "status", LINES)
    found = dict.fromkeys(tuple(_LINES.findall(text)) for text in dict.fromkeys(reported.values()))
    if not found:
        raise ProcessLookupError(f"no process {pid}")
    return list(dict.fromkeys(Credentials.of(lines) for lines in found))


def has_fixed_ids(pid: int) -> bool:
    """Return whether no call gives a process other ids than it has, as it is. Errors: ProcessLookupError."""
    return all(
        len({*one.uids}) == len({*one.gids}) == 1
        and one.uids[0] != 0
        and not any(one.capabilities[at] & _CHANGES_IDS for at in (0, 1, 2, 4))
        for one in credentials(pid)
    )


def may_leave(pid: int, owners: Iterable[Owner], statuses: Statuses | None = None) -> str | None:
    """Return why a process must not leave its home for these, or come to be read by them; None: it may. That root's own do has no bounds.
    statuses: see credentials().

    Errors: ProcessLookupError.
    """
    bounded = [owner for owner in dict.fromkeys(owners) if owner.uid]
    if not bounded:
        return None
    threads = credentials(pid, statuses)
    try:
        secure, reader = is_secure(pid), os.stat(f"/proc/{pid}/mem").st_uid
    except FileNotFoundError:
        raise ProcessLookupError(f"no process {pid}") from None
    return next((reason for owner in bounded for one in threads if (reason := _beyond(one, owner, secure, reader)) is not None), None)


def _beyond(one: Credentials, owner: Owner, secure: bool, reader: int) -> str | None:
    """What a thread has beyond the rights of its owner. securebits and no_new_privs give no rights."""
    for uid in one.uids:
        if uid != owner.uid:
            return f"it has rights of {_user(uid)}, which {owner.name} has not"
    for gid in one.gids:
        if gid != owner.gid and gid not in owner.groups:
            return f"it has rights of group {_group(gid)}, which {owner.name} has not"
    if one.has_capabilities:
        return CAPABILITIES
    if secure:
        return SETUID
    # To whom the kernel gives the file is who may read it: root's is what may not be dumped.
    return UNREADABLE if reader != owner.uid else None


def is_secure(pid: int) -> bool:
    """Return whether its program was given more rights, as it began, than its executing process had (setuid, setgid, capabilities of the
    file).
    Errors: OSError."""
    return bool(dict(struct.iter_unpack("<QQ", Path(f"/proc/{pid}/auxv").read_bytes())).get(_AT_SECURE))


def owner_of_user(uid: int) -> Owner:
    """Return a user of whom only the number is known, with the groups that the system's lists give them."""
    try:
        user = pwd.getpwuid(uid)
        return Owner(uid, user.pw_gid, tuple(os.getgrouplist(user.pw_name, user.pw_gid)))
    except (KeyError, OSError):
        return Owner(uid, uid)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


__all__ = ["ROOT", "Credentials", "Owner", "credentials", "has_fixed_ids", "is_secure", "may_leave", "owner_of_user"]
