"""Files of the node itself, for guests whose homes know them through /mfs: read by the node's own kernel."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from pathlib import Path

from kernel_helpers.common.acting import acting_as_user

_SYS_OPENAT2 = 437
_HOW = struct.Struct("=QQQ")
"""struct open_how: flags, mode, resolve"""
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 2, 4, 8
_libc = ctypes.CDLL(None, use_errno=True)


def open_own(shown: Path | None, path: bytes, inode: int, uid: int, root_counts: bool) -> int:
    """Return a descriptor, for reading, of a file below what the node shows to others (`shown`), if it is the one that they know by that
    inode, and if that user may read it here. path: from there. Errors: OSError."""
    if shown is None:
        raise FileNotFoundError("no files of this node are shown")
    with acting_as_user(uid, root_counts):
        return _open(shown, path, inode)


def _open(shown: Path, path: bytes, inode: int) -> int:
    root = os.open(shown, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        how = _HOW.pack(os.O_PATH | os.O_CLOEXEC, 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS)
        place: int = _libc.syscall(_SYS_OPENAT2, root, path, how, len(how))
    finally:
        os.close(root)
    if place < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    try:
        found = os.fstat(place)
        if not stat.S_ISREG(found.st_mode) or inode not in (found.st_ino, _mixed(found.st_dev, found.st_ino)):
            raise FileNotFoundError(f"{os.fsdecode(path)} is another file")
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(place)


def _mixed(device: int, inode: int) -> int:
    """As others know it of another file system than the first (kernel_helpers/mfs/server/files/exports.c)."""
    return inode ^ (((device * 0x9E3779B97F4A7C15 & (1 << 64) - 1) >> 44 | 1) << 44)
