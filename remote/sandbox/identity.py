"""Who guests are on this node: nobody. A tree of guests has a user namespace; inside, ids are those of home, outside they are of a block
that no account has.

    inside     0 ......... 65535, and each greater id that the tree has
    outside    FIRST ..... FIRST + 65535, and those behind them

A file has a byte for each id. The block is held by a lock on its bytes, which anyone who is in it holds: the kernel gives it back when they
have ended.
"""

from __future__ import annotations

import fcntl
import os
import random
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernel_helpers.common.errors import FarhomeError

DEFAULT = (0x7800_0000, 0x7FFD_FFFF)
"""Below 2**31, and beyond what systemd gives to containers (to 0x6FFFFFFF) and SSSD to domains (to 2000200000)."""
TAKEN = Path("/run/farhome/ids")
LOW = 1 << 16
"""Ids below are all there inside."""
MOST_GREATER = 128
"""Ids from LOW on that a tree may have: the kernel takes a page of map."""
BLOCK = LOW + 512
GREATEST = 2**32 - 2

_ACCOUNTS = (("/etc/passwd", 2, None), ("/etc/group", 2, None), ("/etc/subuid", 1, 2), ("/etc/subgid", 1, 2))
"""Files of accounts, and which fields of a line are the first id and how many (None: one)."""


@dataclass
class Identities:
    """The ids of one tree. `first`: root inside, as it is outside."""

    first: int
    greater: tuple[int, ...] = ()
    lock: int = field(default=-1, repr=False)
    """what holds the block"""

    def lines(self) -> str:
        """As /proc/PID/uid_map takes them."""
        found = [f"0 {self.first} {LOW}"]
        found += [f"{inside} {self.first + LOW + at} 1" for at, inside in enumerate(self.greater)]
        return "\n".join(found) + "\n"

    def inside(self, outside: int) -> int:
        """Return what an id of this node's is inside; -1: none."""
        at = outside - self.first
        if 0 <= at < LOW:
            return at
        return self.greater[at - LOW] if 0 <= at - LOW < len(self.greater) else -1

    def covers(self, ids: Iterable[int]) -> bool:
        """Return whether all of them are there inside."""
        return all(0 <= number < LOW or number in self.greater for number in ids)

    def release(self) -> None:
        """Others may have the block as soon as nobody else holds it. Safe to call twice."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


def checked(ids: object) -> list[int]:
    """Ids that a home names. Errors: FarhomeError."""
    if not isinstance(ids, list) or len(ids) > 1 << 17 or not all(type(number) is int and 0 <= number <= GREATEST for number in ids):
        raise FarhomeError("its users and groups are no such thing")
    return ids


def greater_ids(ids: object) -> tuple[int, ...]:
    """Of ids that a home names, those that need a place of their own. Errors: FarhomeError."""
    found = sorted({number for number in checked(ids) if number >= LOW})
    if len(found) > MOST_GREATER:
        raise FarhomeError(f"it has {len(found)} users and groups from {LOW} on, and a node has room for {MOST_GREATER} of a tree")
    return tuple(found)


def bounds(text: str) -> tuple[int, int] | None:
    """From the command line: FIRST-LAST, or `none`. Errors: ValueError."""
    if text == "none":
        return None
    first, last = map(int, text.split("-"))
    return first, last


def take(within: tuple[int, int], greater: tuple[int, ...] = (), file: Path | None = None) -> Identities:
    """Return a block of the ids from within[0] to within[1] that no account and no other tree has. Errors: FarhomeError."""
    taken = list(_of_accounts())
    count = (within[1] + 1 - within[0]) // BLOCK
    begin = random.randrange(count) if count > 0 else 0
    try:
        (file or TAKEN).parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as undo:
            lock = os.open(file or TAKEN, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            undo.callback(os.close, lock)
            for number in range(count):
                first = within[0] + (begin + number) % count * BLOCK
                if not any(low < first + BLOCK and first < high for low, high in taken) and _is_locked(lock, first):
                    undo.pop_all()
                    return Identities(first, greater, lock)
    except OSError as error:
        raise FarhomeError(f"no user ids for guests can be set aside: {error}") from error
    raise FarhomeError(f"all user ids for guests ({within[0]} to {within[1]}) are in use, or belong to accounts")


def _is_locked(file: int, first: int) -> bool:
    """Whether the block that begins there is ours now. Errors: OSError."""
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, first, BLOCK, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def _of_accounts() -> Iterator[tuple[int, int]]:
    """Spans of ids that accounts of this node have."""
    for path, first, many in _ACCOUNTS:
        with suppress(OSError), open(path, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                fields = line.split(":")
                with suppress(ValueError, IndexError):
                    begin = int(fields[first])
                    yield begin, begin + (int(fields[many]) if many is not None else 1)


__all__ = ["BLOCK", "DEFAULT", "LOW", "Identities", "bounds", "checked", "greater_ids", "take"]
