"""A process that stands still gives its pages away itself, by reference: nobody copies them on their way into a socket.

    the process ── vmsplice(2), by injection ──> a pipe ── splice(2), by us ──> the socket

What is on its way are the process's pages themselves. It must not run on before they have been received, but if nobody wants them then.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from engine.files.handover import take_descriptor
from engine.mappings.mappings import PAGE
from kernel_helpers.pages.pages import Splicer
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS

LEAST = 8 << 20
"""Bytes that a process has in memory: the pipe costs as much as reading a few hundred pages."""
_PIPE_BYTES = 1 << 20
_PROT_READ_WRITE = 3
_MAP_PRIVATE_ANONYMOUS = 0x22

log = logging.getLogger("engine.splicing")


@contextmanager
def splicer(frozen: Frozen) -> Iterator[Splicer | None]:
    """By which send_own_pages() has the frozen process give its pages itself; None: it has few, or no room for that. Errors: OSError, as
    injected calls have them when the process ends."""
    if _resident(frozen.pid) < LEAST:
        yield None
        return
    try:
        room = frozen.call(SYS.mmap, 0, PAGE, _PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS, -1, 0)
    except OSError as error:
        log.info("pages of process %d are read: %s", frozen.pid, error)
        yield None
        return
    try:
        with _pipe(frozen, room) as ends:
            yield Splicer(frozen.leader, *ends, room) if ends is not None else None
    finally:
        with suppress(ProcessLookupError):
            frozen.call(SYS.munmap, room, PAGE)


@contextmanager
def _pipe(frozen: Frozen, room: int) -> Iterator[tuple[int, int] | None]:
    """A pipe of the process: our descriptor of the end to read from, and its number of the other; None: it, or we, may not have one."""
    try:
        frozen.call(SYS.pipe2, room, os.O_CLOEXEC)
    except OSError as error:
        log.info("pages of process %d are read: %s", frozen.pid, error)
        yield None
        return
    first, second = struct.unpack("<ii", frozen.read(room, 8))
    taken = -1
    try:
        try:
            taken = take_descriptor(frozen.pid, first)
            fcntl.fcntl(taken, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        except OSError as error:
            log.info("pages of process %d are read: %s", frozen.pid, error)
            yield None
        else:
            yield taken, second
    finally:
        if taken >= 0:
            os.close(taken)
        with suppress(ProcessLookupError):
            frozen.call(SYS.close, first)
            frozen.call(SYS.close, second)


def _resident(pid: int) -> int:
    """Bytes. Errors: OSError."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE
