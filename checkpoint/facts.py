"""What a record has of a process besides its context: its program and mapped files, its directory, its limits and timers."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence

from checkpoint.errors import CheckpointRefused
from checkpoint.record import LIMITS, TIMERS, File
from engine.context.capture import NO_LIMIT
from engine.mappings.address_space import exceptional
from engine.mappings.mappings import Mapping
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS


def mapped(pid: int, maps: Sequence[Mapping], is_written: set[int]) -> Iterator[File]:
    """Program and mapped files, each once. Errors: CheckpointRefused, OSError."""
    links = {f"/proc/{pid}/exe": os.readlink(f"/proc/{pid}/exe")}
    known = set()
    for m in exceptional(maps):
        if not m.is_file and not m.private and not m.special:
            raise CheckpointRefused(pid, "it shares memory that has no file")
        if m.is_file and (m.path, m.identity) not in known:
            known.add((m.path, m.identity))
            links[f"/proc/{pid}/map_files/{m.start:x}-{m.end:x}"] = m.path.replace("\\012", "\n")
    for link, path in links.items():
        file = os.stat(link)
        try:
            named = os.stat(path, follow_symlinks=False)
        except OSError:
            named = None
        if named is None or (named.st_dev, named.st_ino) != (file.st_dev, file.st_ino):
            raise CheckpointRefused(pid, f"it has {path.removesuffix(' (deleted)')} mapped, which is not to be found by that name any more")
        if file.st_ino in is_written:
            raise CheckpointRefused(pid, f"it writes {path}, which it has mapped")
        yield File(path, file.st_ino, file.st_size, file.st_mtime_ns)


def program(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/exe")


def command(pid: int) -> str:
    with open(f"/proc/{pid}/cmdline", "rb") as source:
        text = source.read(4096).rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in text)[:200]


def cwd(pid: int) -> File:
    path = os.readlink(f"/proc/{pid}/cwd")
    found = os.stat(f"/proc/{pid}/cwd")
    if found.st_nlink == 0:
        raise CheckpointRefused(pid, "its working directory is deleted")
    return File(path, found.st_ino, 0, 0)


def limits(pid: int) -> tuple[tuple[int, int], ...]:
    """Soft and hard, by number: the kernel lists them in that order."""
    with open(f"/proc/{pid}/limits", encoding="ascii", errors="replace") as lines:
        rows = [line[26:].split()[:2] for line in lines][1 : LIMITS + 1]
    soft_and_hard = [[NO_LIMIT if word == "unlimited" else int(word) for word in row] for row in rows]
    return tuple((soft, hard) for soft, hard in soft_and_hard)


def timers(frozen: Frozen) -> tuple[tuple[int, int], ...]:
    """Return what getitimer(2) reports: interval and what is left, microseconds. Errors: OSError."""
    found = []
    with frozen.scratch(64) as scratch:
        for which in range(TIMERS):
            frozen.call(SYS.getitimer, which, scratch)
            every, every_more, left, left_more = struct.unpack("<4q", frozen.read(scratch, 32))
            found.append((every * 1_000_000 + every_more, left * 1_000_000 + left_more))
    return tuple(found)
