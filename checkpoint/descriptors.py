"""The open files of a process, as a checkpoint keeps them, and those that none can keep."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from checkpoint.errors import CheckpointRefused
from checkpoint.record import DEVICE, DIRECTORY, FILE, STANDARD, Descriptor, File, OpenFile
from kernel_helpers.process.syscalls import SYS

DEVICES = {(1, 3): "/dev/null", (1, 5): "/dev/zero", (1, 7): "/dev/full", (1, 8): "/dev/random", (1, 9): "/dev/urandom"}
"""Files that are the same for every process that opens them."""
STANDARD_NUMBERS = range(3)
_TERMINALS = frozenset({4, 5, 136, 137, 138, 139, 140, 141, 142, 143})
_KCMP_FILE = 0
_ANONYMOUS = {
    "[eventpoll]": "an epoll instance", "[eventfd]": "an eventfd", "[timerfd]": "a timerfd", "inotify": "an inotify instance",
    "[fanotify]": "a fanotify group", "[signalfd]": "a signalfd", "[pidfd]": "a pidfd", "[io_uring]": "io_uring",
}  # fmt: skip
_IGNORED_FLAGS = os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Info:
    """What /proc/PID/fdinfo reports about a descriptor: offset in bytes; flags, O_CLOEXEC included; lock: of what kind, or empty."""

    offset: int
    flags: int
    lock: str


def numbers(pid: int) -> list[int]:
    """Return the descriptors of a process, in order. Errors: ProcessLookupError."""
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, f"no process {pid}") from None


def info(pid: int, number: int) -> Info:
    """Errors: OSError."""
    offset = flags = 0
    lock = ""
    with open(f"/proc/{pid}/fdinfo/{number}", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name == "pos":
                offset = int(value)
            elif name == "flags":
                flags = int(value, 8)
            elif name == "lock":
                lock = " ".join(value.split()[1:4])
    return Info(offset, flags, lock)


def read(pid: int) -> tuple[OpenFile, ...]:
    """Return the open files of a process that does not open or close any meanwhile. Errors: CheckpointRefused, OSError."""
    groups: list[OpenFile] = []
    alike: dict[tuple[int, int, int], list[int]] = {}
    for number in numbers(pid):
        found = _describe(pid, number)
        if found is None:
            continue
        file, key = found
        for index in alike.setdefault(key, []):
            if _is_same(pid, groups[index].numbers[0].number, number):
                groups[index] = replace(groups[index], numbers=(*groups[index].numbers, *file.numbers))
                break
        else:
            alike[key].append(len(groups))
            groups.append(file)
    for file in groups:
        reason = _why_not_standard(pid, file)
        if reason is not None:
            raise CheckpointRefused(pid, reason)
    return tuple(groups)


def _describe(pid: int, number: int) -> tuple[OpenFile, tuple[int, int, int]] | None:
    """One descriptor as an open file of its own, and what it has in common with those that are the same. None: it is closed by now."""
    link = f"/proc/{pid}/fd/{number}"
    try:
        target, status, reported = os.readlink(link), os.stat(link), info(pid, number)
    except FileNotFoundError:
        return None
    flags = reported.flags & ~_IGNORED_FLAGS
    kind, reason = _kind(target, status)
    if reason is None:
        reason = _hindrance(target, status, reported, kind)
    if reason is not None:
        raise CheckpointRefused(pid, f"{reason} (descriptor {number})")
    path = {DEVICE: DEVICES.get((os.major(status.st_rdev), os.minor(status.st_rdev)), ""), STANDARD: "/"}.get(kind, target)
    file = File(path, status.st_ino, status.st_size if kind == FILE else 0, status.st_mtime_ns)
    descriptor = Descriptor(number, bool(reported.flags & os.O_CLOEXEC))
    return OpenFile(kind, (descriptor,), file, flags, reported.offset), (status.st_dev, status.st_ino, flags)


def _kind(target: str, status: os.stat_result) -> tuple[str, str | None]:
    """What kind of an open file it is, and why there is none for it."""
    mode = status.st_mode
    if stat.S_ISREG(mode):
        return FILE, None
    if stat.S_ISDIR(mode):
        return DIRECTORY, None
    if stat.S_ISCHR(mode):
        device = os.major(status.st_rdev), os.minor(status.st_rdev)
        if device in DEVICES:
            return DEVICE, None
        return STANDARD, None if device[0] in _TERMINALS else f"it has the device {target} open"
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return STANDARD, None
    if stat.S_ISBLK(mode):
        return STANDARD, f"it has the device {target} open"
    name = target.removeprefix("anon_inode:")
    return STANDARD, f"it has {_ANONYMOUS.get(name, name)} open"


def _hindrance(target: str, status: os.stat_result, reported: Info, kind: str) -> str | None:
    if reported.lock:
        return f"it holds a lock ({reported.lock.lower()}) on {target}"
    if reported.flags & os.O_ASYNC:
        return f"it is sent a signal when {target} is ready (O_ASYNC)"
    if kind not in (FILE, DIRECTORY):
        return None
    if target.startswith("/memfd:"):
        return f"it has memory open as a file ({target.removesuffix(' (deleted)')})"
    if status.st_nlink == 0:
        return f"it has {target.removesuffix(' (deleted)')} open, which is deleted"
    if status.st_dev == os.stat("/proc").st_dev:
        return f"it has {target} open, which shows the moment"
    try:
        named = os.stat(target, follow_symlinks=False)
    except OSError:
        named = None
    if named is None or (named.st_dev, named.st_ino) != (status.st_dev, status.st_ino):
        return f"it has {target} open, which is not to be found by that name any more"
    return None


def _why_not_standard(pid: int, file: OpenFile) -> str | None:
    """Terminals, pipes and sockets are those of the user who restarts it, if they are standard input, output or error."""
    if file.kind != STANDARD or any(descriptor.number in STANDARD_NUMBERS for descriptor in file.numbers):
        return None
    number = file.numbers[0].number
    mode = os.stat(f"/proc/{pid}/fd/{number}").st_mode
    what = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a terminal"
    return f"it has {what} open that is not its standard input, output or error (descriptor {number})"


def _is_same(pid: int, first: int, second: int) -> bool:
    """Whether two descriptors share their offset. Errors: CheckpointRefused: this kernel does not report it."""
    result = _libc.syscall(SYS.kcmp, pid, pid, _KCMP_FILE, first, second)
    if result < 0:
        raise CheckpointRefused(pid, f"the kernel does not say whether descriptors {first} and {second} are one file")
    return int(result) == 0


def inodes_written(files: Sequence[OpenFile]) -> Iterator[int]:
    """Inodes of files that the process can write."""
    return (file.file.inode for file in files if file.is_written)
