"""A guest that opens a file of /proc by which it looks at itself: what is there at home is the stub's, and not its own.

    remote                                             deputy
      |--- OWN_PROC (path, what this node shows) ------>|  makes of it and of what home shows a file as home would show it
      | <-- SNAPSHOT (where that file is) ---------------|  or: go home for it; or: it is none of those, open it as it is
      |--- CALL: the same open, of that file ----------->|  an ordinary call from here on

So the descriptor, its number, its flags and being made exactly once are what they are for any open. What it shows is as of the open.
"""

from __future__ import annotations

import logging
import os
import re
import struct
import zlib
from dataclasses import dataclass

from kernel_helpers.calls.numbers import NAMES
from kernel_helpers.link.ends.events import Event
from kernel_helpers.link.ends.own_proc import may_be_own
from kernel_helpers.link.ends.session import CONTROL_LIMIT
from kernel_helpers.process import tracing
from kernel_helpers.process.injection.native import read_memory
from kernel_helpers.process.syscalls import ERESTARTNOINTR, SYS
from remote.reference.intercept_ptrace import OPENS
from remote.tracee.tracee import Tracee
from wire.control import Control, pack, unpack
from wire.frames import WireError

log = logging.getLogger("remote")

REPORTED = frozenset({"maps", "smaps", "smaps_rollup", "numa_maps", "status", "stat", "statm", "cmdline", "environ", "auxv"})
"""Of these this node shows what is the guest's."""
_PATH = re.compile(rb"/proc/(self|thread-self|[1-9][0-9]*)/(?:task/([1-9][0-9]*)/)?([a-z_]+)")
_HARMLESS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK | 0o100000
"""Flags of an open for reading that mean the same for another file; the last is O_LARGEFILE."""
_PATH_MOST = 4096
_AT_FDCWD = -100
_HOW = struct.Struct("<QQQ")
"""struct open_how: flags, mode, resolve."""
_ROOM = CONTROL_LIMIT - 8192
"""Bytes of a frame for the text, compressed."""


@dataclass(frozen=True)
class _Asked:
    """An OWN_PROC that has not been answered: its number, and the open that waits for the answer."""

    number: int
    code: int
    arguments: tuple[int, ...]
    shown: str


class OwnProc:
    """What one guest asks about itself."""

    def __init__(self, tracee: Tracee) -> None:
        self._tracee = tracee
        self._asked: dict[int, _Asked] = {}
        self._numbers = 0

    def ask(self, event: Event) -> bool:
        """Return whether the call that the guest's thread waits in opens such a file; it is taken care of then."""
        tracee, tid = self._tracee, event.tid
        host = tracee.host_tid(tid)
        if host is None or event.code not in OPENS or len(event.data) != 48:
            return False
        arguments = struct.unpack("<6Q", event.data)
        path = _string(host, arguments[0 if event.code == SYS.open else 1])
        if path is None:
            return False  # too much for a frame, or gone: as with any call that cannot be sent
        shown = path.decode(errors="replace")
        found = _PATH.fullmatch(path)
        if not may_be_own(path, lambda number: tracee.host_tid(number) is not None):
            return False
        if path.startswith(b"/") and found is None:
            self._go_home(tid, event.code, shown)  # memory by its mappings, say
            return True
        self._numbers += 1
        self._asked[tid] = _Asked(self._numbers, event.code, arguments, shown)
        if found is None:
            at = _directory(event.code, arguments)
            tracee.link.send(Control.OWN_PROC, tid, pack(number=self._numbers, relative=path, at=at))
            return True
        who, task, name = found.group(1), found.group(2), found.group(3).decode()
        thread = int(task) if task else tid if who == b"thread-self" else 0
        is_other = who.isdigit() and int(who) != tracee.program_pid and tracee.host_tid(int(who)) is not None
        is_named = is_other and not task and name != "stat"
        if is_named:  # by a thread's id: what is shown of that thread alone, but for `stat`, is the same
            thread = int(who)
        if (
            name not in REPORTED
            or not _is_harmless(host, event.code, arguments)
            or (who not in (b"self", b"thread-self", b"%d" % tracee.program_pid) and not is_named)
            or (thread and tracee.host_tid(thread) is None)
        ):
            self._go_home(tid, event.code, shown)
            return True
        place = f"/proc/{tracee.pid}/task/{tracee.host_tid(thread)}/{name}" if thread else f"/proc/{tracee.pid}/{name}"
        try:
            with open(place, "rb") as file:
                text = zlib.compress(file.read(), 1)
        except OSError as error:
            log.info("nothing is known here of %s: %s", shown, error)
            text = b""
        if not text or len(text) > _ROOM:
            self._go_home(tid, event.code, shown)
            return True
        used = tracee.link.account.used()
        tracee.link.send(Control.OWN_PROC, tid, pack(number=self._numbers, name=name, thread=thread, text=text, used=used))
        return True

    def answered(self, event: Event) -> None:
        """Home has made the file, or says what is to be done. Errors: WireError."""
        tracee, tid, fields = self._tracee, event.tid, unpack(event.data)
        asked, call, host = self._asked.get(tid), tracee.link.parked().get(tid), tracee.host_tid(tid)
        if asked is None or asked.number != fields.get("number"):
            return
        del self._asked[tid]
        if host is None or call is None or call.sent or call.number != asked.code:
            return  # put back meanwhile, for a move: it is asked again where the guest is then
        if tracee.is_pausing:  # nothing more goes home now; the call is made again when it may
            tracing.interrupt(host)
            tracee.link.answer(tid, error=ERESTARTNOINTR)
            return
        try:
            path = bytes(fields["path"])
        except (KeyError, TypeError):
            raise WireError("a broken SNAPSHOT") from None
        if fields.get("home") or not self._forward(tid, asked.code, asked.arguments, path or None):
            self._go_home(tid, asked.code, asked.shown)

    def _forward(self, tid: int, code: int, arguments: tuple[int, ...], path: bytes | None = None) -> bool:
        """Whether the open is on its way home."""
        try:
            return self._tracee.link.forward(tid, code, arguments, path)
        except (OSError, MemoryError) as error:
            log.info("an open cannot be sent: %s", error)
            return False

    def _go_home(self, tid: int, number: int, shown: str) -> None:
        self._asked.pop(tid, None)
        self._tracee.go_home(tid, number, f"{NAMES.get(number, number)} of {shown}")


def _directory(number: int, arguments: tuple[int, ...]) -> int:
    return _AT_FDCWD if number == SYS.open else (arguments[0] & 0xFFFF_FFFF ^ 1 << 31) - (1 << 31)


def _is_harmless(host: int, number: int, arguments: tuple[int, ...]) -> bool:
    """Whether an open only wants to read."""
    flags, resolve = arguments[1 if number == SYS.open else 2], 0
    if number == SYS.openat2:
        how = _memory(host, arguments[2], _HOW.size) if arguments[3] == _HOW.size else b""
        if len(how) != _HOW.size:
            return False
        flags, _, resolve = _HOW.unpack(how)
    return not flags & 0xFFFF_FFFF & ~_HARMLESS and not resolve


def _string(host: int, address: int) -> bytes | None:
    text = b""
    while b"\0" not in text and len(text) < _PATH_MOST:
        part = _memory(host, address + len(text), 256 - (address + len(text)) % 256)
        if not part:
            return None
        text += part
    path, end, _ = text.partition(b"\0")
    return path if end else None


def _memory(host: int, address: int, size: int) -> bytes:
    """Empty if it cannot be read. Not by /proc/PID/mem, which does not wait for a page that is still to come (engine/pour/postcopy.py)."""
    return read_memory(host, address, size) or b""
