"""What can be known about a program without running it: whether it could move at all, and what it seems to be made for.

An executable is looked at as execve(2) would: scripts lead to their interpreters, ELF headers name the machine, the loader
and what is called by name. Every size and offset of the file is checked; of a file that makes no sense nothing is reported.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from cli.common.known import STAYS, SYSTEM
from kernel_helpers.calls import table

SCRIPTS = 5
"""Interpreters that are scripts themselves; the kernel goes no deeper (BINPRM)."""
FIRST_LINE = 256
"""Bytes of a script that the kernel looks at for the name of its interpreter."""
MOST_SECTIONS = 4096
MOST_TABLE = 64 << 20
"""Bytes of symbols or their names that are looked at."""

_MACHINES = {3: "32-bit x86", 40: "32-bit ARM", 62: "x86-64", 183: "64-bit ARM", 243: "RISC-V", 21: "64-bit PowerPC", 22: "IBM Z"}
_PROGRAMS = (2, 3)
"""ET_EXEC, ET_DYN"""
_SHT_DYNAMIC, _SHT_DYNSYM = 6, 11
_PT_INTERP = 3
_DT_NEEDED = 1
_NAMED = {
    "shmat": "shmat: while it has System V shared memory attached it stays at home",
    "io_setup": "io_setup: while it uses kernel asynchronous I/O it stays at home",
    "io_uring_setup": "io_uring: while it holds a ring it stays at home; away it gets the answer that the kernel has none",
    "userfaultfd": "userfaultfd: while it holds one it stays at home",
    "memfd_secret": "memfd_secret: while it holds one it stays at home",
}
_LIBRARIES = {
    "liburing.so": _NAMED["io_uring_setup"],
    "libaio.so": _NAMED["io_setup"],
    "libcuda.so": "a graphics processor: while a device is mapped it stays at home",
    "libOpenCL.so": "OpenCL: while a device is mapped it stays at home",
    "libibverbs.so": "InfiniBand: while a device is mapped it stays at home",
}
_STAY_BY = {
    "libjli.so": "Java has a file mapped shared and writable, for those who look at it: unless it is started with -XX:-UsePerfData it "
    "stays at home",
}
"""Libraries that report what keeps every program at home that has them."""


@dataclass
class Finding:
    """`path` of the executable; `chain` of the interpreters that run it; `reasons` why it could not move; `notes`: what may
    keep it at home, or take it there, when it runs."""

    path: str
    chain: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find(name: str) -> str | None:
    """Return the file that execvp(3) would take, None if there is none."""
    if "/" in name:
        return name if os.path.exists(name) else None
    found = shutil.which(name)
    if found is None:  # what is there and cannot be executed has a reason of its own
        found = next((path for place in os.get_exec_path() if os.path.isfile(path := os.path.join(place, name))), None)
    return found


def examine(path: str) -> Finding:
    """All that can be known. Errors: OSError: it is gone."""
    finding = Finding(path)
    _examine(path, finding, SCRIPTS)
    for one in dict.fromkeys((path, os.path.realpath(path))):
        if not finding.reasons:
            _by_name(one, finding)
    return finding


def _examine(path: str, finding: Finding, left: int) -> None:
    who = "it" if path == finding.path else path
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        finding.reasons.append(f"{who} is no file that can be executed")
        return
    if not os.access(path, os.X_OK, effective_ids=True):
        finding.reasons.append(f"you may not execute {who}")
        return
    try:
        with open(path, "rb") as source:
            head = source.read(FIRST_LINE)
            if head[:2] == b"#!":
                _script(head, finding, left)
                return
            _rights(path, status, who, finding)
            _elf(Elf(source.fileno(), status.st_size), who, finding)
    except PermissionError:
        finding.notes.append(f"{who} may be executed, but not read: nothing more can be found")
        _rights(path, status, who, finding)
    except NotElf:
        finding.reasons.append(f"{who} is neither a program nor a script that names its interpreter")


def _rights(path: str, status: os.stat_result, who: str, finding: Finding) -> None:
    """What has more rights than its user leaves by no way (engine/leaving/permission.py). (A script never has.)"""
    if os.statvfs(path).f_flag & os.ST_NOSUID:
        return
    found = []
    if status.st_mode & stat.S_ISUID:
        found.append(("setuid", status.st_uid == os.geteuid()))
    if status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP:
        found.append(("setgid", status.st_gid == os.getegid()))
    if _has_capabilities(path):
        found.append(("given capabilities of its own", os.geteuid() == 0))
    for what, is_own in found:
        if is_own:
            finding.notes.append(f"{who} is {what}: with rights that its user does not have, which others would get, it stays at home")
        else:
            finding.reasons.append(f"{who} is {what}: with rights that its user does not have it stays at home")


def _has_capabilities(path: str) -> bool:
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False


def _by_name(path: str, finding: Finding) -> None:
    """What no header shows."""
    name = os.path.basename(path) if path.startswith(SYSTEM) else ""
    if (reason := STAYS.get(name)) is not None:
        finding.reasons.append(f"{name} stays at home: {reason}")


def _script(head: bytes, finding: Finding, left: int) -> None:
    line = head[2:].split(b"\n", 1)[0].strip(b" \t")
    words = os.fsdecode(line).split(None, 1)
    if not words:
        finding.reasons.append("its first line names no interpreter")
        return
    interpreter = words[0]
    finding.chain.append(interpreter)
    if not os.path.exists(interpreter):
        finding.reasons.append(f"its interpreter {interpreter} is not there")
    elif left == 0:
        finding.reasons.append("its interpreters are scripts, too many of them")
    else:
        _examine(interpreter, finding, left - 1)
        if os.path.basename(interpreter) == "env" and len(words) > 1 and not finding.reasons:
            _by_env(words[1], finding, left - 1)


def _by_env(words: str, finding: Finding, left: int) -> None:
    """`#!/usr/bin/env python3`: env executes what it finds in PATH."""
    try:
        names = shlex.split(words.removeprefix("-S")) if words.startswith("-S") else [words]
    except ValueError:
        return
    name = next((name for name in names if "=" not in name and not name.startswith("-")), None)
    if name is None:
        return
    found = find(name)
    finding.chain.append(found or name)
    if found is None:
        finding.reasons.append(f"its interpreter {name} is not found")
    elif left > 0:
        finding.notes.clear()  # those of env itself
        _examine(found, finding, left)


class NotElf(Exception):
    """The file is none, or makes no sense."""


@dataclass(frozen=True)
class Section:
    kind: int
    offset: int
    size: int
    link: int


class Elf:
    """The headers of an ELF file. Errors: NotElf."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor, self._size = descriptor, size
        header = self.read(0, 20)
        if header[:4] != b"\x7fELF":
            raise NotElf
        self.is_64 = header[4] == 2
        self.is_little = header[5] == 1
        self.kind, self.machine = struct.unpack("<HH" if self.is_little else ">HH", header[16:20])

    def read(self, offset: int, length: int) -> bytes:
        """That many bytes. Errors: NotElf: the file has not as many."""
        if length < 0 or offset < 0 or length > MOST_TABLE or offset + length > self._size:
            raise NotElf
        data = os.pread(self._descriptor, length, offset)
        if len(data) != length:
            raise NotElf
        return data

    def loader(self) -> str | None:
        """Return the dynamic loader that it asks for; None: it is linked statically."""
        at, entry, count = struct.unpack("<Q14xHH", self.read(32, 26))
        if entry != 56:
            raise NotElf
        for index in range(count):
            kind, offset, length = struct.unpack("<I4xQ16xQ16x", self.read(at + 56 * index, 56))
            if kind == _PT_INTERP:
                return os.fsdecode(self.read(offset, length).split(b"\0", 1)[0])
        return None

    def sections(self) -> list[Section]:
        """Return the section table; empty if it has been stripped of it."""
        (at,) = struct.unpack("<Q", self.read(40, 8))
        entry, count = struct.unpack("<HH", self.read(58, 4))
        if not at or entry != 64 or not 0 < count <= MOST_SECTIONS:
            return []
        data = self.read(at, 64 * count)
        return [Section(*struct.unpack_from("<4xI16xQQI", data, 64 * index)) for index in range(count)]

    def _names(self, sections: list[Section], section: Section) -> bytes:
        if not 0 <= section.link < len(sections):
            raise NotElf
        strings = sections[section.link]
        return self.read(strings.offset, strings.size)

    def imports(self) -> Iterator[str]:
        """Names of the functions and data that others are to provide."""
        sections = self.sections()
        for section in sections:
            if section.kind == _SHT_DYNSYM:
                names, data = self._names(sections, section), self.read(section.offset, section.size)
                for name, index in struct.iter_unpack("<I2xH16x", data[: len(data) // 24 * 24]):
                    if index == 0 and 0 < name < len(names):
                        yield _text(names, name)

    def libraries(self) -> Iterator[str]:
        """Names of the libraries that it is linked with."""
        sections = self.sections()
        for section in sections:
            if section.kind == _SHT_DYNAMIC:
                names, data = self._names(sections, section), self.read(section.offset, section.size)
                for tag, value in struct.iter_unpack("<qQ", data[: len(data) // 16 * 16]):
                    if tag == _DT_NEEDED and value < len(names):
                        yield _text(names, value)


def _text(names: bytes, at: int) -> str:
    return names[at : names.find(b"\0", at)].decode("utf-8", "replace")


def _elf(elf: Elf, who: str, finding: Finding) -> None:
    if elf.kind not in _PROGRAMS:
        finding.reasons.append(f"{who} is no program, but a part of one")
    elif elf.machine == 62 and not elf.is_64:
        finding.reasons.append(f"{who} is a program of the x32 kind, which is not moved")
    elif elf.machine != 62 or not elf.is_little:
        finding.reasons.append(f"{who} is a program for {_MACHINES.get(elf.machine, 'another machine')}, not for x86-64")
    if finding.reasons:
        return
    try:
        loader = elf.loader()
        if loader is not None and not os.path.exists(loader):
            finding.reasons.append(f"{who} needs the loader {loader}, which is not there")
            return
        names, libraries = set(elf.imports()), set(elf.libraries())
    except (NotElf, struct.error):
        finding.notes.append(f"{who} has headers that make no sense: nothing more can be found")
        return
    notes = [_NAMED[name] for name in sorted(names & set(_NAMED))]
    notes += [text for library, text in _LIBRARIES.items() if any(name.startswith(library) for name in libraries)]
    finding.notes += dict.fromkeys(notes)
    finding.reasons += [text for library, text in _STAY_BY.items() if library in libraries]
    calls = _calls_that_go_home(names)
    if calls:
        finding.notes.append(f"calls that only home makes, each takes it there: {', '.join(calls)}")
    if loader is None:
        finding.notes.append(f"{who} is linked statically: which calls it makes cannot be seen")


def _calls_that_go_home(names: set[str]) -> list[str]:
    """Of the calls that a program imports by name, those that the table has taken home whatever their arguments are."""
    always = {row.name for row in table.taken_home()[0]}
    return sorted((names & always) - set(_NAMED))
