"""What a checkpoint holds besides CRIU's images: `farhome.json`.

The images are those of a copy without descriptors (engine/criu/forkcopy.py). What such a copy does not have, or CRIU's images do not
report, is here. All of it comes from outside when it is read: the directory is the user's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from checkpoint.errors import BadCheckpoint
from engine.context.checked import SIGINFO_BYTES, SIGNALS
from engine.mappings.mappings import CARRIED_FLAGS, HIGHEST_ADDRESS, SPECIAL

NAME = "farhome.json"
VERSION = 1
MOST = 64 << 20
"""Bytes of the file."""
DESCRIPTORS_MOST = 1 << 20
LIMITS = 16
TIMERS = 3
"""ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF."""
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
"""As /proc/PID/status names them."""

FILE, DIRECTORY, DEVICE, STANDARD = "file", "directory", "device", "standard"
KINDS = (FILE, DIRECTORY, DEVICE, STANDARD)

_T = TypeVar("_T")
_WORD = (1 << 64) - 1
_INT = (1 << 31) - 1


@dataclass(frozen=True)
class Descriptor:
    """A number that an open file has in the process, and whether exec closes it."""

    number: int
    close_on_exec: bool


@dataclass(frozen=True)
class File:
    """A file as it was: where it is found, and by what it is known again. size in bytes, mtime in nanoseconds."""

    path: str
    inode: int
    size: int
    mtime: int


@dataclass(frozen=True)
class OpenFile:
    """One open file (description): kind is one of KINDS; STANDARD is a terminal, pipe or socket that is descriptor 0, 1 or 2.

    flags: as fcntl(F_GETFL) returns them. offset in bytes. sha256: of a file that can be written, of its first `size` bytes, if that
    is known; else empty.
    """

    kind: str
    numbers: tuple[Descriptor, ...]
    file: File
    flags: int
    offset: int
    sha256: str = ""

    @property
    def is_written(self) -> bool:
        """Whether the process can change what is in it by this."""
        return self.kind == FILE and self.flags & os.O_ACCMODE != os.O_RDONLY


@dataclass(frozen=True)
class Region:
    """What images do not report about a mapping: flags as smaps has them, of CARRIED_FLAGS; the name of one of the kernel's own."""

    start: int
    end: int
    flags: str
    name: str


@dataclass(frozen=True)
class Record:
    """See the module. uids, gids: real, effective, saved; limits: soft, hard, by number; timers: interval and what is left, in
    microseconds; pending: tid (0: the process) and siginfo_t in hexadecimal digits; kernel: what engine.pour.vessel.kernel_pages returns;
    kernel_code: SHA-256 of the vdso; mapped: program and all mapped files; time: seconds since the epoch."""

    pid: int
    tids: tuple[int, ...]
    command: str
    time: int
    program: str
    mapped: tuple[File, ...]
    regions: tuple[Region, ...]
    kernel: str
    kernel_code: str
    uids: tuple[int, ...]
    gids: tuple[int, ...]
    groups: tuple[int, ...]
    capabilities: tuple[int, ...]
    no_new_privileges: bool
    cwd: File
    umask: int
    nice: int
    limits: tuple[tuple[int, int], ...]
    timers: tuple[tuple[int, int], ...]
    pending: tuple[tuple[int, str], ...]
    open_files: tuple[OpenFile, ...]
    release: str = field(default="")

    def to_json(self) -> bytes:
        """Return the content of the file."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1).encode("ascii") + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Record:
        """Errors: BadCheckpoint, with what is wrong."""
        if len(data) > MOST:
            raise BadCheckpoint(f"its {NAME} is too long")
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            raise BadCheckpoint(f"its {NAME} is no JSON") from None
        reader = _Reader(value)
        if reader.number("version", 0, _INT) != VERSION:
            raise BadCheckpoint(f"it was written by another version of farhome ({value['version']}, not {VERSION})")
        record = cls(
            pid=reader.number("pid", 2, 1 << 22),
            tids=reader.each("tids", 65536, lambda v: _number(v, 2, 1 << 22, "tids")),
            command=reader.text("command"),
            time=reader.number("time", 0, 1 << 40),
            program=reader.path("program"),
            mapped=reader.each("mapped", 1 << 17, _file),
            regions=reader.each("regions", 1 << 18, _region),
            kernel=reader.text("kernel"),
            kernel_code=reader.text("kernel_code"),
            uids=reader.each("uids", 3, _id),
            gids=reader.each("gids", 3, _id),
            groups=reader.each("groups", 65536, _id),
            capabilities=reader.each("capabilities", len(CAPABILITIES), lambda v: _number(v, 0, _WORD, "capabilities")),
            no_new_privileges=reader.truth("no_new_privileges"),
            cwd=_file(reader.get("cwd")),
            umask=reader.number("umask", 0, 0o777),
            nice=reader.number("nice", -20, 19),
            limits=reader.each("limits", LIMITS, lambda v: _pair(v, _WORD, "limits")),
            timers=reader.each("timers", TIMERS, lambda v: _pair(v, 1 << 60, "timers")),
            pending=reader.each("pending", 1 << 16, _pending_signal),
            open_files=reader.each("open_files", DESCRIPTORS_MOST, _open_file),
            release=reader.text("release"),
        )
        record._check()
        return record

    def _check(self) -> None:
        numbers = [descriptor.number for file in self.open_files for descriptor in file.numbers]
        if len(set(numbers)) != len(numbers):
            raise BadCheckpoint("two of its files have one descriptor")
        if self.pid not in self.tids or len(set(self.tids)) != len(self.tids):
            raise BadCheckpoint("its threads make no sense")
        counts = (len(self.uids), len(self.gids), len(self.limits), len(self.timers), len(self.capabilities))
        if counts != (3, 3, LIMITS, TIMERS, len(CAPABILITIES)):
            raise BadCheckpoint("it lacks something of the process")


def _number(value: Any, least: int, most: int, what: str) -> int:
    if type(value) is not int or not least <= value <= most:
        raise BadCheckpoint(f"its {what} makes no sense")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) > 1 << 16 or "\0" in value:
        raise BadCheckpoint(f"its {what} makes no sense")
    return value


def _path(value: Any, what: str) -> str:
    text = _text(value, what)
    try:
        if not text.startswith("/") or len(os.fsencode(text)) >= 4096:
            raise BadCheckpoint(f"its {what} makes no sense")
    except UnicodeEncodeError:
        raise BadCheckpoint(f"its {what} makes no sense") from None
    return text


def _truth(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise BadCheckpoint(f"its {what} makes no sense")
    return value


def _each(value: Any, most: int, take: Callable[[Any], _T], what: str) -> tuple[_T, ...]:
    if not isinstance(value, list) or len(value) > most:
        raise BadCheckpoint(f"its {what} makes no sense")
    return tuple(take(item) for item in value)


def _id(value: Any) -> int:
    return _number(value, 0, (1 << 32) - 2, "user and groups")


def _pair(value: Any, most: int, what: str) -> tuple[int, int]:
    first, second = _each(value if isinstance(value, list) and len(value) == 2 else None, 2, lambda v: _number(v, 0, most, what), what)
    return first, second


def _pending_signal(value: Any) -> tuple[int, str]:
    if not isinstance(value, list) or len(value) != 2:
        raise BadCheckpoint("its signals make no sense")
    tid, info = _number(value[0], 0, 1 << 22, "signals"), _text(value[1], "signals")
    try:
        data = bytes.fromhex(info)
    except ValueError:
        data = b""
    if len(data) != SIGINFO_BYTES or not 1 <= int.from_bytes(data[:4], "little") <= SIGNALS:
        raise BadCheckpoint("its signals make no sense")
    return tid, info


def _file(value: Any) -> File:
    reader = _Reader(value)
    return File(
        path=reader.path("path"), inode=reader.number("inode", 0, _WORD), size=reader.number("size", 0, 1 << 62),
        mtime=reader.number("mtime", -(1 << 62), _WORD),
    )  # fmt: skip


def _region(value: Any) -> Region:
    reader = _Reader(value)
    start, end = reader.number("start", 0, HIGHEST_ADDRESS), reader.number("end", 0, HIGHEST_ADDRESS)
    flags, name = reader.text("flags"), reader.text("name")
    if start >= end or not set(flags.split()) <= CARRIED_FLAGS or (name and name not in SPECIAL and not name.startswith("[anon:")):
        raise BadCheckpoint("its regions make no sense")
    return Region(start, end, flags, name)


def _descriptor(value: Any) -> Descriptor:
    reader = _Reader(value)
    return Descriptor(reader.number("number", 0, DESCRIPTORS_MOST), reader.truth("close_on_exec"))


def _open_file(value: Any) -> OpenFile:
    reader = _Reader(value)
    kind, digest = reader.text("kind"), reader.text("sha256")
    numbers = reader.each("numbers", DESCRIPTORS_MOST, _descriptor)
    if kind not in KINDS or not numbers or (digest and (len(digest) != 64 or set(digest) - set("0123456789abcdef"))):
        raise BadCheckpoint("its open files make no sense")
    return OpenFile(kind, numbers, _file(reader.get("file")), reader.number("flags", 0, _INT), reader.number("offset", 0, 1 << 62), digest)


class _Reader:
    """An object of the file, field by field. Errors: BadCheckpoint."""

    def __init__(self, value: Any) -> None:
        if not isinstance(value, dict):
            raise BadCheckpoint(f"its {NAME} makes no sense")
        self._value = value

    def get(self, name: str) -> Any:
        if name not in self._value:
            raise BadCheckpoint(f"its {NAME} has no {name}")
        return self._value[name]

    def number(self, name: str, least: int, most: int) -> int:
        return _number(self.get(name), least, most, name)

    def text(self, name: str) -> str:
        return _text(self.get(name), name)

    def path(self, name: str) -> str:
        return _path(self.get(name), name)

    def truth(self, name: str) -> bool:
        return _truth(self.get(name), name)

    def each(self, name: str, most: int, take: Callable[[Any], _T]) -> tuple[_T, ...]:
        return _each(self.get(name), most, take, name)


def written(files: Sequence[OpenFile]) -> Iterator[OpenFile]:
    """Those that the process can write."""
    return (file for file in files if file.is_written)
