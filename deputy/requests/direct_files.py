"""Files of a process that is away and reads them again and again: whether its node may read them itself, and their positions
(docs/files.md; remote/requests/direct_files.py draws the conversation).

A file of the node where the process is, which home knows through its own /mfs, is opened there by its path.

A descriptor's position belongs to all who have it. So only what nobody else has is read elsewhere; what the guest has opened away it
knows itself, of what is older all processes of the node are asked. If there is somebody, calls that name the place in the file may still
read it: they do nothing to the position, which stays here.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import queue
import secrets
import socket
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_helpers.link.ends.direct_files import POSITION
from kernel_helpers.link.ends.events import Event
from mfs.mounts import MFS, Mount, mounts
from wire.control import Control, unpack
from wire.frames import WireError
from wire.logs import start_thread

if TYPE_CHECKING:
    from deputy.away import Away
    from deputy.link.guestlink import GuestLink

log = logging.getLogger("deputy")

KINDS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs"})
"""File systems that are a node's own, where leases keep what is remembered elsewhere true."""
STANDARD = 3
"""Descriptors below are those that a program is started with: where other processes are hidden from us, they may have them."""
_UNFIT = os.O_ACCMODE | os.O_DIRECT | os.O_PATH
_INITIAL_PIDS = "pid:[4026531836]"
"""The first pid namespace (PROC_PID_INIT_INO): all processes are seen there."""
_SYS_KCMP, _SYS_PIDFD_GETFD, _KCMP_FILE, _KCMP_FILES = 312, 438, 0, 2
_libc = ctypes.CDLL(None, use_errno=True)


class DirectFiles:
    """Of one process."""

    def __init__(self, away: Away, port: int, deposits: Path, wake: Callable[[], None]) -> None:
        """port: of the node's file server, which takes files at the socket `deposits`; 0: nothing is read elsewhere. wake: makes the loop
        turn."""
        self._away = away
        self._port = port
        self._deposits = deposits
        self._wake = wake
        self._answers: queue.SimpleQueue[tuple[GuestLink, dict[str, Any]]] = queue.SimpleQueue()
        self._asked: dict[int, tuple[int, int]] = {}
        """number -> device and inode of what it was"""

    def handle(self, event: Event) -> bool:
        """Return whether a frame from the remote was about such files, and has been dealt with. Errors: WireError."""
        link = self._away.link
        if event.kind not in (Control.READS, Control.POSITION, Control.POSITIONS):
            return False
        if event.kind == Control.POSITIONS:
            try:
                _set_all(self._away.pid, POSITION.iter_unpack(event.data))
            finally:
                link.home.release()
            return True
        fields = unpack(event.data)
        try:
            number, serial = int(fields["number"]), int(fields["serial"])
        except (KeyError, TypeError, ValueError):
            raise WireError("a question about a file that names none") from None
        if event.kind == Control.POSITION:
            link.send(Control.POSITIONED, number=number, serial=serial, position=self._position(number))
        else:
            start_thread("direct", self._consider, link, number, serial, bool(fields.get("own")), bool(fields.get("placed")))
        return True

    def poll(self) -> None:
        """Answers what was asked."""
        while not self._answers.empty():
            link, answer = self._answers.get()
            if link is self._away.link:
                link.send(Control.DIRECTED, **answer)

    def _consider(self, link: GuestLink, number: int, serial: int, is_own: bool, is_placed: bool) -> None:
        """In a thread of its own: there may be many processes."""
        pid, port, peer, how = self._away.pid, self._port, link.target.node, dict[str, Any]()
        try:
            mount = mount_to_read(pid, number) if port else None
            if mount is not None and has_one_table(pid):
                is_shared = not is_own and not is_alone(pid, number)
                if is_shared and not is_placed:
                    log.info("descriptor %d is not read elsewhere: others have its position", number)
                elif mount.kind in KINDS:
                    how = {"port": port, "token": self._deposit(peer, number), "shared": is_shared}
                elif (mount.kind, mount.source) == (MFS, f"{peer}:/"):
                    how = {**self._name(number, mount), "shared": is_shared}
        except (OSError, KeyError, ValueError) as error:
            log.info("descriptor %d is not read elsewhere: %s", number, error)
        self._answers.put((link, {"number": number, "serial": serial, **how}))
        self._wake()

    def _name(self, number: int, mount: Mount) -> dict[str, Any]:
        """What a file of the peer's is called there, and its inode. Errors: OSError."""
        descriptor = f"/proc/{self._away.pid}/fd/{number}"
        path, found = os.readlink(descriptor), os.stat(descriptor)
        if not path.startswith(f"{mount.point}/") or not os.path.samestat(os.lstat(path), found):
            raise FileNotFoundError(errno.ENOENT, "it has no such name any more", path)
        self._asked[number] = (found.st_dev, found.st_ino)
        return {"path": os.fsencode(path[len(mount.point) + 1 :]), "inode": found.st_ino}

    def _deposit(self, peer: str, number: int) -> str:
        """Gives it to the file server; the token under which that peer has it there. Errors: OSError."""
        token = secrets.token_hex(16)
        file = os.open(f"/proc/{self._away.pid}/fd/{number}", os.O_PATH | os.O_CLOEXEC)
        try:
            found = os.fstat(file)
            self._asked[number] = (found.st_dev, found.st_ino)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                message = token.encode().ljust(32, b"\0") + peer.encode().ljust(64, b"\0")
                sender.setblocking(False)
                sender.connect(str(self._deposits))
                socket.send_fds(sender, [message], [file])
        finally:
            os.close(file)
        return token

    # -- positions ----------------------------------------------------------------------------------------------------------

    def _position(self, number: int) -> int:
        """Bytes; -1: it is not the file that was asked about."""
        try:
            found = os.stat(f"/proc/{self._away.pid}/fd/{number}")
            return int(facts(self._away.pid, number)["pos"]) if self._asked.get(number) == (found.st_dev, found.st_ino) else -1
        except (OSError, KeyError, ValueError):
            return -1


def take(away: Away, frozen: dict[str, Any]) -> None:
    """What the guest, which stands still, has sent (FROZEN): the stub's descriptors are where its are. Errors: WireError."""
    try:
        _set_all(away.pid, ((int(number), int(position)) for number, position in frozen.get("positions", [])))
        away.link.home.own_files = [int(number) for number in frozen.get("own", [])]
    except (TypeError, ValueError):
        raise WireError("broken positions of files") from None


def _set_all(pid: int, positions: Iterable[tuple[int, int]]) -> None:
    for number, position in positions:
        try:
            set_position(pid, number, position)
        except OSError as error:
            log.warning("descriptor %d has no position: %s", number, error)


def facts(pid: int, number: int) -> dict[str, str]:
    """Return what the kernel shows of a descriptor of a process. Errors: OSError."""
    with open(f"/proc/{pid}/fdinfo/{number}", encoding="utf-8") as source:
        return {key: value.strip() for key, _, value in (line.partition(":") for line in source)}


def mount_to_read(pid: int, number: int) -> Mount | None:
    """Return the mount of a file that a descriptor has open for reading alone; None also if it is on none of its own. Errors: OSError."""
    found = facts(pid, number)
    if int(found["flags"], 8) & _UNFIT != os.O_RDONLY or not stat.S_ISREG(os.stat(f"/proc/{pid}/fd/{number}").st_mode):
        return None
    return next((mount for mount in mounts(pid=pid) if mount.number == int(found["mnt_id"])), None)


def is_alone(pid: int, number: int) -> bool:
    """Return whether no other descriptor on this node has the same position, nor may have when it is received. Errors: OSError."""
    if number < STANDARD and os.readlink("/proc/self/ns/pid") != _INITIAL_PIDS:
        return False
    return not any(
        _libc.syscall(_SYS_KCMP, pid, other, _KCMP_FILE, number, its) == 0 or has_descriptors(other, its)
        for other, its in _descriptors() if (other, its) != (pid, number)
    )  # fmt: skip


def has_descriptors(pid: int, number: int) -> bool:
    """Return whether it is a socket to which descriptors were sent that nobody has received."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:") and facts(pid, number).get("scm_fds", "0") != "0"
    return False


def has_one_table(pid: int) -> bool:
    """Return whether all threads of a process have the same descriptors, and no other process has. Errors: OSError."""
    others = (other for other in os.listdir("/proc") if other.isdigit() and other != str(pid))
    return all(_has_table_of(pid, tid) for tid in os.listdir(f"/proc/{pid}/task")) and not any(_has_table_of(pid, tid) for tid in others)


def _has_table_of(pid: int, tid: str) -> bool:
    same: int = _libc.syscall(_SYS_KCMP, pid, int(tid), _KCMP_FILES, 0, 0)
    return same == 0


def set_position(pid: int, number: int, position: int) -> None:
    """The file of that descriptor of a process of ours is there. Errors: OSError."""
    pidfd = os.pidfd_open(pid)
    try:
        file = _libc.syscall(_SYS_PIDFD_GETFD, pidfd, number, 0)
        if file < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        try:
            os.lseek(file, position, os.SEEK_SET)
        finally:
            os.close(file)
    finally:
        os.close(pidfd)


def _descriptors() -> Iterator[tuple[int, int]]:
    """(process, number) of all that are open on this node."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                for number in os.listdir(f"/proc/{entry}/fd"):
                    yield int(entry), int(number)
