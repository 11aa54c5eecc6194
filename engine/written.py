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

from engine.alone import may_be
from engine.files import FileMapping, by_mapping, file_system
from kernel_helpers.sharing import who_has

_KERNELS_OWN = {0x9FA0: "/proc", 0x62656572: "/sys", 0x64626720: "debugfs", 0x74726163: "tracefs"}
"""Types of file systems whose files are what the kernel has to say at the moment."""
_NO_FILES = ("/SYSV", "/[aio]", "/anon_hugepage", "/dev/zero", "/secretmem")


def is_kernels_own(descriptor: int) -> bool:
    """Whether a file is one in which the kernel tells something. Errors: OSError."""
    return file_system(descriptor) in _KERNELS_OWN


def is_open_for_writing(descriptor: int) -> bool:
    """Whether anybody has the file open so, of which this descriptor is for reading alone: then no read lease is to be had (fcntl(2),
    F_SETLEASE). A file system that has no leases tells nothing."""
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # who opens it in between has us told: by a signal that is ignored
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def why_not(pid: int, maps: Sequence[FileMapping]) -> Iterator[str]:
    """What keeps a process at home of the files that it has mapped: that they are open for writing, or the kernel's own. Errors:
    OSError."""
    files: dict[tuple[str, int], FileMapping] = {}
    for m in maps:
        is_object = m.permissions[3] == "s" and may_be(m.path)
        if m.inode and m.path.startswith("/") and not m.path.startswith(_NO_FILES) and not is_object:
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
                    yield f"it has {path} mapped, in which the kernel of this node tells something"
                elif is_open_for_writing(descriptor):
                    yield f"it has {path} mapped, which is open for writing"
                elif path.startswith("/memfd:"):
                    memory.append((status.st_dev, status.st_ino))
            finally:
                os.close(descriptor)
    # A memfd does not count who may write it.
    if memory and (holder := who_has(pid, memory, only_shared=True)) is not None:
        if holder.pid != pid:
            yield f"it has memory mapped (memfd) that process {holder.pid} may write"
        else:
            yield "it has memory mapped (memfd) that it has open, and may write so"


__all__ = ["is_kernels_own", "is_open_for_writing", "why_not"]
