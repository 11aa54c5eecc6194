"""The files that a process has mapped, recognized by content."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from engine.mappings.mappings import SPECIAL
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.inspection import places

HASHES = Path("/var/lib/farhome/hashes")
MAX_FILE = 64 << 30
_RACY_NS = 3_000_000_000
_NO_FILES = ("[", "anon_inode:", "/memfd:", "/SYSV", "/dev/zero", "//anon", "/anon_hugepage", "dmabuf:")
_PLAIN = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ ...p 0+ 00:00 0 *\n", re.MULTILINE)
_ANONYMOUS = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ 0(?: +(\S.*))?", re.MULTILINE)
_SPAN = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) ", re.MULTILINE)
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileMapping:
    """One line of /proc/PID/maps."""

    start: int
    end: int
    permissions: str
    offset: int
    device: str
    inode: int
    path: str


def mappings(pid: int) -> list[FileMapping]:
    """Errors: ProcessLookupError, PermissionError."""
    return _parsed(_maps(pid))


def named_mappings(pid: int) -> list[FileMapping]:
    """Those that have a file, as all have that are shared: of others there may be tens of thousands. Errors: as mappings()."""
    try:
        found = places.of_files(pid)
    except FileNotFoundError:
        raise ProcessLookupError(f"no process {pid}") from None
    if found is None:
        return [m for m in _parsed(_PLAIN.sub(b"", _maps(pid))) if m.device != "00:00" or m.inode]
    return [FileMapping(m.start, m.end, m.permissions, m.offset, m.device, m.inode, m.path) for m in found]


def spans(pid: int) -> list[tuple[int, int]]:
    """Return where its mappings are, by address. Errors: as mappings()."""
    return [(int(start, 16), int(end, 16)) for start, end in _SPAN.findall(_maps(pid))]


def anonymous_spans(pid: int) -> list[tuple[int, int]]:
    """Return where it has memory of its own without a file, by address. Errors: as mappings()."""
    found = _ANONYMOUS.findall(_maps(pid))
    return [(int(start, 16), int(end, 16)) for start, end, name in found if name.decode("utf-8", "surrogateescape") not in SPECIAL]


def is_free(pid: int, start: int, end: int) -> bool:
    """Return whether it has nothing mapped there. Errors: as mappings()."""
    try:
        found = places.is_free(pid, start, end)
    except FileNotFoundError:
        raise ProcessLookupError(f"no process {pid}") from None
    return found if found is not None else not any(first < end and start < last for first, last in spans(pid))


def _maps(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            return maps.read()
    except FileNotFoundError:
        raise ProcessLookupError(f"no process {pid}") from None


def _parsed(maps: bytes) -> list[FileMapping]:
    found = []
    for line in maps.decode("utf-8", "surrogateescape").split("\n"):
        if not line:
            continue
        span, permissions, offset, device, inode, *rest = line.split(" ", 5)
        start, _, end = span.partition("-")
        path = rest[0].lstrip(" ") if rest else ""
        found.append(FileMapping(int(start, 16), int(end, 16), permissions, int(offset, 16), device, int(inode), _unescape(path)))
    return found


def _unescape(path: str) -> str:
    # seq_file writes a newline (and nothing else) in a mapped file's name as \012.
    return path.replace("\\012", "\n") if "\\012" in path else path


def is_file(mapping: FileMapping) -> bool:
    """Return whether it maps a file that can be found by its path. What is mapped but deleted travels in the images."""
    return (
        bool(mapping.inode)
        and mapping.path.startswith("/")
        and not mapping.path.startswith(_NO_FILES)
        and (not mapping.path.endswith(" (deleted)"))
    )


class Content:
    """A file that has been opened: what was hashed of it is what is sent, whatever comes to its name, or to where it was mapped."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def open(self) -> BinaryIO:
        """Once more, from its beginning. Errors: OSError."""
        if self._descriptor < 0:
            raise FileNotFoundError(errno.ENOENT, "the file is not held any more")
        return open(f"/proc/self/fd/{self._descriptor}", "rb", buffering=0)

    def close(self) -> None:
        """It is not needed any more."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True)
class MappedFile:
    """A file by its path at home and its content. held: the file itself, on the node that has it mapped."""

    path: str
    size: int
    sha256: str
    held: Content | None = field(default=None, compare=False, repr=False)

    def to_wire(self) -> dict[str, Any]:
        return {"path": os.fsencode(self.path), "size": self.size, "sha256": self.sha256}

    @classmethod
    def from_wire(cls, message: Mapping[str, Any]) -> MappedFile:
        """Errors: FarhomeError for what is no such thing."""
        path, size, sha256 = message.get("path"), message.get("size"), message.get("sha256")
        if isinstance(path, str):
            path = os.fsencode(path)
        if (
            not isinstance(path, bytes)
            or not path.startswith(b"/")
            or len(path) >= 4096
            or b"\0" in path
            or any(part in (b"", b".", b"..") for part in path.split(b"/")[1:])
        ):
            raise FarhomeError("a mapped file without a sound path")
        if not isinstance(size, int) or not 0 <= size <= MAX_FILE:
            raise FarhomeError("a mapped file without a sound size")
        if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            raise FarhomeError("a mapped file without a sound hash")
        return cls(os.fsdecode(path), size, sha256)

    def open(self) -> BinaryIO:
        """Return the content, for sending: of the very file that was hashed. Errors: OSError."""
        if self.held is None:
            raise FileNotFoundError(errno.ENOENT, f"{self.path} is not mapped any more")
        return self.held.open()

    def let_go(self) -> None:
        """It has been sent, or is not wanted."""
        if self.held is not None:
            self.held.close()


class HashCache:
    """Hashes of files by (device, inode, size, mtime, ctime), kept in a file that many processes append to.

    A hash is kept only when the file had not changed for some seconds: a later change might not show in the times.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, str] | None = None

    def _load(self) -> dict[str, str]:
        if self._known is None:
            self._known = {}
            with contextlib.suppress(OSError):
                for line in (self._path or HASHES).read_text(encoding="ascii", errors="replace").splitlines():
                    key, _, value = line.rpartition(" ")
                    if _SHA256.fullmatch(value):
                        self._known[key] = value
        return self._known

    def hash(self, file: BinaryIO) -> str:
        """SHA-256 of an open regular file, as hexadecimal digits. Errors: OSError."""
        status = os.fstat(file.fileno())
        key = f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
        known = self._load()
        if key in known:
            return known[key]
        value = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        after = os.fstat(file.fileno())
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _RACY_NS and (
            (after.st_mtime_ns, after.st_ctime_ns) == (status.st_mtime_ns, status.st_ctime_ns)
        ):
            known[key] = value
            self._append(f"{key} {value}\n")
        return value

    def _append(self, line: str) -> None:
        path = self._path or HASHES
        with contextlib.suppress(OSError):  # without it every hash is made anew, no more
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                if os.fstat(descriptor).st_size > 4 << 20:
                    os.ftruncate(descriptor, 0)  # years of package upgrades
                os.write(descriptor, line.encode("ascii"))
            finally:
                os.close(descriptor)


hashes = HashCache()


def by_mapping(pid: int, start: int, end: int) -> str:
    """Return a path to the very file that a process has mapped there, whatever is at its name now."""
    return f"/proc/{pid}/map_files/{start:x}-{end:x}"


def mapped_files(pid: int, named: Sequence[FileMapping] | None = None) -> list[MappedFile]:
    """Return all files that the process has mapped, and its program, each once, and held. What it unmaps meanwhile is left out: at the
    freeze all is asked for again. No name is opened, which its user may have given to another file. named: of one that stands still, its
    named_mappings(). Errors: ProcessLookupError, OSError."""
    found: dict[tuple[str, str, int], str] = {}
    for mapping in named_mappings(pid) if named is None else named:
        if is_file(mapping):
            key = (mapping.path, mapping.device, mapping.inode)
            # By the mapping itself, so that the very inode is read even if another is at that path now.
            found.setdefault(key, by_mapping(pid, mapping.start, mapping.end))
    files = []
    for (path, _, inode), link in found.items():
        file = describe(path, link, inode)
        if file is not None:
            files.append(file)
    program = os.readlink(f"/proc/{pid}/exe")
    if not program.endswith(" (deleted)") and not any(file.path == program for file in files):
        file = describe(program, f"/proc/{pid}/exe")
        if file is not None:
            files.append(file)
    return files


def describe(path: str, link: str, inode: int = 0) -> MappedFile | None:
    """Return a regular file by one of the links to it in /proc. None: there is none any more, or it is another (inode) or no such file.
    Errors: OSError."""
    try:
        place = os.open(link, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(place)
        if not stat.S_ISREG(status.st_mode) or (inode and status.st_ino != inode):
            return None
        held = Content(os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC))
    finally:
        os.close(place)
    with held.open() as file:
        return MappedFile(path, os.fstat(file.fileno()).st_size, hashes.hash(file), held)


class _Statfs(ctypes.Structure):
    _fields_ = [("type", ctypes.c_long), ("rest", ctypes.c_long * 31)]


def file_system(descriptor: int) -> int:
    """Return the type of an open file's file system (statfs(2), f_type). Errors: OSError."""
    libc, found = ctypes.CDLL(None, use_errno=True), _Statfs()
    if libc.fstatfs(descriptor, ctypes.byref(found)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(found.type)
