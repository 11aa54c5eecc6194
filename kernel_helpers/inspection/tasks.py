"""Python face of tasks.c: a file of /proc of all threads of a process, read at once."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
from collections.abc import Iterable, Sequence

from kernel_helpers.common import library

_HEAD = struct.Struct("<iI")
_ROOM = 1 << 16
_EACH = 1 << 9
_MOST = 1 << 29
_GET_PID_IN_PIDNS = 0x8004B708
_GET_PID_FROM_PIDNS = 0x8004B706
"""NS_GET_PID_IN_PIDNS and NS_GET_PID_FROM_PIDNS, Linux 6.11."""


@functools.cache
def _native() -> ctypes.CDLL:
    text = ctypes.c_char_p
    i, u64, pointer, size = ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t
    return library.functions(
        ("farhome_tasks_read", ctypes.c_int64, [i, text, text, pointer, size]),
        ("farhome_tasks_translate", i, [i, u64, pointer, pointer, size]),
    )


def texts(pid: int, name: str, lines: Iterable[str] = ()) -> dict[int, bytes]:
    """tid -> what the file of that name says, or those lines of it that begin so. Threads that have ended are not there. Errors: OSError
    (ProcessLookupError: there is no such process)."""
    wanted, room = "\n".join(lines).encode(), _room_for(pid)
    while True:
        found = ctypes.create_string_buffer(room)
        size = int(_native().farhome_tasks_read(pid, name.encode(), wanted, found, room))
        if size != -errno.E2BIG or room >= _MOST:
            break
        room *= 4
    if size < 0:
        number = errno.ESRCH if size == -errno.ENOENT else -size
        raise OSError(number, f"threads of process {pid}: {os.strerror(number)}")
    data, at, reported = memoryview(found)[:size], 0, {}
    while at < size:
        tid, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        reported[tid] = bytes(data[at : at + length])
        at += length
    return reported


def _room_for(pid: int) -> int:
    """Bytes, by how many threads it has: to begin anew is to read all of their files anew."""
    try:
        return max(_ROOM, _EACH * os.stat(f"/proc/{pid}/task").st_nlink)
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, f"threads of process {pid}: {os.strerror(errno.ESRCH)}") from None


def _translated(namespace: str, request: int, tids: Sequence[int]) -> list[int]:
    """Errors: OSError, also where one of them has ended, or the kernel does not report it."""
    found = (ctypes.c_int32 * len(tids))()
    with open(namespace, "rb", buffering=0) as opened:
        result = _native().farhome_tasks_translate(opened.fileno(), request, (ctypes.c_int32 * len(tids))(*tids), found, len(tids))
    if result < 0:
        raise OSError(-result, f"{namespace}: {os.strerror(-result)}")
    return list(found)


def inner_tids(pid: int, tids: Sequence[int]) -> dict[int, int]:
    """tid -> what the program itself knows that thread by; those that have ended are not there. Errors: OSError."""
    theirs = f"/proc/{pid}/ns/pid"
    try:
        if os.readlink(theirs) == os.readlink("/proc/self/ns/pid"):
            return {tid: tid for tid in tids}
        return dict(zip(tids, _translated(theirs, _GET_PID_IN_PIDNS, tids), strict=True))
    except OSError:
        pass  # this kernel does not report it, or one has ended
    wanted = set(tids)
    return {tid: int(text.split()[-1]) for tid, text in texts(pid, "status", ["NSpid:"]).items() if tid in wanted and text}


def outer_tids(pid: int, inner: Sequence[int]) -> list[int]:
    """Return the numbers that we know threads by, of which these are the program's own. Errors: OSError (ProcessLookupError: one has
    ended)."""
    theirs = f"/proc/{pid}/ns/pid"
    if os.readlink(theirs) == os.readlink("/proc/self/ns/pid"):
        return list(inner)
    try:
        return _translated(theirs, _GET_PID_FROM_PIDNS, inner)
    except OSError:
        pass
    tids = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    known = {theirs: ours for ours, theirs in inner_tids(pid, tids).items()}
    missing = [tid for tid in inner if tid not in known]
    if missing:
        raise ProcessLookupError(errno.ESRCH, f"thread {missing[0]} of {pid} is not to be found")
    return [known[tid] for tid in inner]
