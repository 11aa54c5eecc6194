"""The open files of a checkpoint, opened again in a process that stands still, by calls of its own: with the rights of its user."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from checkpoint import descriptors, prefix
from checkpoint.directory import Opened
from checkpoint.errors import RestartRefused
from checkpoint.record import DEVICE, DIRECTORY, FILE, STANDARD, File, OpenFile
from checkpoint.rights import User, rights_of
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS, U64

_KEPT_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_SYNC | os.O_DSYNC | os.O_DIRECT | os.O_NOATIME | os.O_DIRECTORY | os.O_PATH
_SETTABLE = os.O_APPEND | os.O_NONBLOCK | os.O_DIRECT | os.O_NOATIME
_AT_FDCWD = U64 - 99
_PATH_SIZE = 4096
_TEXTS = ("standard input", "standard output", "standard error")


@dataclass(frozen=True)
class Longer:
    """A file that has grown since the checkpoint, and the number of a descriptor in the process that can cut it."""

    file: File
    number: int


class Reopened:
    """See the module. Errors of all: RestartRefused, OSError."""

    def __init__(self, frozen: Frozen, files: Sequence[OpenFile], user: User) -> None:
        self._frozen = frozen
        self._files = files
        self._user = user
        self._written = set(descriptors.inodes_written(files))
        self.longer: list[Longer] = []
        wanted = [descriptor.number for file in files for descriptor in file.numbers]
        self._top = 1 + max([2, *wanted, *descriptors.numbers(frozen.pid)])
        """No descriptor that is there, or is to be, is that high."""

    def open(self) -> None:
        """All of them have their numbers then, and there are no others. The process has a limit that lets it."""
        frozen = self._frozen
        own = {number: self._raised(number) for number in descriptors.STANDARD_NUMBERS if self._needs_standard(number)}
        high = [self._opened(file) if file.kind != STANDARD else -1 for file in self._files]
        for file, source in zip(self._files, high, strict=True):
            for descriptor in file.numbers:
                first = min(one.number for one in file.numbers)
                origin = source if source >= 0 else own[descriptor.number if descriptor.number in own else first]
                frozen.call(SYS.dup3, origin, descriptor.number, os.O_CLOEXEC if descriptor.close_on_exec else 0)
        wanted = {descriptor.number for file in self._files for descriptor in file.numbers}
        for number in descriptors.numbers(frozen.pid):
            if number not in wanted:
                frozen.call(SYS.close, number)
        self._find_longer()

    def _needs_standard(self, number: int) -> bool:
        return any(file.kind == STANDARD and any(one.number == number for one in file.numbers) for file in self._files)

    def _raised(self, number: int) -> int:
        """Moves a descriptor of the restarting process out of the way."""
        try:
            return self._frozen.call(SYS.fcntl, number, fcntl.F_DUPFD_CLOEXEC, self._top)
        except OSError:
            raise RestartRefused(f"it needs a {_TEXTS[number]}, and there is none") from None

    def _opened(self, file: OpenFile) -> int:
        """One open file, at a number out of the way."""
        frozen = self._frozen
        path = file.file.path
        with frozen.scratch(_PATH_SIZE) as scratch:
            frozen.write(scratch, os.fsencode(path) + b"\0")
            flags = file.flags & _KEPT_FLAGS | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW
            low = self._call(SYS.openat, f"{path} cannot be opened", _AT_FDCWD, scratch, flags, 0)
        number = self._call(SYS.fcntl, "it has more files open than its limit lets it", low, fcntl.F_DUPFD_CLOEXEC, self._top)
        frozen.call(SYS.close, low)
        self._check(file, os.stat(f"/proc/{frozen.pid}/fd/{number}"))
        if not file.flags & os.O_PATH:
            frozen.call(SYS.fcntl, number, fcntl.F_SETFL, file.flags & _SETTABLE)
            if file.kind in (FILE, DIRECTORY):
                self._call(SYS.lseek, f"{path} cannot be read from where it was", number, file.offset, os.SEEK_SET)
        return number

    def _call(self, number: int, what: str, *arguments: int) -> int:
        try:
            return self._frozen.call(number, *arguments)
        except ProcessLookupError:
            raise
        except OSError as error:
            raise RestartRefused(f"{what}: {os.strerror(error.errno or 0)}") from None

    def _check(self, file: OpenFile, now: os.stat_result) -> None:
        """That it is the very file, and holds what it did."""
        was, path = file.file, file.file.path
        if file.kind == DEVICE:
            if not stat.S_ISCHR(now.st_mode) or (os.major(now.st_rdev), os.minor(now.st_rdev)) not in descriptors.DEVICES:
                raise RestartRefused(f"{path} is no such device")
            return
        is_kind = stat.S_ISDIR(now.st_mode) if file.kind == DIRECTORY else stat.S_ISREG(now.st_mode)
        if not is_kind or now.st_ino != was.inode:
            raise RestartRefused(f"{path} is another file than it was")
        if file.kind == DIRECTORY:
            return
        if was.inode not in self._written:
            check_unchanged(was, now)
        elif now.st_size < was.size:
            raise RestartRefused(f"{path} is shorter than it was")

    def _find_longer(self) -> None:
        """Looks at each file that can be written; what has been put behind its end can be taken back, nothing else."""
        seen = set()
        for file in self._files:
            if not file.is_written or file.file.inode in seen:
                continue
            seen.add(file.file.inode)
            number = file.numbers[0].number
            now = os.stat(f"/proc/{self._frozen.pid}/fd/{number}")
            if (now.st_size, now.st_mtime_ns) != (file.file.size, file.file.mtime):
                self._compare(file, now)
            if now.st_size > file.file.size:
                self.longer.append(Longer(file.file, number))

    def _compare(self, file: OpenFile, now: os.stat_result) -> None:
        path = file.file.path
        if not file.sha256:
            raise RestartRefused(f"{path} has changed, and what it held is not known")
        with rights_of(self._user):
            content = _open_again(path, now)
        try:
            if prefix.sha256(content, file.file.size) != file.sha256:
                raise RestartRefused(f"{path} has changed where it had been written already")
        finally:
            os.close(content)

    def cut(self, opened: Opened) -> list[str]:
        """Makes files that have grown as long as they were; what is cut off is kept with the checkpoint. Returns a sentence for each."""
        notes = []
        for one in self.longer:
            now = os.stat(f"/proc/{self._frozen.pid}/fd/{one.number}")
            with rights_of(self._user):
                content = _open_again(one.file.path, now)
                try:
                    kept = opened.keep_cut(os.path.basename(one.file.path)[:200], content, one.file.size)
                except OSError as error:
                    raise RestartRefused(f"what is cut off from {one.file.path} cannot be kept: {error.strerror}") from None
                finally:
                    os.close(content)
            self._call(SYS.ftruncate, f"{one.file.path} cannot be cut", one.number, one.file.size)
            path, size = one.file.path, one.file.size
            notes.append(f"{path} is cut back from {now.st_size} to {size} bytes, as it was at the checkpoint; the rest is in {kept}")
        return notes


def check_unchanged(was: File, now: os.stat_result) -> None:
    """Errors: RestartRefused."""
    if now.st_ino != was.inode:
        raise RestartRefused(f"{was.path} is another file than it was")
    if (now.st_size, now.st_mtime_ns) != (was.size, was.mtime):
        raise RestartRefused(f"{was.path} has changed")


def _open_again(path: str, now: os.stat_result) -> int:
    """A descriptor of ours to read a file by that the process has open. Errors: RestartRefused."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        file = os.open(path, flags)
    except OSError as error:
        raise RestartRefused(f"{path} has changed, and cannot be read: {error.strerror}") from None
    found = os.fstat(file)
    if (found.st_dev, found.st_ino) != (now.st_dev, now.st_ino):
        with suppress(OSError):
            os.close(file)
        raise RestartRefused(f"{path} is another file than it was")
    return file
