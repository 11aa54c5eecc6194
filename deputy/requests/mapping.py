"""Files that a guest maps while it is away.

The stub makes the same mapping of its own descriptor: so the errors are those of home's kernel, and home has the very same file when
the process comes back. The guest gets the file by its content. The stub's mapping lies aside, where nothing else is; it stays for as
long as the process is away and serves whenever the same part of the file is mapped again: layout.py finds it when the process
comes home, as it finds what a program has moved by mremap(2).
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from deputy.requests.known_files import known_files
from deputy.requests.leases import Leases, OpenForWriting, is_systems
from deputy.stub.traced import Replaced
from engine.files.files import FileMapping, MappedFile, by_mapping, describe, hashes, named_mappings
from engine.mappings.mappings import MAP_PRIVATE, MAP_SHARED, PAGE, PROT_EXEC, PROT_READ, PROT_WRITE
from engine.memory.alone import may_be, name_at_home
from engine.memory.written import is_kernels_own, is_open_for_writing
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.link.ends.events import Event
from kernel_helpers.link.ends.home import HomeLink
from kernel_helpers.process.syscalls import SYS
from wire.control import Control, unpack
from wire.frames import WireError

if TYPE_CHECKING:
    from deputy.link.guestlink import GuestLink
    from deputy.stub.stub import Stub
    from kernel_helpers.process.thread import Thread

log = logging.getLogger("deputy")

LARGEST = 256 << 20
"""Bytes of a file that is mapped away: a greater one is not worth its way."""
MOST_MAPPINGS = 16384
"""That are made for a guest; at home the process is rid of what it does not use any more."""
CHUNK = 512 << 10
"""Bytes of a file in one frame."""
_HUGE_PAGE = 2 << 20
_ANY_PROTECTION = PROT_READ | PROT_EXEC
"""PROT_WRITE is everybody's right to a private mapping."""
_ASIDE = 0x4B00_0000_0000
"""Behind all places that the stub's loop may have (deputy/stub/), and below those that the kernel chooses."""
_ASIDE_BY_LOOPS = 0x5000_0000_0000
"""Behind all of those: where loops map known files (known_files.py)."""
BEYOND = 1 << 20
"""Bytes that a whole file is mapped aside beyond its last page (ASIDE_BEYOND of kernel_helpers/link/slot.h)."""
_MAP_FIXED_NOREPLACE = 0x100000
_MAP_KEPT = 0xF | 0x4000  # the type, and NORESERVE: what the stub's mapping has of the guest's

_OF_ALL = frozenset((protection, False) for protection in (0, PROT_READ, PROT_EXEC, _ANY_PROTECTION))
"""Protections of a file that is mapped as a whole, privately."""

_Inode = tuple[int, int]
"""st_dev, st_ino"""


class OnlyHome(FarhomeError):
    """A reason why this file is mapped at home."""


@dataclass(frozen=True)
class _Part:
    """A part of a file that the stub has mapped aside."""

    address: int
    offset: int
    length: int
    shared: bool


@dataclass
class _File:
    """A file of the guest's. protections: those that home's kernel has agreed to."""

    name: str
    parts: list[_Part] = field(default_factory=list)
    protections: set[tuple[int, bool]] = field(default_factory=set)

    def has(self, offset: int, length: int, protection: int, shared: bool) -> bool:
        """Return whether there is such a mapping already."""
        if (protection, shared) not in self.protections or offset % PAGE or not length:
            return False
        return any(p.shared == shared and p.offset <= offset and offset + length <= p.offset + p.length for p in self.parts)


def _whole(size: int) -> int:
    """Bytes of a mapping of all of a file."""
    return -(-size // PAGE) * PAGE + BEYOND


class Mappings:
    """The files of one process that is away. A guest knows a file by what it was called when the guest got it; no two files have one
    name."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._sent: dict[str, MappedFile] = {}
        """what the guest has, by name"""
        self._names: dict[str, str] = {}
        """by identity (see engine.mappings.mappings.Mapping): what it left with"""
        self._files: dict[_Inode, _File] | None = None
        self._made = 0
        self._next = _ASIDE
        self._next_by_loops = _ASIDE_BY_LOOPS
        self._leases = Leases()
        self._home: HomeLink | None = None

    def begin(self, home: HomeLink) -> None:
        """Let the loops of the stub map known files. Before its guest makes a call."""
        self._home = home
        home.map_aside(self._next_by_loops)

    @classmethod
    def of(cls, pid: int, named: Sequence[FileMapping], files: Sequence[MappedFile], leases: Leases) -> Mappings:
        """Return those of a process that is about to leave, `files` going along; named: its named_mappings()."""
        found = cls(pid)
        found._sent = {file.path: file for file in files}
        found._leases = leases
        for mapping in named:
            if mapping.inode:
                is_object = mapping.permissions[3] == "s" and may_be(mapping.path)
                name = name_at_home(mapping.path, mapping.inode) if is_object else mapping.path
                found._names.setdefault(_identity(mapping), name)
                known_files.note(name, _identity(mapping))
        return found

    def objects(self) -> frozenset[str]:
        """Identities of what the process has mapped shared, and has alone (engine/memory/alone.py). Errors: ProcessLookupError."""
        return frozenset(
            _identity(m) for m in named_mappings(self._pid)
            if m.permissions[3] == "s" and may_be(m.path) and self._names.get(_identity(m)) == name_at_home(m.path, m.inode)
        )  # fmt: skip

    def inherited(self, pid: int) -> Mappings:
        """Return those of a child that has just been born."""
        self._take_asides()
        child = Mappings(pid)
        child._sent, child._names = dict(self._sent), dict(self._names)
        if self._files is not None:
            child._files = {inode: _File(file.name, list(file.parts), set(file.protections)) for inode, file in self._files.items()}
        child._made, child._next, child._leases = self._made, self._next, self._leases.inherit()
        child._next_by_loops = self._next_by_loops
        return child

    def is_about_to_be_written(self) -> bool:
        """Return whether somebody waits to write one of the files, and the process is to see that."""
        return self._leases.broken()

    def let_go(self) -> None:
        """The process is at home, or has ended: its files may be written. Twice is no error."""
        leases, self._leases = self._leases, Leases()
        leases.let_go()

    def names(self) -> dict[str, str]:
        """By identity, what a context of the guest calls each file. Errors: ProcessLookupError."""
        return {identity: name.replace("\n", "\\012") for identity, (name, _) in self._now().items()}

    def files(self) -> list[MappedFile]:
        """All that the guest has mapped, for another node, as it is now. Errors: OSError."""
        sources = {name: by_mapping(self._pid, mapping.start, mapping.end) for name, mapping in self._now().values()}
        now = {path: describe(path, link) for path, link in sources.items()}
        return [now.get(path) or file for path, file in self._sent.items()]

    def _take_asides(self) -> None:
        """Take note of what the loops have mapped aside. Errors: OSError."""
        if self._home is None:
            return
        asides, self._next_by_loops = self._home.take_asides()
        for aside in asides:
            known = known_files.of(aside.key)
            file = self._known().setdefault(known.inode, _File(known.file.path))
            file.parts.append(_Part(aside.address, 0, aside.length, False))
            file.protections |= _OF_ALL
            self._sent[file.name] = known.file
            self._made += 1

    def _now(self) -> dict[str, tuple[str, FileMapping]]:
        """By identity: the guest's name, and a mapping of it."""
        self._take_asides()
        aside = {part.address: file.name for file in (self._files or {}).values() for part in file.parts}
        found: dict[str, tuple[str, FileMapping]] = {}
        for mapping in named_mappings(self._pid):
            if mapping.inode:
                name = aside.get(mapping.start) or self._names.get(_identity(mapping))
                if name is not None:
                    found.setdefault(_identity(mapping), (name, mapping))
        return found

    def map(self, stub: Stub, tid: int, arguments: Sequence[int]) -> dict[str, Any]:
        """Have the stub's thread (the program's id) make the mmap(2) of the guest's. Returns the fields of MAPPED."""
        try:
            result = self._map(stub, tid, arguments)
            if isinstance(result, int):
                return {"error": -result}
            return {"file": result.to_wire(), "whole": self._is_whole(result)}
        except OnlyHome as reason:
            return {"home": str(reason)}
        except (OSError, Replaced) as error:
            log.info("no file is mapped away: %s", error)
            return {"home": "mmap"}

    def content(self, path: str, offset: int) -> bytes:
        """Return a part of a file that the guest knows, empty if it is gone. Errors: OSError."""
        self._take_asides()
        file = next((file for file in (self._files or {}).values() if file.name == path and file.parts), None)
        if file is None or offset < 0:
            return b""
        with self._open(file.parts[0]) as opened:
            return os.pread(opened.fileno(), CHUNK, offset)

    def _map(self, stub: Stub, tid: int, arguments: Sequence[int]) -> MappedFile | int:
        """What the guest maps, or a negative errno. Errors: OnlyHome, OSError."""
        _, length, protection, flags, number, offset = arguments
        self._take_asides()
        number, shared = number & 0xFFFF_FFFF, flags & 0xF == MAP_SHARED
        if not shared:
            protection &= ~PROT_WRITE  # to which everybody has a right, and it would count as memory
        length = -(-length // PAGE) * PAGE
        inode = self._look_at_descriptor(number, shared)
        file = self._known().get(inode) if inode else None
        if file is None or not file.has(offset, length, protection, shared):
            if self._made >= MOST_MAPPINGS:
                raise OnlyHome("it has mapped too many files one after the other")
            with stub.injecting(tid) as thread:
                whole = self._map_whole(thread, inode, number) if not shared else None
                if whole is None or not whole.has(offset, length, protection, shared):
                    part = _Part(self._next, offset, length, shared)
                    self._next += length + PAGE
                    kept = flags & _MAP_KEPT | _MAP_FIXED_NOREPLACE
                    result = thread.call(SYS.mmap, part.address, length, protection, kept, arguments[4], offset)
                    if result in (-errno.ENOMEM, -errno.EEXIST):
                        raise OnlyHome("it maps more than its stub can")
                    if result < 0:
                        return result
                    whole = self._add(part, inode)
                    whole.protections.add((protection, shared))
            file = whole
        with self._open(file.parts[-1]) as opened:
            self._check_open(opened, shared)
            try:
                self._leases.take(self._link(file.parts[-1]), file.name)
            except OpenForWriting:
                raise OnlyHome("it maps a file that is open for writing") from None
            status = os.fstat(opened.fileno())
            known = MappedFile(file.name, status.st_size, hashes.hash(opened))
            if self._home is not None and file.has(0, _whole(known.size), _ANY_PROTECTION, False) and is_systems(status, file.name):
                self._let_loops_map(known, file.parts[-1], inode, opened)
        self._sent[file.name] = known
        return known

    def _let_loops_map(self, known: MappedFile, part: _Part, inode: _Inode | None, opened: BinaryIO) -> None:
        """Other processes map the file without asking."""
        mapping = next((m for m in named_mappings(self._pid) if m.start == part.address), None)
        if mapping is not None and inode is not None and self._home is not None:
            known_files.add(known, _identity(mapping), inode, opened.fileno(), self._home)

    def _map_whole(self, thread: Thread, inode: _Inode | None, number: int) -> _File | None:
        """Map all of a file aside, so that nothing has to be asked about further parts of it; None: that is refused, or too much. Errors:
        OnlyHome, OSError."""
        size = os.stat(f"/proc/{self._pid}/fd/{number}").st_size if inode else 0
        known = self._known().get(inode) if inode else None
        if known is not None and known.has(0, _whole(size), _ANY_PROTECTION, False):
            return known
        if not size or self._made + 1 >= MOST_MAPPINGS:
            return None
        part = _Part(self._next, 0, _whole(size), False)
        self._next += part.length + PAGE
        if thread.call(SYS.mmap, part.address, part.length, _ANY_PROTECTION, MAP_PRIVATE | _MAP_FIXED_NOREPLACE, number, 0) < 0:
            return None
        file = self._add(part, inode)
        file.protections |= _OF_ALL
        return file

    def _is_whole(self, known: MappedFile) -> bool:
        """Return whether any part of a file that the guest has may be mapped, privately."""
        file = next((file for file in (self._files or {}).values() if file.name == known.path), None)
        return file is not None and file.has(0, known.size, _ANY_PROTECTION, False)

    def _look_at_descriptor(self, number: int, shared: bool) -> _Inode | None:
        """The file behind a descriptor that can be read. Errors: OnlyHome, OSError."""
        try:
            status = os.stat(f"/proc/{self._pid}/fd/{number}")
            with open(f"/proc/{self._pid}/fdinfo/{number}", encoding="ascii") as lines:
                flags = next(int(line.split()[1], 8) for line in lines if line.startswith("flags:"))
        except FileNotFoundError:
            return None
        _check(status)
        if shared and flags & os.O_ACCMODE != os.O_RDONLY:
            raise OnlyHome("it maps a file shared that it may write")
        return (status.st_dev, status.st_ino) if not flags & (os.O_WRONLY | os.O_PATH) else None

    def _known(self) -> dict[_Inode, _File]:
        """Files that have a name here. Errors: OSError."""
        if self._files is None:
            self._files = {}
            for mapping in named_mappings(self._pid):
                if (name := self._names.get(_identity(mapping))) is not None:
                    status = os.stat(by_mapping(self._pid, mapping.start, mapping.end))
                    self._files.setdefault((status.st_dev, status.st_ino), _File(name))
        return self._files

    def _add(self, part: _Part, expected: _Inode | None) -> _File:
        """Errors: OnlyHome, OSError."""
        link = self._link(part)
        status, path = os.stat(link), os.readlink(link)
        inode = (status.st_dev, status.st_ino)
        if inode != expected or not path.startswith("/"):
            raise OnlyHome("it maps a file that has no path")
        known = self._known()
        if inode not in known:
            taken = {name.removesuffix(" (deleted)") for name in (*self._names.values(), *(file.name for file in known.values()))}
            while path in taken:
                path += f".{status.st_ino}"
            known[inode] = _File(path)
        known[inode].parts.append(part)
        self._made += 1
        return known[inode]

    def _link(self, part: _Part) -> str:
        return by_mapping(self._pid, part.address, part.address + part.length)

    def _open(self, part: _Part) -> BinaryIO:
        return open(self._link(part), "rb", buffering=0)

    def _check_open(self, file: BinaryIO, shared: bool) -> None:
        """Errors: OnlyHome, OSError."""
        status = os.fstat(file.fileno())
        _check(status)
        if os.fstatvfs(file.fileno()).f_bsize >= _HUGE_PAGE:
            raise OnlyHome("it maps huge pages of hugetlbfs")
        if shared and not self._only_others_write(status, os.readlink(f"/proc/self/fd/{file.fileno()}")):
            raise OnlyHome("it maps a file shared that it may write")
        if is_kernels_own(file.fileno()):
            raise OnlyHome("it maps a file that the kernel makes")
        if is_open_for_writing(file.fileno()):
            raise OnlyHome("it maps a file that is open for writing")

    def _only_others_write(self, status: os.stat_result, path: str) -> bool:
        """Whether a shared mapping will not show writes: only root may write the file, and the process is not root's, or the file
        is a part of the system, where files are replaced and not written."""
        with open(f"/proc/{self._pid}/status", encoding="utf-8", errors="replace") as lines:
            user = next(int(line.split()[2]) for line in lines if line.startswith("Uid:"))
        return status.st_uid == 0 and not status.st_mode & 0o022 and (user != 0 or path.startswith("/usr/"))


def serve(mappings: Mappings, stub: Stub, link: GuestLink, event: Event) -> None:
    """MAP or FETCH. Errors: WireError."""
    fields = unpack(event.data)
    try:
        if event.kind == Control.FETCH:
            path, offset = os.fsdecode(fields["path"]), int(fields["offset"])
            try:
                data = mappings.content(path, offset)
            except OSError as error:
                log.warning("%s cannot be sent: %s", path, error)
                data = b""
            link.send(Control.CONTENT, 0, path=os.fsencode(path), offset=offset, data=data)
            return
        number, arguments = int(fields["number"]), [int(argument) for argument in fields["arguments"]]
        if len(arguments) != 6 or any(not 0 <= argument < 1 << 64 for argument in arguments):
            raise ValueError("arguments")
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"{link.target.node} asks for a file in a way that is none: {error}") from None
    answer: dict[str, Any] = {"again": True} if link.still else mappings.map(stub, event.tid, arguments)
    link.send(Control.MAPPED, event.tid, number=number, **answer)


def _check(status: os.stat_result) -> None:
    """Errors: OnlyHome."""
    if not stat.S_ISREG(status.st_mode):
        raise OnlyHome("it maps what is no regular file")
    if not status.st_nlink:
        raise OnlyHome("it maps a file that has no name")
    if status.st_size > LARGEST:
        raise OnlyHome(f"it maps a file of more than {LARGEST >> 20} MiB")


def _identity(mapping: FileMapping) -> str:
    return f"{mapping.device} {mapping.inode}"
