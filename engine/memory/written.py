"""Files that a process has mapped and that somebody may write: pages of such a mapping that it has not written itself show what is written,
and away they would not."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress

from engine.files.files import FileMapping, by_mapping, file_system, named_mappings
from engine.memory.alone import may_be
from kernel_helpers.inspection.sharing import MAPPED, UNDER_WAY, who_has

_KERNELS_OWN = {0x9FA0: "/proc", 0x62656572: "/sys", 0x64626720: "debugfs", 0x74726163: "tracefs"}
"""Types of file systems whose files are what the kernel has to say at the moment."""
_NO_FILES = ("/SYSV", "/[aio]", "/anon_hugepage", "/dev/zero", "/secretmem")
_MEMFD = "/memfd:"


def is_file(mapping: FileMapping, or_memfd: bool = False) -> bool:
    """Return whether what is mapped counts as a file that somebody may write: no memory of the kernel's, and none that goes along as an
    object (alone.py). The caller must distinguish devices before opening one. or_memfd: a memfd does, too, though its kernel does not count
    who has it open for writing."""
    if not mapping.inode or not mapping.path.startswith("/") or mapping.path.startswith(_NO_FILES):
        return False
    if mapping.permissions[3] == "s" and may_be(mapping.path):
        return False
    return or_memfd or not mapping.path.startswith(_MEMFD)


def is_kernels_own(descriptor: int) -> bool:
    """Return whether a file is one in which the kernel reports something. Errors: OSError."""
    return file_system(descriptor) in _KERNELS_OWN


def is_open_for_writing(descriptor: int) -> bool:
    """Return whether the kernel refuses a read lease on the file, because it is open for writing (fcntl(2), F_SETLEASE). descriptor: open
    for reading alone. False, too, where the file system has no leases."""
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # the kernel signals a lease that is broken: SIGURG is ignored
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def can_be_written(pid: int, device: int, inode: int) -> bool:
    """Return whether somebody can write a file (st_dev, st_ino) that is open for writing, and that process `pid` has mapped: by a
    descriptor, or one that may be on its way to them, or by shared memory. A private mapping keeps its file open as it was opened, and
    writes nothing to it; only where one does is there more to ask. Errors: OSError."""
    if not any(m.inode == inode and _keeps_open(pid, m) for m in named_mappings(pid)):
        return True
    holder = who_has(pid, [(device, inode)], only_shared=True)
    if holder is not None and holder.how in (MAPPED, UNDER_WAY):
        return True
    return any(_writes(process, device, inode) for process in os.listdir("/proc") if process.isdigit())


def _keeps_open(pid: int, mapping: FileMapping) -> bool:
    with suppress(FileNotFoundError):  # it has been unmapped
        return bool(os.lstat(by_mapping(pid, mapping.start, mapping.end)).st_mode & stat.S_IWUSR)
    return False


def _writes(process: str, device: int, inode: int) -> bool:
    """Whether a process has a descriptor for writing of the file. Only files of that number are asked anything: others may not answer."""
    try:
        descriptors = os.listdir(f"/proc/{process}/fd")
    except OSError:
        return False  # it has ended
    for number in descriptors:
        link = f"/proc/{process}/fd/{number}"
        with suppress(OSError):  # it has been closed
            if not os.lstat(link).st_mode & stat.S_IWUSR or not os.readlink(link).startswith("/"):
                continue
            with open(f"/proc/{process}/fdinfo/{number}", encoding="ascii") as reported:
                if f"\nino:\t{inode}\n" not in reported.read():
                    continue
            status = os.stat(link)
            if (status.st_dev, status.st_ino) == (device, inode):
                return True
    return False


def why_not(pid: int, maps: Sequence[FileMapping]) -> Iterator[str]:
    """What keeps a process at home of the files that it has mapped: that they are open for writing, or the kernel's own. Errors:
    OSError."""
    files: dict[tuple[str, int], FileMapping] = {}
    for m in maps:
        if is_file(m, or_memfd=True):
            files.setdefault((m.device, m.inode), m)
    for m in maps:
        if m.permissions[1] == "w" and m.permissions[3] == "s":
            files.pop((m.device, m.inode), None)  # which is a reason by itself
    memory: list[tuple[int, int]] = []
    for m in files.values():
        path = m.path.removesuffix(" (deleted)")
        with suppress(FileNotFoundError):  # it has been unmapped
            place = os.open(by_mapping(pid, m.start, m.end), os.O_PATH | os.O_CLOEXEC)
            try:
                status = os.fstat(place)
                if not stat.S_ISREG(status.st_mode):
                    continue
                descriptor = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            finally:
                os.close(place)
            try:
                if is_kernels_own(descriptor):
                    yield f"it has {path} mapped, by which the kernel of this node says something"
                elif is_open_for_writing(descriptor) and can_be_written(pid, status.st_dev, status.st_ino):
                    yield f"it has {path} mapped, which is open for writing"
                elif path.startswith(_MEMFD):
                    memory.append((status.st_dev, status.st_ino))
            finally:
                os.close(descriptor)
    # A memfd does not count who may write it.
    if memory and (holder := who_has(pid, memory, only_shared=True)) is not None:
        if holder.pid != pid:
            yield f"it has memory mapped (memfd) that process {holder.pid} may write"
        else:
            yield "it has memory mapped (memfd) that it has open, and may write so"


__all__ = ["can_be_written", "is_file", "is_kernels_own", "is_open_for_writing", "why_not"]
