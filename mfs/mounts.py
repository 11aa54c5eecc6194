"""Mounts of this node: which there are, and making and removing them."""

from __future__ import annotations

import ctypes
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_SLAVE = 1, 2, 4, 4096, 16384, 1 << 19
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
_SYS_MOUNT_SETATTR = 442
_AT_RECURSIVE = 0x8000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_CONNECTIONS = Path("/sys/fs/fuse/connections")

_libc = ctypes.CDLL(None, use_errno=True)


MFS = "fuse.mfs"
"""The kind of a mount of another node's files."""


@dataclass(frozen=True)
class Mount:
    """One line of /proc/self/mountinfo. number: the mount's; device: the minor number of its file system."""

    number: int
    point: str
    kind: str
    source: str
    device: int


def _plain(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def mounts(below: str = "/", pid: int | None = None) -> list[Mount]:
    """Return all mounts at or below that directory, in the order in which they were made; as another process has them, who may have some
    that are its own (mosrun -X). Errors: OSError."""
    found = []
    for line in Path(f"/proc/{pid or 'self'}/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        fields, _, rest = line.partition(" - ")
        number, _, device, _, point = fields.split()[:5]
        kind, source = rest.split()[:2]
        mount = Mount(int(number), _plain(point), kind, _plain(source), int(device.partition(":")[2]))
        if below in ("/", mount.point) or mount.point.startswith(f"{below}/"):
            found.append(mount)
    return found


def _checked(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def mount(source: str, point: Path, kind: str, flags: int, options: str) -> None:
    """mount(2). Errors: OSError."""
    _checked(_libc.mount(source.encode(), bytes(point), kind.encode(), ctypes.c_ulong(flags), options.encode()), str(point))


def bind(source: str, point: Path, *, read_only: bool, setuid: bool) -> None:
    """Shows a directory, and all that is mounted below it, in another place too: without devices. Errors: OSError."""
    _checked(_libc.mount(os.fsencode(source), bytes(point), None, ctypes.c_ulong(MS_BIND | MS_REC), None), str(point))
    _checked(_libc.mount(None, bytes(point), None, ctypes.c_ulong(MS_SLAVE | MS_REC), None), str(point))
    attributes = _ATTR_NODEV | (0 if setuid else _ATTR_NOSUID) | (_ATTR_RDONLY if read_only else 0)
    given = struct.pack("4Q", attributes, 0, 0, 0)
    _checked(_libc.syscall(_SYS_MOUNT_SETATTR, -100, bytes(point), _AT_RECURSIVE, given, len(given)), str(point))


def detach(point: str | Path) -> bool:
    """Unmounts what is on top there, at once, even if it is in use; False: nothing is mounted there. No other error."""
    return bool(_libc.umount2(os.fsencode(point), MNT_DETACH | UMOUNT_NOFOLLOW) == 0)


def abort(device: int) -> None:
    """Ends a FUSE connection: processes that wait for it get an error. As far as the kernel lets us say so; no error."""
    try:
        if not any(_CONNECTIONS.iterdir()):
            mount("fusectl", _CONNECTIONS, "fusectl", 0, "")
        (_CONNECTIONS / str(device) / "abort").write_text("1")
    except OSError:
        pass
