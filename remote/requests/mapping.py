"""Files that the guest maps while it is here: it gets them by their content, as those that came along with it.

    remote                                        deputy
      |--- MAP (the arguments of a call that waits) ->|  the stub makes the same mapping
      | <-- MAPPED (path, size and SHA-256 ) ---------|  or: an error of home's kernel; only home can; before a move: ask again
      |--- FETCH ... <-- CONTENT ... ---------------- |  if nobody here has such a file
      |  the file appears in the sandbox, a descriptor of it in the guest, and the guest makes the call itself;
      |  and further parts of the file, if home has agreed to all (`whole`), until it makes a call of another kind

The guest's own number of the descriptor is that of home, and is of no use to it but for this: every call that takes a descriptor
is made at home. It stays there until another file has that number.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import struct
from dataclasses import dataclass, field
from typing import BinaryIO

from engine.files.files import MappedFile, hashes
from engine.files.store import FileStore, Incoming
from engine.mappings.mappings import MAP_PRIVATE, MAP_SHARED, PROT_WRITE
from kernel_helpers.common.errors import FarhomeError, sentence
from kernel_helpers.link.ends.away import AwayLink
from kernel_helpers.link.ends.events import Event
from kernel_helpers.link.ends.kept_files import file_key
from kernel_helpers.process import tracing
from kernel_helpers.process.syscalls import ERESTARTNOINTR, SYS
from remote.sandbox.sandbox import Sandbox
from remote.tracee.tracee import Tracee
from wire.control import Control, pack, unpack
from wire.frames import WireError

log = logging.getLogger("remote")

AHEAD = 4
"""Parts of a file that are asked for at once."""
_CHUNK = 512 << 10
"""Bytes of a part; the home may send less."""
_KNOWN = 0xF | 0x10 | 0x40 | 0x800 | 0x1000 | 0x4000 | 0x8000 | 0x10000 | 0x20000 | 0x100000
"""The type, FIXED, 32BIT, DENYWRITE, EXECUTABLE, NORESERVE, POPULATE, NONBLOCK, STACK, FIXED_NOREPLACE."""


@dataclass(frozen=True)
class _Asked:
    """A MAP that has not been answered: its number, and the descriptor's."""

    number: int
    descriptor: int


@dataclass
class _Fetch:
    """A file on its way; the threads (tid, number of the MAP) that want it."""

    file: MappedFile
    arriving: Incoming
    waiting: list[tuple[int, int]] = field(default_factory=list)
    asked: int = 0
    arrived: int = 0


class Mappings:
    """The files of one guest."""

    def __init__(self, tracee: Tracee, sandbox: Sandbox, store: FileStore) -> None:
        self._tracee = tracee
        self._sandbox = sandbox
        self._store = store
        self._asked: dict[int, _Asked] = {}
        self._numbers = 0
        self._fetches: dict[str, _Fetch] = {}
        self._whole: set[str] = set()
        """paths of files of which home agrees to any part"""
        self._checked: dict[str, tuple[int, int, str]] = {}
        """path -> device, inode and hash of what is shown there"""

    def begin(self) -> None:
        """The guest is about to run: it maps what home agrees to, and is kept here."""
        if isinstance(self._tracee.link, AwayLink) and not self._tracee.shares_memory:
            self._tracee.link.keep_files(self._sandbox.kept)

    def ask(self, event: Event) -> bool:
        """Return whether a call that waits is one to map a file that may be mapped here; home has been asked then."""
        if event.code != SYS.mmap or not isinstance(self._tracee.link, AwayLink) or self._tracee.shares_memory:
            return False
        arguments = struct.unpack("<6Q", event.data)
        protection, flags = arguments[2], arguments[3]
        kind = flags & 0xF
        if flags & ~_KNOWN or kind not in (MAP_PRIVATE, MAP_SHARED) or (kind == MAP_SHARED and protection & PROT_WRITE):
            return False
        self._numbers += 1
        self._asked[event.tid] = _Asked(self._numbers, arguments[4] & 0xFFFF_FFFF)
        self._tracee.link.send(Control.MAP, event.tid, pack(number=self._numbers, arguments=arguments))
        return True

    def handle(self, event: Event) -> None:
        """MAPPED or CONTENT."""
        try:
            fields = unpack(event.data)
            if event.kind == Control.CONTENT:
                self._arrived(os.fsdecode(fields["path"]), int(fields["offset"]), bytes(fields["data"]))
                return
            number = int(fields["number"])
            if fields.get("error"):
                self._answer(event.tid, number, error=-int(fields["error"]))
            elif fields.get("again"):
                self._again(event.tid, number)
            elif "file" in fields:
                file = MappedFile.from_wire(fields["file"])
                (self._whole.add if fields.get("whole") is True else self._whole.discard)(file.path)
                self._serve(event.tid, number, file)
            else:
                self._home(event.tid, number, str(fields.get("home", "mmap")))
        except (FarhomeError, WireError, KeyError, TypeError, ValueError):
            log.warning("home's answer about a file is none", exc_info=True)
            if event.tid in self._asked:
                self._home(event.tid, self._asked[event.tid].number, "mmap")

    # -- answers --------------------------------------------------------------------------------------------------------

    def _waits(self, tid: int, number: int) -> _Asked | None:
        """What the thread has asked, if it still waits for the answer to that."""
        asked = self._asked.get(tid)
        call = self._tracee.link.parked().get(tid)
        if asked is None or asked.number != number or call is None or call.number != SYS.mmap:
            return None
        return asked

    def _answer(self, tid: int, number: int, error: int = 0) -> None:
        if self._waits(tid, number):
            del self._asked[tid]
            self._tracee.link.answer(tid, error=error, proceed=not error)

    def _again(self, tid: int, number: int) -> None:
        """The call is put back to before it; what happens at its stop is what happens at any."""
        host = self._tracee.host_tid(tid)
        if host is not None and self._waits(tid, number):
            tracing.interrupt(host)
            self._answer(tid, number, error=ERESTARTNOINTR)

    def _home(self, tid: int, number: int, reason: str) -> None:
        if self._waits(tid, number):
            del self._asked[tid]
            self._tracee.go_home(tid, SYS.mmap, reason)

    # -- files ----------------------------------------------------------------------------------------------------------

    def _serve(self, tid: int, number: int, file: MappedFile) -> None:
        asked = self._waits(tid, number)
        if asked is None:
            return
        try:
            opened = self._open(file)
            if opened is None:
                self._fetch(file, tid, number)
                return
            with opened:
                self._give(tid, opened.fileno(), asked.descriptor)
                if file.path in self._whole and isinstance(self._tracee.link, AwayLink):
                    self._tracee.link.let_map(asked.descriptor, file.size)
                    self._sandbox.kept.put(file_key(file.path, file.sha256), opened.fileno(), file.size)
        except (FarhomeError, OSError) as error:
            log.info("%s is not mapped here: %s", file.path, error)
            self._home(tid, number, "mmap")
            return
        self._answer(tid, number)

    def _open(self, file: MappedFile) -> BinaryIO | None:
        """The file as the guest sees it; None: it has to come from home. Errors: FarhomeError, OSError."""
        opened = self._sandbox.open_file(file.path)
        if opened is None:
            local = self._store.find(file)
            if local is None:
                return None
            self._sandbox.show_file(file.path, local)
            self._store.settle()
            opened = self._sandbox.open_file(file.path)
            if opened is None:
                raise FarhomeError("it does not show")
        try:
            status = os.fstat(opened.fileno())
            checked = (status.st_dev, status.st_ino, file.sha256)
            if self._checked.get(file.path) != checked:
                if status.st_size != file.size or hashes.hash(opened) != file.sha256:
                    raise FarhomeError("it is shown with other content")
                self._checked[file.path] = checked
            if os.fstatvfs(opened.fileno()).f_flag & os.ST_NOEXEC:
                raise FarhomeError("it lies where nothing may be executed")
            return opened
        except BaseException:
            opened.close()
            raise

    def _give(self, tid: int, descriptor: int, number: int) -> None:
        """Errors: OSError."""
        link = self._tracee.link
        assert isinstance(link, AwayLink)
        try:
            link.give_descriptor(tid, descriptor, number)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            resource.prlimit(self._tracee.pid, resource.RLIMIT_NOFILE, (number + 1, number + 1))  # home's limit is what counts
            link.give_descriptor(tid, descriptor, number)

    # -- content --------------------------------------------------------------------------------------------------------

    def _fetch(self, file: MappedFile, tid: int, number: int) -> None:
        fetch = self._fetches.get(file.sha256)
        if fetch is None:
            fetch = _Fetch(file, self._store.expect(file))
            self._fetches[file.sha256] = fetch
            fetch.waiting.append((tid, number))
            for _ in range(AHEAD):
                self._ask_for_more(fetch)
            self._look_whether_complete(fetch)
        else:
            fetch.waiting.append((tid, number))

    def _ask_for_more(self, fetch: _Fetch) -> None:
        if fetch.asked < fetch.file.size:
            self._tracee.link.send(Control.FETCH, 0, pack(path=os.fsencode(fetch.file.path), offset=fetch.asked))
            fetch.asked += min(_CHUNK, fetch.file.size - fetch.asked)

    def _arrived(self, path: str, offset: int, data: bytes) -> None:
        fetch = next((fetch for fetch in self._fetches.values() if fetch.file.path == path), None)
        if fetch is None:
            return
        wanted = min(_CHUNK, fetch.file.size - offset)
        if offset % _CHUNK or not 0 <= offset < fetch.asked or len(data) != wanted:
            self._give_up(fetch, "home does not have it any more")
            return
        try:
            fetch.arriving.write(data, offset)
            fetch.arrived += len(data)
            self._ask_for_more(fetch)
            self._look_whether_complete(fetch)
        except (FarhomeError, OSError) as error:
            self._give_up(fetch, sentence(error))

    def _look_whether_complete(self, fetch: _Fetch) -> None:
        """Errors: FarhomeError, OSError."""
        if fetch.arrived < fetch.file.size:
            return
        fetch.arriving.complete()
        self._fetches.pop(fetch.file.sha256, None)
        for tid, number in fetch.waiting:
            self._serve(tid, number, fetch.file)

    def _give_up(self, fetch: _Fetch, reason: str) -> None:
        log.info("%s does not come: %s", fetch.file.path, reason)
        self._forget(fetch)
        for tid, number in fetch.waiting:
            self._home(tid, number, "mmap")

    def _forget(self, fetch: _Fetch) -> None:
        fetch.arriving.abandon()
        self._fetches.pop(fetch.file.sha256, None)

    def close(self) -> None:
        """Nothing more will come."""
        for fetch in list(self._fetches.values()):
            self._forget(fetch)
