"""What /proc shows of a process that is away, made for the process itself: home's words, and in them what is the guest's.

The guest opens such a file as any other, under the name that it is given here. It is owned as the one in /proc is, and gone from
its directory when it was opened; it is no more than what was true then.
"""

from __future__ import annotations

import logging
import os
import secrets
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deputy.requests import proc_texts
from kernel_helpers.link.ends.events import Event
from kernel_helpers.usage import account, children
from wire.control import Control, unpack
from wire.frames import WireError

if TYPE_CHECKING:
    from deputy.away import Away

log = logging.getLogger("deputy")

TEXT_MOST = 64 << 20
"""Bytes of one such file."""
FREE_LEAST = 4
"""A file is made as long as one part in so many of its file system is free: it lies where nobody else's limits count."""
_AT_FDCWD = -100


@dataclass(frozen=True)
class _Snapshot:
    """A file that a thread (the program's id) is about to open; `after`: how many calls it had made."""

    path: Path
    tid: int
    after: int


class OwnProc:
    """What one process has asked about itself."""

    def __init__(self, away: Away, directory: Path) -> None:
        """directory: where such files are made."""
        self._away = away
        self._place = directory
        self._made: list[_Snapshot] = []

    def handle(self, event: Event) -> bool:
        """Return whether a frame from the remote asks for such a file, and has been dealt with. Errors: WireError."""
        if event.kind != Control.OWN_PROC:
            return False
        link, fields = self._away.link, unpack(event.data)
        path, home = b"", False
        try:
            if "relative" in fields:
                home = self._is_own(bytes(fields["relative"]), int(fields["at"]))
            else:
                path = self._make(event.tid, fields)
        except OSError as error:
            log.info("nothing to show the process of itself: %s", error)
            home = True
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise WireError(f"a broken OWN_PROC: {error}") from None
        link.send(Control.SNAPSHOT, event.tid, number=fields.get("number"), path=path, home=home)
        return True

    @property
    def is_tidy(self) -> bool:
        """Whether nothing is being opened."""
        return not self._made

    def tidy(self) -> None:
        """What was opened needs its name no longer."""
        stub = self._away.stub
        for snapshot in list(self._made):
            if snapshot.tid in stub.link.threads:
                standing = stub.link.standing(snapshot.tid)
                if standing.sequence == snapshot.after or (standing.busy and not standing.done):
                    continue
            self._remove(snapshot)

    def close(self) -> None:
        """Nothing is opened any more."""
        for snapshot in list(self._made):
            self._remove(snapshot)

    def _remove(self, snapshot: _Snapshot) -> None:
        self._made.remove(snapshot)
        snapshot.path.unlink(missing_ok=True)

    def _is_own(self, path: bytes, at: int) -> bool:
        """Whether a path, seen from a directory of the stub's, leads to its own part of /proc."""
        pid = self._away.pid
        directory = os.readlink(f"/proc/{pid}/cwd" if at == _AT_FDCWD else f"/proc/{pid}/fd/{at}")
        found = os.path.normpath(os.path.join(directory, os.fsdecode(path)))
        return found.startswith(f"/proc/{pid}/")

    def _make(self, tid: int, fields: dict[str, object]) -> bytes:
        """The path of the file; empty: home's own is as good, or home has no such thing, which its open will say. Errors: OSError:
        none can be made here; ValueError and its like: nonsense was asked for."""
        stub = self._away.stub
        name, thread = str(fields["name"]), int(str(fields["thread"]))
        if name not in proc_texts.NAMES:
            raise ValueError(f"no such file: {name!r}")
        reading = zlib.decompressobj()
        guest = reading.decompress(_bytes(fields["text"]), TEXT_MOST)
        if not reading.eof:
            raise ValueError("more than any such file has")
        process = place = f"/proc/{self._away.pid}"
        hosts = {stub.program_tid(host): host for host in stub.tids}
        if thread:
            if thread not in hosts:
                return b""
            place += f"/task/{hosts[thread]}"
        # By the thread that asks: the first may have ended, and has no root directory then.
        if os.readlink(f"{process}/task/{hosts.get(tid, stub.pid)}/root") != "/":
            raise OSError(f"process {self._away.pid} has a root directory of its own")
        try:
            status = os.stat(f"{place}/{name}")
        except FileNotFoundError:
            return b""
        asks_itself = tid == (thread or stub.program_tid(stub.pid))
        whose = thread or stub.program_tid(stub.pid)
        used = proc_texts.Used.of(account.check(fields["used"]), whose, bool(thread), children.in_all(stub.pid))
        names = self._away.mappings.names()
        text = proc_texts.compose(name, place, guest, names, used, asks_itself)
        if text == Path(f"{place}/{name}").read_bytes():
            return b""
        path = self._directory() / f"{os.getpid()}-{secrets.token_hex(16)}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o400)
        self._made.append(_Snapshot(path, tid, stub.link.standing(tid).sequence))
        with open(descriptor, "wb") as file:
            os.fchown(descriptor, status.st_uid, status.st_gid)
            os.fchmod(descriptor, status.st_mode & 0o777)
            file.write(text)
        return os.fsencode(path)

    def _directory(self) -> Path:
        directory = self._place
        directory.mkdir(mode=0o711, exist_ok=True)
        if not self._made:
            _remove_orphans(directory)
        room = os.statvfs(directory)
        if room.f_bavail * FREE_LEAST < room.f_blocks:
            raise OSError(f"{directory} is about to be full")
        return directory


def _remove_orphans(directory: Path) -> None:
    """What deputies have left that were killed."""
    for path in directory.iterdir():
        if not os.path.exists(f"/proc/{path.name.partition('-')[0]}"):
            path.unlink(missing_ok=True)


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("no text")
    return value
