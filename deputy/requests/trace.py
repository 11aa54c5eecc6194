"""Where the lines of mosrun --trace are written: the standard error of the process, or a file of its user's."""

from __future__ import annotations

import logging
import os
import select
import stat
import time
from contextlib import suppress

from engine.files.handover import take_descriptor

log = logging.getLogger("deputy")

STDERR = "-"
PATIENCE = 1.0
"""Seconds that a reader may keep us; lines that it does not want then are lost, and their number is written."""
_PIECE = 256
"""Bytes that are written at once: never more than what poll(2) has promised of a pipe or a terminal."""
_PLAIN = bytes(byte if 32 <= byte < 127 or byte == 10 else 63 for byte in range(256))
"""What another node says is no more than text on a terminal."""


class TraceFile:
    """Of the process `pid`; `path` STDERR or a file that mosrun has made as the user. Opened when the first line comes."""

    def __init__(self, pid: int, path: str) -> None:
        self._pid = pid
        self._path = path
        self._descriptor = -1
        self._failed = False
        self._lost = 0

    def open(self) -> None:
        """Now, from a process that may have ended when there is something to write. What goes wrong is logged, and nothing is written."""
        try:
            self._descriptor = self._open()
        except OSError as error:
            log.warning("nothing can be written to process %d: %s", self._pid, error)
            self._failed = True

    def write(self, lines: bytes) -> None:
        """Whatever goes wrong is logged once and loses lines, no more."""
        if self._failed or not self._path:
            return
        try:
            if self._descriptor < 0:
                self._descriptor = self._open()
            if self._lost and self._is_ready(0):
                lost, self._lost = self._lost, 0
                lines = b"... %d lines are lost ...\n" % lost + lines
            self._write(lines.translate(_PLAIN))
        except OSError as error:
            log.warning("no more lines of the trace: %s", error)
            self._failed = True

    def _write(self, lines: bytes) -> None:
        end = time.monotonic() + (0 if self._lost else PATIENCE)
        view = memoryview(lines)
        while view:
            if not self._is_ready(max(0.0, end - time.monotonic())):
                self._lost += bytes(view).count(b"\n")
                return
            view = view[os.write(self._descriptor, view[:_PIECE]) :]

    def _is_ready(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(seconds * 1000))

    def _open(self) -> int:
        """Errors: OSError."""
        if self._path == STDERR:
            return take_descriptor(self._pid, 2)  # with its place in the file, which the program goes on from
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != _user(self._pid):
            os.close(descriptor)
            raise PermissionError(f"{self._path} is no file of the user's own")
        return descriptor

    def close(self) -> None:
        """Nothing more comes."""
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1
        self._failed = True


def _user(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Uid:"))


__all__ = ["STDERR", "TraceFile"]
