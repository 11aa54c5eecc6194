"""Files of this node that a home names by a path: those are opened that everybody on the node may read anyway, and nothing else is.

Opening a file can do something (a device, a fifo, a file system that is a program), and to find out whether a file has a content that is
guessed reports that content. So a path is looked at first, then followed with nobody's rights, without following links, to a descriptor
that opens nothing (O_PATH); what that has proved to be, a regular file on a file system that keeps files, is opened by the descriptor.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct

from kernel_helpers.common.acting import NOBODY, acting_as
from kernel_helpers.process.syscalls import SYS

KINDS = {
    0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs", 0xF2F52010: "f2fs", 0x01021994: "tmpfs", 0x794C7630: "overlay",
    0x73717368: "squashfs", 0xE0F5E1E2: "erofs", 0x2FC12FC1: "zfs", 0xCA451A4E: "bcachefs", 0x3153464A: "jfs", 0x3434: "nilfs2",
}  # fmt: skip
"""File systems that keep files, and ask nobody else for them: by what statfs(2) and by what /proc/self/mountinfo calls them."""
_NAMES = frozenset({*KINDS.values(), "ext2", "ext3", "devtmpfs", "ramfs", "rootfs"})
_HOW = struct.Struct("=QQQ")
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS = 1, 2, 4
_EXDEV = 18
_libc = ctypes.CDLL(None, use_errno=True)


def find_public(path: str) -> int:
    """Return a descriptor that leads to the file (O_PATH). Errors: OSError for whatever is none that everybody may read."""
    with acting_as(NOBODY, NOBODY):
        try:
            file = _follow(path, _NO_XDEV)
        except OSError as error:
            if error.errno != _EXDEV:
                raise
            _look_at_mounts(path)
            file = _follow(path, 0)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or not status.st_mode & stat.S_IROTH or _kind(file) not in KINDS:
            raise PermissionError(f"{path} is no file for everybody")
        return file
    except BaseException:
        os.close(file)
        raise


def open_public(file: int) -> int:
    """Return what find_public has found, open for reading. Errors: OSError."""
    with acting_as(NOBODY, NOBODY):
        return os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def _follow(path: str, resolve: int) -> int:
    how = _HOW.pack(os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, 0, resolve | _NO_SYMLINKS | _NO_MAGICLINKS)
    found: int = _libc.syscall(SYS.openat2, -100, os.fsencode(path), how, len(how))
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return found


def _look_at_mounts(path: str) -> None:
    """Errors: PermissionError if the way leads through a file system that is not of KINDS: to follow it may do something already."""
    name = os.fsencode(path)
    with open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            front, _, back = line.partition(b" - ")
            point = front.split(b" ", 5)[4]
            if b"\\" in point:
                point = point.decode("unicode_escape", "surrogateescape").encode("latin-1")
            if (point in (b"/", name) or name.startswith(point + b"/")) and back.split(b" ", 1)[0].decode() not in _NAMES:
                raise PermissionError(f"{path} is on a file system of another kind")


def _kind(file: int) -> int:
    about = (ctypes.c_ulong * 32)()
    if _libc.fstatfs(file, about):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(about[0])
