"""A node's store of files of other nodes, by content; and this node's own where they are the same.

A file that a guest has is held (flock(2)) as long as the guest is here. What nobody holds makes room for what comes; what comes has a
bound, for all guests together and for those of one tree, and is refused before a byte of it is taken if there is no room.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from engine.files.files import MappedFile, hashes
from engine.files.public import find_public, open_public
from kernel_helpers.common.errors import FarhomeError

LIMIT = 8 << 30
"""Bytes of files of homes that are kept if nobody says more."""
MOST_FILES = 4096
"""Files that come for the guests of one tree; and those that are kept: """
MOST_KEPT = 16384
SHARE = 2
"""The guests of one tree may bring one such part of what is kept for all."""
FREE = 20
"""Such a part of the disk stays free for its owner."""
_CHUNK = 1 << 20
_INCOMING = ".incoming-"


@dataclass(frozen=True)
class Kept:
    """A file of the store."""

    path: Path
    size: int
    used: float


class Incoming:
    """A file on its way into the store. Errors of its methods: OSError."""

    def __init__(self, store: FileStore, file: MappedFile) -> None:
        self.file = file
        self._store = store
        descriptor, name = tempfile.mkstemp(dir=store.directory, prefix=_INCOMING)
        self._path = Path(name)
        self._out = open(descriptor, "r+b", buffering=0)  # noqa: SIM115
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if file.size:
                os.posix_fallocate(descriptor, 0, file.size)  # there is no room for it, or there will be until it has come
        except BaseException:
            self.abandon()
            raise

    def write(self, data: bytes, offset: int) -> None:
        """Of what was announced. Errors: FarhomeError beyond that."""
        if offset + len(data) > self.file.size:
            raise FarhomeError(f"{self.file.path} arrived longer than it was announced")
        view = memoryview(data)
        while view:
            done = os.pwrite(self._out.fileno(), view, offset)
            view, offset = view[done:], offset + done

    def complete(self) -> Path:
        """It has come: if it has the content that was announced it is kept. Errors: FarhomeError, OSError; nothing is left then."""
        try:
            self._out.seek(0)
            if hashlib.file_digest(self._out, "sha256").hexdigest() != self.file.sha256:
                raise FarhomeError(f"{self.file.path} arrived with other content than it was announced with")
            # Executable, or it could not be a process's program; for everybody, as its directory is for nobody.
            os.fchmod(self._out.fileno(), 0o555)
            os.fdatasync(self._out.fileno())
            return self._store.keep(self.file, self._path, self._out)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """It does not come."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._out.close()


class FileStore:
    """The store in a directory, as the guests of one tree use it."""

    def __init__(self, directory: str | os.PathLike[str], limit: int = LIMIT) -> None:
        """limit: bytes that are kept for all."""
        self.directory = Path(directory)
        self._limit = limit
        self._brought = 0
        """bytes, and files, that have come for these guests"""
        self._files = 0
        self._held: dict[str, BinaryIO] = {}
        self._own: dict[tuple[str, str], int] = {}

    def find(self, file: MappedFile) -> Path | None:
        """Return a file on this node with that content: this node's own at the same path if everybody may read it and only root can change
        it, else one of the store. None: it has to come from the home. Errors: OSError, FarhomeError when there is no room in the store."""
        return self._find_own(file) or self._find_kept(file)

    def _find_kept(self, file: MappedFile) -> Path | None:
        entry = self.directory / file.sha256
        if file.sha256 not in self._held:
            try:
                kept = open(entry, "rb", buffering=0)  # noqa: SIM115
            except FileNotFoundError:
                return None
            fcntl.flock(kept, fcntl.LOCK_SH)
            status = os.fstat(kept.fileno())
            if not status.st_nlink or status.st_size != file.size:
                kept.close()  # it has just made room for another
                return None
            self._held[file.sha256] = kept
        with contextlib.suppress(FileNotFoundError):
            os.utime(entry)  # the least recently used one goes first
        return entry

    def _find_own(self, file: MappedFile) -> Path | None:
        key = (file.path, file.sha256)
        if key in self._own:
            return Path(f"/proc/{os.getpid()}/fd/{self._own[key]}")
        found = -1
        try:
            found = find_public(file.path)
            if os.fstat(found).st_size != file.size:
                return None
            with open(open_public(found), "rb", buffering=0) as own:
                status = os.fstat(own.fileno())
                if hashes.hash(own) != file.sha256:
                    return None
                if status.st_uid == 0 and not status.st_mode & 0o022:
                    self._own[key], found = found, -1  # by no name: what has it next may be another
                    return Path(f"/proc/{os.getpid()}/fd/{self._own[key]}")
                # Somebody may write into it while a guest has it mapped: a copy, but without the network.
                own.seek(0)
                return self.receive(file, iter(lambda: own.read(_CHUNK), b""))
        except OSError:
            return None
        finally:
            if found >= 0:
                os.close(found)

    def receive(self, file: MappedFile, chunks: Iterable[bytes]) -> Path:
        """Stores the content, after it proved to be the right one. Whatever goes wrong leaves nothing behind.
        Errors: FarhomeError (wrong content, no room), OSError, and what `chunks` raises."""
        incoming, size = self.expect(file), 0
        try:
            for chunk in chunks:
                incoming.write(chunk, size)
                size += len(chunk)
            if size != file.size:
                raise FarhomeError(f"{file.path} arrived shorter than it was announced")
        except BaseException:
            incoming.abandon()
            raise
        return incoming.complete()

    def expect(self, file: MappedFile) -> Incoming:
        """There is room for it. Errors: FarhomeError: there is none, and why; OSError."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._files >= MOST_FILES:
            raise FarhomeError(f"it brings more than {MOST_FILES} files with it")
        if self._brought + file.size > self._limit // SHARE:
            lent = f"{self._limit // SHARE:,} bytes that this node lends to one process"
            raise FarhomeError(f"the files that it has mapped are larger than the {lent} for that")
        try:
            with self._locked():
                self._make_room(file.size)
                incoming = Incoming(self, file)
        except OSError as error:
            raise FarhomeError(f"the node has no room for {file.path}: {error.strerror}") from None
        self._files += 1
        self._brought += file.size
        return incoming

    def keep(self, file: MappedFile, path: Path, content: BinaryIO) -> Path:
        """Return what has come has its name, and is held. Errors: OSError."""
        entry = self.directory / file.sha256
        with self._locked():
            if (kept := self._find_kept(file)) is not None:  # it has come for somebody else, too
                path.unlink()
                content.close()
                return kept
            path.rename(entry)
            reading = open(f"/proc/self/fd/{content.fileno()}", "rb", buffering=0)  # noqa: SIM115
            content.close()  # which nobody may have open for writing: it may be a program
            fcntl.flock(reading, fcntl.LOCK_SH)
            self._held[file.sha256] = reading
            return entry

    def open(self, file: MappedFile) -> BinaryIO:
        """Return the stored content. Errors: FileNotFoundError."""
        return open(self.directory / file.sha256, "rb", buffering=0)

    def settle(self) -> None:
        """This node's own files that were found are mounted, or not wanted: they need not be kept in hand."""
        while self._own:
            os.close(self._own.popitem()[1])

    def close(self) -> None:
        """The guests have gone: what they had may make room."""
        self.settle()
        while self._held:
            self._held.popitem()[1].close()

    # -- room ---------------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Nobody else makes or takes room meanwhile."""
        lock = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _make_room(self, size: int) -> None:
        """Errors: FarhomeError: what is held leaves none."""
        entries = sorted(self._entries(), key=lambda entry: entry.used, reverse=True)
        used, count = sum(entry.size for entry in entries), len(entries)
        while used + size > self._limit or count >= MOST_KEPT or not self._leaves_free(size):
            if not entries:
                taken = f"of {self._limit:,} that it lends for that, {used:,} are in use"
                lacking = taken if used + size > self._limit else "its disk is full"
                raise FarhomeError(f"the node has no room for a file of {size:,} bytes: {lacking}")
            oldest = entries.pop()
            if remove_unused(oldest.path):
                used, count = used - oldest.size, count - 1

    def _leaves_free(self, size: int) -> bool:
        disk = os.statvfs(self.directory)
        return (disk.f_bavail * disk.f_frsize) - size >= disk.f_blocks * disk.f_frsize // FREE

    def trim(self, limit: int) -> int:
        """Removes what nobody uses, the least recently used first, until `limit` bytes are kept; returns the bytes freed."""
        kept = freed = 0
        if not self.directory.is_dir():
            return 0
        with self._locked():
            for entry in sorted(self._entries(), key=lambda entry: entry.used, reverse=True):
                if kept + entry.size > limit and remove_unused(entry.path):
                    freed += entry.size
                else:
                    kept += entry.size
        return freed

    def _entries(self) -> Iterator[Kept]:
        with contextlib.suppress(FileNotFoundError):
            for path in self.directory.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    # An arrival that was abandoned is the first to go, when it is begun by nobody who lives.
                    yield Kept(path, status.st_size, 0.0 if path.name.startswith(_INCOMING) else status.st_mtime)


def _is_unused(path: Path) -> int:
    """A descriptor by which nobody can begin to use it; -1: somebody does, or it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return -1
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return -1
    return descriptor


def remove_unused(path: Path) -> bool:
    """Return whether it is gone, since nobody used it."""
    descriptor = _is_unused(path)
    if descriptor < 0:
        return False
    try:
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
    return True


def in_use(directory: Path) -> int:
    """Return bytes of the files in a store that guests have, or that are on their way."""
    total = 0
    with contextlib.suppress(FileNotFoundError):
        for path in directory.iterdir():
            descriptor = _is_unused(path)
            if descriptor >= 0:
                os.close(descriptor)
                continue
            with contextlib.suppress(OSError):
                total += path.stat().st_blocks * 512
    return total


def lent(directory: Path, share: float) -> int:
    """That share of the disk on which the directory is, in bytes; the disk of the next one above that exists."""
    while not directory.exists():
        directory = directory.parent
    disk = os.statvfs(directory)
    return int(disk.f_blocks * disk.f_frsize * share)
