"""The alternate stack of a thread (sigaltstack(2)), with what the kernel does not report about one that is not there.

Who has none has never had one, or has disabled it: the kernel says SS_DISABLE either way. But it keeps the flags that were asked for last,
and accepts a wish for what is so already: a program that has never had one may ask for no bytes at no address, for which it gets
ENOMEM otherwise (kernel/signal.c, do_sigaltstack). So these flags can be found, without changing anything. There is no way back to them
but execve(2), which takes the stack and leaves the flags (fs/exec.c): who is to have them is born of such a one, and left alone. Only first
threads have them, for all others begin with a stack that is disabled (kernel/fork.c, sas_ss_reset).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS

STACK = struct.Struct("<QIIQ")
"""stack_t: address, flags, padding, bytes."""
ONSTACK, DISABLE, _AUTODISARM = 1, 2, 1 << 31
DISABLED, NEVER = STACK.pack(0, DISABLE, 0, 0), STACK.pack(0, 0, 0, 0)
_BYTES = 1 << 16
"""of a stack that any processor takes"""
_libc = ctypes.CDLL(None, use_errno=True)


def of_first(frozen: Frozen, reported: bytes, never: int) -> bytes:
    """Return the stack of the first thread, which the kernel has reported; never: what it has said to a wish for NEVER. Errors: OSError."""
    _, flags, _, size = STACK.unpack(reported)
    if size:
        return reported
    if not never:
        return NEVER
    disarms = flags & _AUTODISARM
    with frozen.scratch(STACK.size) as address:
        for mode in (ONSTACK | disarms, disarms):
            wish = STACK.pack(0, mode, 0, 0)
            frozen.write(address, wish)
            if not frozen.leader.call(SYS.sigaltstack, address, 0):
                return wish
    return reported


def was_never(stack: bytes, result: int) -> bool:
    """Return whether a thread is to have a stack that it has never disabled, and the kernel will not have it so (result): it has disabled
    one."""
    _, flags, _, size = STACK.unpack(stack)
    return not size and not flags & DISABLE and result == -errno.ENOMEM


@contextmanager
def unused() -> Iterator[None]:
    """What this thread executes meanwhile has never had one, nor have those that are forked of it. Errors: OSError."""
    room, before = ctypes.create_string_buffer(_BYTES), ctypes.create_string_buffer(STACK.size)
    if _libc.sigaltstack(STACK.pack(ctypes.addressof(room), 0, 0, _BYTES), before):
        raise OSError(ctypes.get_errno(), f"sigaltstack: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        _libc.sigaltstack(before, None)
