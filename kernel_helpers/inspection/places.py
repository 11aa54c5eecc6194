"""Those mappings of a process that have a file, or an instruction, asked of the kernel one by one: of tens of thousands the others cost
nothing. PROCMAP_QUERY (Linux 6.11); before, /proc/PID/maps has to be read."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

_QUERY = 0xC0686611
_REQUEST = struct.Struct("<9Q4I2Q")
_WRITABLE, _EXECUTABLE, _SHARED, _OR_NEXT, _OF_FILE = 2, 4, 8, 0x10, 0x20
_NAME_ROOM = 4096
_UNKNOWN = (errno.ENOTTY, errno.EINVAL, errno.ENAMETOOLONG)
"""this kernel does not report it, or not of a name so long"""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Place:
    """A mapping [start, end): permissions as /proc/PID/maps has them, offset in its file, device (major:minor) and inode of that, and what
    it is called."""

    start: int
    end: int
    permissions: str
    offset: int
    device: str
    inode: int
    path: str


def of_files(pid: int) -> list[Place] | None:
    """Those that have a file, which all that are shared have, by address. None: this kernel does not report it. Errors: OSError
    (FileNotFoundError: it has ended)."""
    return _asked(pid, lambda maps: list(_each(maps, _OF_FILE | _OR_NEXT)))


def of_instructions(pid: int) -> list[Place] | None:
    """Those whose memory may be executed, by address. None, and errors: as of_files()."""
    return _asked(pid, lambda maps: list(_each(maps, _EXECUTABLE | _OR_NEXT)))


def of_addresses(pid: int, addresses: Iterable[int]) -> list[Place | None] | None:
    """Those that have these addresses; None among them: there is nothing. None, and errors: as of_files()."""
    return _asked(pid, lambda maps: [next(_each(maps, 0, at), None) for at in addresses])


def is_free(pid: int, start: int, end: int) -> bool | None:
    """Return whether nothing lies there. None, and errors: as of_files()."""
    found = _asked(pid, lambda maps: [next(_each(maps, _OR_NEXT, start), None)])
    return None if found is None else found[0] is None or found[0].start >= end


def _asked(pid: int, ask: Callable[[int], list[_T]]) -> list[_T] | None:
    with open(f"/proc/{pid}/maps", "rb", buffering=0) as maps:
        try:
            return ask(maps.fileno())
        except OSError as error:
            if error.errno in _UNKNOWN:
                return None
            raise


def _each(maps: int, kind: int, at: int = 0) -> Iterator[Place]:
    """Of that kind, from address `at` on."""
    name = ctypes.create_string_buffer(_NAME_ROOM)
    place = ctypes.addressof(name)
    while True:
        request = bytearray(_REQUEST.pack(_REQUEST.size, kind, at, 0, 0, 0, 0, 0, 0, 0, 0, _NAME_ROOM, 0, place, 0))
        try:
            fcntl.ioctl(maps, _QUERY, request)
        except (FileNotFoundError, ProcessLookupError):
            return  # none follows, or it has no memory any more
        _, _, _, start, end, flags, _, offset, inode, major, minor, length, _, _, _ = _REQUEST.unpack(request)
        permissions = f"{'r' if flags & 1 else '-'}{'w' if flags & _WRITABLE else '-'}{'x' if flags & _EXECUTABLE else '-'}"
        yield Place(
            start, end, permissions + ("s" if flags & _SHARED else "p"), offset, f"{major:02x}:{minor:02x}", inode,
            os.fsdecode(name.raw[: max(0, length - 1)]),
        )  # fmt: skip
        at = end
