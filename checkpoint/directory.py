"""The directory of a checkpoint: written beside and put in its place as a whole, so that there is always the old one or the new one.

    DIR          farhome.json, CRIU's images; after a restart perhaps cut/
    .DIR.new     beside it: the one that is being written, or what is left of one that was interrupted; the next one takes it away

Everything is done with the rights of the process's user (rights.py); the caller sees to that.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from checkpoint.errors import BadCheckpoint
from checkpoint.record import NAME
from kernel_helpers.common.errors import FarhomeError

CUT = "cut"
FILES_MOST = 4096
_RENAME_EXCHANGE = 2
_CHUNK = 1 << 20
_OF_OTHERS = 0o022
_libc = ctypes.CDLL(None, use_errno=True)


class NewCheckpoint:
    """One that is being written. Errors of all methods: OSError, FarhomeError; what was in `directory` before stays whole."""

    def __init__(self, directory: Path) -> None:
        """Makes room beside `directory`, which has a name and a parent."""
        self._name = os.fsencode(directory.name)
        self._new = b"." + self._name[:240] + b".new"
        self._path = directory
        if self._name in (b"", b".", b".."):
            raise FarhomeError(f"{directory} is no name for a checkpoint")
        self._parent = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._check_old()
            self._directory = self._make()
        except BaseException:
            os.close(self._parent)
            raise

    def _check_old(self) -> None:
        """Nothing but a checkpoint, or an empty directory, is put out of the way."""
        try:
            status = os.stat(self._name, dir_fd=self._parent, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(status.st_mode):
            raise FarhomeError(f"{self._path} is there already, and is no checkpoint")
        with _opened(self._name, self._parent) as old:
            names = os.listdir(old)
        if names and NAME not in names:
            raise FarhomeError(f"{self._path} is there already, and is no checkpoint")

    def _make(self) -> int:
        with suppress(FileExistsError):
            os.mkdir(self._new, 0o700, dir_fd=self._parent)
        made = os.open(self._new, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._parent)
        try:
            fcntl.flock(made, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(made, 0o700)
            self._empty(made)
        except BlockingIOError:
            os.close(made)
            raise FarhomeError(f"another checkpoint is just being written to {self._path}") from None
        except BaseException:
            os.close(made)
            raise
        return made

    def _empty(self, directory: int) -> None:
        for name in os.listdir(directory):
            if name == CUT and self._keep_cut(directory):
                continue
            if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                shutil.rmtree(name, dir_fd=directory)
            else:
                os.unlink(name, dir_fd=directory)

    def _keep_cut(self, old: int) -> bool:
        """What a restart has cut off from files goes from an older checkpoint to the present one."""
        with suppress(OSError), _opened(self._name, self._parent) as present:
            os.rename(CUT, CUT, src_dir_fd=old, dst_dir_fd=present)
            return True
        return False

    def add(self, name: str, source: int) -> int:
        """Copies what can be read from a descriptor into a file of that name; returns its bytes."""
        size = 0
        with _made(name, self._directory) as file:
            while data := os.read(source, _CHUNK):
                size += len(data)
                _write(file, data)
        return size

    def write(self, name: str, data: bytes) -> None:
        """A file with that content."""
        with _made(name, self._directory) as file:
            _write(file, data)

    def finish(self) -> None:
        """Puts it in the place of the one before, which is removed."""
        os.fsync(self._directory)
        try:
            os.rename(self._new, self._name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._exchange()
        os.fsync(self._parent)
        os.close(self._directory)
        self._directory = -1
        with suppress(OSError), _opened(self._new, self._parent) as old:
            self._empty(old)
            os.rmdir(self._new, dir_fd=self._parent)

    def _exchange(self) -> None:
        if not _libc.renameat2(self._parent, self._new, self._parent, self._name, _RENAME_EXCHANGE):
            return
        if ctypes.get_errno() not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fspath(self._path))
        # A file system that cannot exchange them: for a moment there is neither, and both are beside it.
        old = b"." + self._name[:240] + b".old"
        os.rename(self._name, old, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        os.rename(self._new, self._name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        os.rename(old, self._new, src_dir_fd=self._parent, dst_dir_fd=self._parent)

    def close(self) -> None:
        """Without finish(), what was written is removed."""
        if self._directory >= 0:
            with suppress(OSError):
                self._empty(self._directory)
                os.rmdir(self._new, dir_fd=self._parent)
            os.close(self._directory)
        os.close(self._parent)


@contextmanager
def _opened(name: bytes, parent: int) -> Iterator[int]:
    directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        yield directory
    finally:
        os.close(directory)


@contextmanager
def _made(name: str, directory: int) -> Iterator[int]:
    """A new file, on the disk at the end."""
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        yield file
        os.fsync(file)
    finally:
        os.close(file)


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


class Opened:
    """The files of a checkpoint, each opened once."""

    def __init__(self, directory: Path, owner: int) -> None:
        """owner: whose all of it has to be. Errors: BadCheckpoint, OSError."""
        self.files: dict[str, int] = {}
        self.directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            names = os.listdir(self.directory)
            if len(names) > FILES_MOST or NAME not in names:
                raise BadCheckpoint("it holds no checkpoint")
            status = os.fstat(self.directory)
            if status.st_uid != owner:
                raise BadCheckpoint("it belongs to another user")
            if status.st_mode & _OF_OTHERS:
                raise BadCheckpoint("others can write there")
            for name in names:
                if name == NAME or name.endswith(".img"):
                    self.files[name] = self._open(name, owner)
        except BaseException:
            self.close()
            raise

    def _open(self, name: str, owner: int) -> int:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            file = os.open(name, flags, dir_fd=self.directory)
        except OSError as error:
            raise BadCheckpoint(f"its {name} cannot be read: {error.strerror}") from None
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != owner or status.st_mode & _OF_OTHERS:
            os.close(file)
            raise BadCheckpoint(f"its {name} is no file of the user's alone")
        return file

    def read(self, name: str, most: int) -> bytes:
        """Return all of a file. Errors: BadCheckpoint, OSError."""
        file = self.files.get(name)
        if file is None:
            raise BadCheckpoint(f"it has no {name}")
        size = os.fstat(file).st_size
        if size > most:
            raise BadCheckpoint(f"its {name} is too long")
        return os.pread(file, size, 0)

    def keep_cut(self, name: str, source: int, offset: int) -> str:
        """Keeps what a file holds from `offset` on as cut/NAME, or under the next name that is free; returns that. Errors: OSError."""
        with suppress(FileExistsError):
            os.mkdir(CUT, 0o700, dir_fd=self.directory)
        with _opened(CUT.encode(), self.directory) as directory:
            taken = set(os.listdir(directory))
            free = next(one for one in (name, *(f"{name}.{number}" for number in range(1, 1 << 20))) if one not in taken)
            with _made(free, directory) as file:
                while data := os.pread(source, _CHUNK, offset):
                    _write(file, data)
                    offset += len(data)
            os.fsync(directory)
        return f"{CUT}/{free}"

    def close(self) -> None:
        """Once."""
        for file in self.files.values():
            os.close(file)
        os.close(self.directory)
