"""The memory mappings of a process, as /proc/PID/smaps reports them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

PAGE = 4096
PROT_READ, PROT_WRITE, PROT_EXEC = 1, 2, 4
MAP_SHARED, MAP_PRIVATE = 1, 2
HIGHEST_ADDRESS = 1 << 56
"""end of user space with five-level page tables"""

# Mapped by the kernel of the node itself: they never move.
SPECIAL = frozenset({"[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]", "[uprobes]"})
# VmFlags that a program can ask for, with mmap, madvise or mlock, and that a move carries.
CARRIED_FLAGS = frozenset({"gd", "nr", "ac", "dc", "dd", "wf", "hg", "nh", "mg", "sr", "rr", "lo", "lf", "dp"})

NO_FLAGS: frozenset[str] = frozenset()

# The kernel's mark of names that lost their file, and CRIU's names for files that had none.
_LOST = " (deleted)"
_LOST_NAME = re.compile(r"(?:\.cr\.[0-9a-f]+\.ghost|\.cr_link)?(?: \(deleted\))?$")


@dataclass(frozen=True)
class Mapping:
    """One mapping [start, end): prot as PROT_*, flags MAP_SHARED or MAP_PRIVATE, offset in the file in bytes.

    path: the file's, or the kernel's name in brackets, or empty. own: bytes of pages of the process's own, swapped
    ones too, as of the moment of reading. vmflags: those of CARRIED_FLAGS. identity: device and inode of the file, which mean
    something on this node only. watched: writes to it are noted (engine/pour/precopy.py).
    """

    start: int
    end: int
    prot: int
    flags: int
    offset: int
    path: str
    is_file: bool
    vmflags: frozenset[str] = frozenset()
    own: int = 0
    identity: str = field(default="", compare=False)
    watched: bool = field(default=False, compare=False)

    @property
    def special(self) -> bool:
        """Whether it is a mapping of the kernel itself (vdso and its data)."""
        return not self.is_file and self.path in SPECIAL

    @property
    def length(self) -> int:
        """Bytes."""
        return self.end - self.start

    @property
    def private(self) -> bool:
        """Whether it is MAP_PRIVATE."""
        return self.flags == MAP_PRIVATE

    @cached_property
    def file(self) -> str:
        """The path, with the same mark behind it whatever the kernel or CRIU append when the file has lost its name."""
        bare = _LOST_NAME.sub("", self.path)
        return bare if bare == self.path else bare + _LOST

    @property
    def name(self) -> str:
        """The name that PR_SET_VMA_ANON_NAME gave, or empty."""
        return self.path[6:-1] if not self.is_file and self.path.startswith("[anon:") else ""


_HEADER = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) ([r-])([w-])([x-])([ps]) ([0-9a-f]+) (\S+) (\d+) *(.*)\n((?:[A-Z].*\n)*)", re.MULTILINE)
_OWN = re.compile(r"^(?:Anonymous|Swap): +(\d+) kB", re.MULTILINE)
_FLAGS = re.compile(r"^VmFlags:(.*)", re.MULTILINE)


def read_mappings(pid: int) -> tuple[Mapping, ...]:
    """Return all mappings of pid but [vsyscall], by address. The kernel looks at every page for it: some 30 ms for each GiB. Errors:
    OSError (gone: FileNotFoundError, ProcessLookupError)."""
    return _read(pid, "smaps")


def read_places(pid: int) -> tuple[Mapping, ...]:
    """Return the same without `vmflags`, `own` and `watched`, whatever their size in a moment."""
    return _read(pid, "maps")


def _read(pid: int, name: str) -> tuple[Mapping, ...]:
    with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="surrogateescape", newline="\n") as source:
        return _parsed(source.read())


def _parsed(text: str) -> tuple[Mapping, ...]:
    found = []
    for match in _HEADER.finditer(text):
        start, end, r, w, x, sharing, offset, device, inode, path, body = match.groups()
        if path == "[vsyscall]":
            continue
        flags = _FLAGS.search(body) if body else None
        words = flags.group(1).split() if flags else []
        is_file = inode != "0"
        found.append(
            made(
                start=int(start, 16),
                end=int(end, 16),
                prot=(r == "r") * PROT_READ | (w == "w") * PROT_WRITE | (x == "x") * PROT_EXEC,
                flags=MAP_SHARED if sharing == "s" else MAP_PRIVATE,
                offset=int(offset, 16) if is_file else 0,
                path=path,
                is_file=is_file,
                vmflags=CARRIED_FLAGS.intersection(words) if words else NO_FLAGS,
                own=1024 * sum(int(size) for size in _OWN.findall(body)) if body else 0,
                identity=f"{device} {inode}" if is_file else "",
                watched="uw" in words,
            )
        )
    return tuple(found)


def made(**fields: object) -> Mapping:
    """One with all of these fields, each of which must be there: of tens of thousands, in a third of the time that Mapping() takes."""
    mapping = object.__new__(Mapping)
    mapping.__dict__.update(fields)
    return mapping


def free_address(taken: Iterable[tuple[int, int]], length: int, lowest: int = 0x10000000) -> int:
    """Return the lowest address from `lowest` on where `length` bytes lie outside all of taken, a page away from each."""
    at = lowest
    for start, end in sorted(taken):
        if at + length + PAGE <= start:
            break
        at = max(at, end + PAGE)
    return at
