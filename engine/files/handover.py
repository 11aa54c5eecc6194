"""Descriptors from one process to another."""

from __future__ import annotations

import array
import ctypes
import errno
import os
import socket
import struct

from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS

_MSG_CMSG_CLOEXEC = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def take_descriptor(pid: int, number: int) -> int:
    """Return a descriptor of a process, whose open file we share from here on. Errors: OSError."""
    handle = os.pidfd_open(pid)
    try:
        taken: int = _libc.syscall(SYS.pidfd_getfd, handle, number, 0)
        if taken < 0:
            error = ctypes.get_errno()
            raise OSError(error, f"descriptor {number} of {pid}: {os.strerror(error)}")
        return taken
    finally:
        os.close(handle)


def give_descriptor(frozen: Frozen, descriptor: int, page: int) -> int:
    """Gives the frozen process a descriptor of ours, as a message over a socket pair that it makes; its number there.

    `page`: scratch memory in it. Errors: OSError (EMFILE: it has no number left).
    """
    frozen.call(SYS.socketpair, socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC, 0, page)
    first, second = struct.unpack("<ii", frozen.read(page, 8))
    try:
        with socket.socket(fileno=take_descriptor(frozen.pid, first)) as sender:
            sender.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])
        # struct msghdr at the page's begin, then the iovec, the byte and the control buffer.
        header = struct.pack("<QQQQQQQ", 0, 0, page + 64, 1, page + 128, 24, 0)
        frozen.write(page, header.ljust(64, b"\0") + struct.pack("<QQ", page + 96, 1).ljust(128, b"\0"))
        frozen.call(SYS.recvmsg, second, page, _MSG_CMSG_CLOEXEC)
        length, level, kind, given = struct.unpack("<QiiI", frozen.read(page + 128, 20))
        if (length, level, kind) != (20, socket.SOL_SOCKET, int(socket.SCM_RIGHTS)):
            raise OSError(errno.EMFILE, f"process {frozen.pid} cannot be given a descriptor")
        return int(given)
    finally:
        frozen.call(SYS.close, first)
        frozen.call(SYS.close, second)
