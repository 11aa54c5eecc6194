"""Memory protection keys (pkeys(7)) that a process has allocated: the kernel reports them by what it still gives."""

from __future__ import annotations

import ctypes
import functools
import struct

from kernel_helpers.common import library
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS

_KEYS = 15
"""That a process may allocate; it has key 0."""
_PKRU_BIT = 9
"""Of XCR0; where XSAVE has it, processor_component() reports it."""
_AT_FIRST = 0x55555554
"""PKRU of a thread that nobody has given a key: all but key 0 deny access."""
_PKEY_DISABLE_ACCESS = 1
_MOST_LOOKS = 16
_RESULTS = 64 * _KEYS
"""Bytes of memory that are_allocated() needs in the process."""


@functools.cache
def _place() -> int:
    """Bytes before PKRU in what XSAVE writes; 0: the processor, or its kernel, has no keys."""
    offset, size = ctypes.c_uint32(), ctypes.c_uint32()
    library.load().processor_component(_PKRU_BIT, ctypes.byref(offset), ctypes.byref(size))
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        flags = next((line.split() for line in file if line.startswith("flags")), [])
    return offset.value if size.value and "ospke" in flags else 0


def are_allocated(frozen: Frozen) -> bool:
    """Return whether a process, which stands still, has keys besides that of memory which is only executed (that one a kernel gives by
    itself). Errors: OSError."""
    if not _place() or (len(frozen.threads) <= _MOST_LOOKS and not any(_has_changed(t.extended_state()) for t in frozen.threads.values())):
        return False
    with frozen.scratch(_RESULTS) as room:
        given = [key for key in frozen.leader.calls([(SYS.pkey_alloc, 0, _PKEY_DISABLE_ACCESS)] * _KEYS, room) if key > 0]
        if given:
            frozen.leader.calls([(SYS.pkey_free, key) for key in given], room)
    return len(given) < _KEYS - _has_only_executed(frozen.pid)


def _has_only_executed(pid: int) -> bool:
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as lines:
        return any(line.split(None, 2)[1].startswith("--x") and not line.rstrip().endswith("[vsyscall]") for line in lines)


def _has_changed(state: bytes) -> bool:
    """Whether a thread's extended state has another PKRU than at first."""
    used = int.from_bytes(state[512:520], "little")  # XSTATE_BV
    if not used >> _PKRU_BIT & 1:
        return True  # all zeros: every key may be used
    pkru: int = struct.unpack_from("<I", state, _place())[0]
    return pkru != _AT_FIRST
