"""The system calls of a guest whose user wants to see them (mosrun --trace): a line for each, in the manner of strace.

The guest is our tracee anyway; it is let go with PTRACE_SYSCALL, so that it stops where a call begins and where it ends, be it made
here or at home. Names, arguments and results are formatted by python-ptrace. The lines go to the deputy, which has the place for them.
"""

from __future__ import annotations

import ctypes
import logging
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ptrace import PtraceError
from ptrace.debugger.process import PtraceProcess
from ptrace.func_call import FunctionCallOptions
from ptrace.syscall import PtraceSyscall

from kernel_helpers.calls.numbers import NAMES
from kernel_helpers.calls.table import Class, row_of
from kernel_helpers.process import tracing
from kernel_helpers.process.syscalls import RESTART_CODES

log = logging.getLogger("remote")

STRING_MOST, ARRAY_MOST = 300, 8
"""Bytes of a string, and entries of a list, that are shown."""
BATCH = 32 << 10
"""Bytes of lines that are sent at once."""
_ENTRY, _EXIT = 1, 2
_INFO_SIZE = 88
_OPTIONS = FunctionCallOptions(string_max_length=STRING_MOST, max_array_count=ARRAY_MOST, replace_socketcall=False)
_HERE = frozenset({Class.LOCAL, Class.REFUSE, Class.KEYS})
_BOTH = frozenset({Class.BOTH, Class.GO_HOME})
"""Those of GO_HOME that come to an end here were made here and at home: births, mappings of files."""
_NO_END = frozenset({Class.END, Class.EXECUTE})

Send = Callable[[bytes, bool], None]
"""lines, and whether home is to write them before it does anything else"""


@dataclass
class _Call:
    """A call under way in one thread. began: ns; text: what was to be said about it then."""

    call: Any
    class_: Class
    began: int
    text: str


class _Reader(PtraceProcess):  # type: ignore[misc]
    """How python-ptrace reads a thread. Its own lets go of it at the end; this one lets go of what it has open."""

    def __del__(self) -> None:
        if self.read_mem_file:
            self.read_mem_file.close()


class Trace:
    """One guest's. node: this node's name; program: its own id of a thread, by ours."""

    def __init__(self, node: str, program: Callable[[int], int], send: Send) -> None:
        self._node = node
        self._program = program
        self._send = send
        self._calls: dict[int, _Call] = {}
        self._lines: list[bytes] = []
        self._size = 0

    def follow(self, tid: int) -> None:
        """A thread of the guest's runs, or is about to: from its next stop on its calls are seen, and that comes at once."""
        tracing.follow(tid)
        tracing.interrupt(tid)

    def forget(self, tid: int) -> None:
        """It has ended."""
        tracing.unfollow(tid)
        self._calls.pop(tid, None)

    def note_stop(self, tid: int) -> bool:
        """A thread stands at the begin or the end of a call. Whether it has come to its end with a restart code: then it has to pass
        through a stop that PTRACE_INTERRUPT brings, as this one took the place of another that may have been on its way."""
        try:
            return self._note_stop(tid, time.monotonic_ns())
        except (OSError, PtraceError, ValueError, KeyError, ctypes.ArgumentError) as error:
            log.debug("a call is not shown: %s", error)
            return True

    def _note_stop(self, tid: int, now: int) -> bool:
        info = tracing.call_info(tid)
        if info[0] == _ENTRY:
            number, *arguments = struct.unpack_from("<7Q", info, 24)
            registers = tracing.registers(tid)
            call = PtraceSyscall(_Reader(None, tid, True), _OPTIONS, registers)
            call.name = NAMES.get(number, f"call_{number}")
            call.enter(registers)
            known = self._calls[tid] = _Call(call, row_of(number).select(tuple(arguments)).class_, now, call.format())
            if known.class_ in _NO_END:
                self._report(tid, known.text, "?", "")
                self.flush(at_once=True)
            return False
        ended = self._calls.pop(tid, None)
        (value,) = struct.unpack_from("<q", info, 24)
        if info[0] != _EXIT or ended is None:
            return value in RESTART_CODES
        if value in RESTART_CODES:
            if ended.class_ is Class.GO_HOME:
                self._calls[tid] = ended  # it is being made; ended() comes, or it is begun anew
            else:
                self._report(tid, ended.text, "? (interrupted)", self._where(ended, now))
            return True
        result = str(ended.call.exit())
        self._report(tid, ended.call.format() if value >= 0 else ended.text, result, self._where(ended, now))
        return False

    def ended(self, tid: int, value: int) -> None:
        """A call that was not made in the ordinary way has come to its end."""
        known = self._calls.pop(tid, None)
        if known is not None:
            self._report(tid, known.text, str(value), self._where(known, time.monotonic_ns()))

    def takes_home(self, tid: int) -> None:
        """The call that a thread waits in can only be made at home."""
        known = self._calls.pop(tid, None)
        if known is not None:
            self._report(tid, known.text, "?", f"<takes it home from {self._node}>")

    def _where(self, known: _Call, now: int) -> str:
        place = f"on {self._node}" if known.class_ in _HERE else f"on {self._node} and at home" if known.class_ in _BOTH else "at home"
        return f"<{(now - known.began) / 1e9:.6f} {place}>"

    def _report(self, tid: int, call: str, result: str, where: str) -> None:
        line = f"{self._program(tid)} {call} = {result} {where}".rstrip().encode("ascii", "backslashreplace") + b"\n"
        self._lines.append(line)
        self._size += len(line)
        if self._size > BATCH:
            self.flush()

    def flush(self, at_once: bool = False) -> None:
        """What was seen is on its way home. at_once: and written there before anything that follows."""
        if self._lines:
            lines, self._lines, self._size = b"".join(self._lines), [], 0
            self._send(lines, at_once)
