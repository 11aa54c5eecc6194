"""One file as a mount of its own that is nowhere yet, to be given to a sandbox."""

from __future__ import annotations

import ctypes
import os
import struct

from kernel_helpers.process.syscalls import SYS

_OPEN_TREE_CLONE = 1
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_READ_ONLY, _NO_SETUID, _NO_DEVICES = 1, 2, 4
_MS_PRIVATE = 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def detached(path: str | os.PathLike[str]) -> int:
    """Return a descriptor of the mount, read-only. Errors: OSError."""
    tree = _call(SYS.open_tree, _AT_FDCWD, os.fsencode(path), _OPEN_TREE_CLONE | os.O_CLOEXEC)
    try:
        # struct mount_attr
        attributes = struct.pack("<4Q", _READ_ONLY | _NO_SETUID | _NO_DEVICES, 0, _MS_PRIVATE, 0)
        _call(SYS.mount_setattr, tree, b"", _AT_EMPTY_PATH, attributes, len(attributes))
    except BaseException:
        os.close(tree)
        raise
    return tree


def _call(number: int, *arguments: int | bytes) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
