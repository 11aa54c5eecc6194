"""What /proc reports about a process; a process is (pid, start time), never a bare pid."""

from __future__ import annotations

import grp
import os
import pwd
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from node.common import kernel_files
from node.common.aside import Aside

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
_MOSRUN = frozenset({"mosrun", "mosrun-private"})
_aside = Aside()


@dataclass(frozen=True)
class ProcessStat:
    """The fields of /proc/PID/stat that are used here; starttime in clock ticks after boot, cpu in seconds."""

    state: str
    parent: int
    starttime: int
    cpu: float
    resident: int


def read_stat(pid: int) -> ProcessStat | None:
    """None if there is no such process."""
    try:
        data = kernel_files.read(f"/proc/{pid}/stat")
    except OSError:
        return None
    # The command may hold spaces and parentheses: what counts comes after the last one.
    fields = data[data.rindex(b")") + 2 :].split()
    return ProcessStat(
        state=fields[0].decode(),
        parent=int(fields[1]),
        starttime=int(fields[19]),
        cpu=(int(fields[11]) + int(fields[12])) / TICKS,
        resident=int(fields[21]) * PAGE,
    )


def age(stat: ProcessStat) -> float:
    """Return seconds since the process began."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - stat.starttime / TICKS


def born_at(starttime: int) -> float:
    """Return when a process began, in seconds since the epoch."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + starttime / TICKS


def is_alive(pid: int, starttime: int) -> bool:
    """Return whether that very process still runs (a zombie does not)."""
    stat = read_stat(pid)
    return stat is not None and stat.starttime == starttime and stat.state not in "ZX"


def real_uid(pid: int) -> int | None:
    """Return the real user of a process, None if it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as source:
            for line in source:
                if line.startswith(b"Uid:"):
                    return int(line.split()[1])
    except OSError:
        pass
    return None


def is_traced(pid: int) -> bool:
    """Return whether a process has a tracer."""
    try:
        with open(f"/proc/{pid}/status", "rb") as source:
            return any(line.startswith(b"TracerPid:") and int(line.split()[1]) != 0 for line in source)
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """Pids of the children of all threads of a process."""
    found: list[int] = []
    try:
        for tid in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{tid}/children", "rb") as source:
                found += [int(word) for word in source.read().split()]
    except OSError:
        pass
    return found


def traffic(pids: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return how many calls each process has made that read or write, and how many bytes those were; of those that the kernel reports."""
    return {pid: done for pid, done in _aside.ask(_traffic, pids).items() if done is not None}


def _traffic(pid: int) -> tuple[int, int] | None:
    try:
        lines = kernel_files.read(f"/proc/{pid}/io").splitlines()
        values = {name: int(value) for name, _, value in (line.partition(b":") for line in lines)}
        return values[b"syscr"] + values[b"syscw"], values[b"rchar"] + values[b"wchar"]
    except (OSError, KeyError, ValueError):
        return None


def far_positions(pid: int, tree: str) -> dict[tuple[int, str], int]:
    """Return where a process's descriptors of files of other nodes are, in bytes; by number and path below the tree of all nodes' files."""
    found = {}
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError, ValueError):
                path = os.readlink(f"/proc/{pid}/fd/{number}")
                if path.startswith(f"{tree}/"):
                    with open(f"/proc/{pid}/fdinfo/{number}", "rb") as source:
                        found[int(number), path[len(tree) + 1 :]] = int(source.readline().partition(b":")[2])
    return found


def is_mosrun(pid: int) -> bool:
    """Return whether a process is mosrun, or what it is for a moment (-X), and has not become its program yet."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).removesuffix(" (deleted)") in _MOSRUN
    except OSError:
        return False


def command_line(pid: int) -> str:
    """The command as ps shows it, at most 200 characters; empty if there is no such process, or it keeps the kernel from answering."""
    return command_lines([pid]).get(pid, "")


def command_lines(pids: Iterable[int]) -> dict[int, str]:
    """Of several."""
    return _aside.ask(_command_line, pids)


def _command_line(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as source:
            words = source.read(4096).rstrip(b"\0").split(b"\0")
        text = b" ".join(words).decode("utf-8", "replace")
        if not text:
            with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as name:
                text = f"[{name.read().strip()}]"
    except OSError:
        return ""
    return "".join(c if c.isprintable() else " " for c in text)[:200]


def user_name(uid: int) -> str:
    """Return the name of a user, the number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_names(uid: int) -> list[str]:
    """Return the names of a user's groups; none if the user has no name."""
    names = []
    with suppress(KeyError, OSError):
        user = pwd.getpwuid(uid)
        for gid in os.getgrouplist(user.pw_name, user.pw_gid):
            with suppress(KeyError):
                names.append(grp.getgrgid(gid).gr_name)
    return names
