"""The words of /proc about a process that is away, as it would read them at home.

Each is made of what the guest's node shows of the guest, and what home shows of the stub: names, ids, files, counters of what was done
here are home's; memory, signals and what was computed are the guest's.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from engine.files.files import FileMapping, mappings
from kernel_helpers.usage.account import SECOND, WHOLE
from kernel_helpers.usage.account import Used as Figures

NAMES = frozenset({"maps", "smaps", "smaps_rollup", "numa_maps", "status", "stat", "statm", "cmdline", "environ", "auxv"})
_TICKS = os.sysconf("SC_CLK_TCK")
_OF_GUEST = re.compile(rb"(?:Vm|Rss|Hugetlb).*|SigPnd|ShdPnd|SigBlk|SigIgn|SigCgt")
_HEADER = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) [0-9a-f]+:[0-9a-f]+ (\d+) ?(.*)$")
_NAME_AT = 72
"""Where the kernel begins a mapping's name, but for one blank: task_mmu.c, show_vma_header_prefix() on 64 bits."""
_RUNS = b"R (running)"


@dataclass(frozen=True)
class Used:
    """What the guest has used away from home. user, system: ticks; peak: KiB resident at most."""

    user: int = 0
    system: int = 0
    minor: int = 0
    major: int = 0
    voluntary: int = 0
    involuntary: int = 0
    peak: int = 0
    children_user: int = 0
    children_system: int = 0
    children_minor: int = 0
    children_major: int = 0

    @classmethod
    def of(cls, used: list[list[int]], thread: int, alone: bool, by_children: Figures) -> Used:
        """For a thread's own files if `alone`, else for the process's, in which the switches are those of its first thread. by_children: by
        those that have ended away."""
        rows = {tid: fields for tid, *fields in used}
        nothing = [0] * 8
        times = rows.get(thread if alone else WHOLE, nothing)
        switches = rows.get(thread, nothing)
        ticks = [nanoseconds * _TICKS // SECOND for nanoseconds in times[1:3]]
        return cls(
            ticks[0], ticks[1], times[3], times[4], switches[5], switches[6], rows.get(WHOLE, nothing)[7],
            by_children.user * _TICKS // SECOND, by_children.system * _TICKS // SECOND, by_children.minor, by_children.major,
        )  # fmt: skip


def compose(name: str, place: str, guest: bytes, names: dict[str, str], used: Used, asks_itself: bool) -> bytes:
    """Return the file `name` of NAMES. place: where home has it, /proc/PID or /proc/PID/task/TID; guest: what the guest's node has there;
    names: what that calls each file, by its identity at home (deputy/requests/mapping.py); asks_itself: the thread that it is about is the
    one that reads. Errors: OSError, ValueError."""
    if name in ("maps", "smaps"):
        return _with_homes_files(guest, mappings(int(place.split("/")[2])), names)
    if name == "status":
        return _status(_read(place, name), guest, used, asks_itself)
    if name == "stat":
        return _stat(_read(place, name), guest, used, asks_itself)
    return guest


def _read(place: str, name: str) -> bytes:
    with open(f"{place}/{name}", "rb") as file:
        return file.read()


def _with_homes_files(guest: bytes, stub: list[FileMapping], names: dict[str, str]) -> bytes:
    """The guest's mappings, in which files are those of home: name, device and inode of each, by what the stub has mapped."""
    files = [mapping for mapping in stub if mapping.inode]
    named = {os.fsencode(names[identity]): m for m in files if (identity := f"{m.device} {m.inode}") in names}
    lines = []
    for line in guest.split(b"\n"):
        found = _HEADER.match(line)
        if found is not None and found.group(5) != b"0":
            start, end, permissions, offset, _, _ = found.groups()
            path = found.group(6).lstrip(b" ")
            home = named.get(path) or _same(files, int(start, 16), int(end, 16), int(offset, 16), path)
            if home is not None:
                head = b"%s-%s %s %s %s %d " % (start, end, permissions, offset, home.device.encode(), home.inode)
                lines.append(head.ljust(_NAME_AT) + b" " + os.fsencode(home.path.replace("\n", "\\012")))
                continue
        lines.append(line)
    return b"\n".join(lines)


def _same(files: list[FileMapping], start: int, end: int, offset: int, path: bytes) -> FileMapping | None:
    """The stub's mapping of the file that the guest has there: the one at the same place, or any of that name."""
    here = next((m for m in files if m.start <= start and end <= m.end and m.offset + start - m.start == offset), None)
    return here or next((m for m in files if os.fsencode(m.path) == path), None)


def _state(home: bytes, guest: bytes, asks_itself: bool) -> bytes:
    """Letter and word; a stop is ours, and of a moment. What has ended at home has ended."""
    if asks_itself:
        return _RUNS
    if home[:1] in (b"Z", b"X"):
        return home
    return b"S (sleeping)" if guest[:1] in (b"t", b"T", b"") else guest


def _fields(text: bytes) -> dict[bytes, bytes]:
    return {name: value.strip() for name, colon, value in (line.partition(b":") for line in text.splitlines()) if colon}


def _status(home: bytes, guest: bytes, used: Used, asks_itself: bool) -> bytes:
    """/proc/PID/status."""
    there, here = _fields(guest), _fields(home)
    changed = {name: there[name] for name in here if _OF_GUEST.fullmatch(name) and name in there}
    for name in (b"SigPnd", b"ShdPnd"):  # those that wait at home are in a signalfd
        if name in changed:
            changed[name] = b"%016x" % (int(changed[name], 16) | int(here[name], 16))
    changed[b"State"] = _state(here.get(b"State", b""), there.get(b"State", b""), asks_itself)
    changed[b"TracerPid"] = b"0"
    for name, more in ((b"voluntary_ctxt_switches", used.voluntary), (b"nonvoluntary_ctxt_switches", used.involuntary)):
        if name in here:
            changed[name] = b"%d" % (int(here[name]) + more)
    if b"VmHWM" in changed:
        changed[b"VmHWM"] = b"%8d kB" % max(*(int(text[b"VmHWM"].split()[0]) for text in (here, there)), used.peak)
    lines = []
    for line in home.splitlines():
        name = line.partition(b":")[0]
        if name in changed:
            value = changed[name]
            # Sizes stand in a column of their own.
            lines.append(b"%s:\t%s" % (name, value.rjust(11) if value.endswith(b" kB") else value))
        else:
            lines.append(line)
    return b"\n".join(lines) + b"\n"


def _stat(home: bytes, guest: bytes, used: Used, asks_itself: bool) -> bytes:
    """/proc/PID/stat; fields are numbered as in proc(5)."""
    head, there = home.rpartition(b")")[0], guest.rpartition(b")")[2].split()
    fields = home.rpartition(b")")[2].split()
    for number in (23, 24, 31, 32, 33, 34, 39):  # memory in all and resident, four masks of signals, processor
        fields[number - 3] = there[number - 3]
    own = ((10, used.minor), (12, used.major), (14, used.user), (15, used.system))
    by_children = (11, used.children_minor), (13, used.children_major), (16, used.children_user), (17, used.children_system)
    for number, more in (*own, *by_children):
        fields[number - 3] = b"%d" % (int(fields[number - 3]) + more)
    fields[0] = _state(fields[0], there[0], asks_itself)[:1]
    return head + b") " + b" ".join(fields) + b"\n"
