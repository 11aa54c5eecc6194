"""What this node can sense of its owner: keyboard and mouse, terminals and logins, what his own programs use, and the battery.

Where a machine has no input devices, the policy may name files instead (`input`): a terminal, or anything that is touched when the owner
does something.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("mosd.owner")

DEVICES = ("/dev/input", "event*")
TERMINALS = (("/dev/pts", "[0-9]*"), ("/dev", "tty[1-9]"))
LOGINS = Path("/run/utmp")
RESCAN = 5.0
"""Seconds between two checks for new devices and logins."""
WINDOW = 0.1
"""Seconds over which the use of processors is measured."""
LEAST_WINDOW = 0.015
"""In less, the kernel's counters, which it brings up to date 100 to 1000 times a second, are too coarse."""
_LOGIN = struct.Struct("=h338xi40x")
"""struct utmp: what kind of record it is, and its second."""
_USER_PROCESS = 7
_EVENTS = 1 << 14
_PROCESS_CLOCK = 2
"""CPUCLOCK_SCHED: time on a processor, by the scheduler."""


class InputWatch:
    """When the owner last used the node. Devices report it at once, of files the times of access and change count."""

    def __init__(self, used: Callable[[], None], devices: tuple[str, str] = DEVICES) -> None:
        """used is called as soon as a device is used."""
        self._used = used
        self._place = devices
        self._files: tuple[str, ...] | None = None
        self._logins = True
        self._devices: dict[str, int] = {}
        self._last = 0.0
        self._scanned = float("-inf")
        self._terminals: list[str] = []

    def configure(self, files: tuple[str, ...] | None, logins: bool) -> None:
        """files: instead of all input devices; logins: whether terminals count as well."""
        if (files, logins) != (self._files, self._logins):
            self.close()
            self._last = 0.0
        self._files, self._logins = files, logins

    def last_use(self) -> float | None:
        """Return seconds since the epoch; None if nothing reports it."""
        if time.monotonic() - self._scanned > RESCAN:
            self._scanned = time.monotonic()
            self._scan()
        plain = [path for path in self._files or () if path not in self._devices]
        newest = max((_touched(path) for path in (*plain, *self._terminals)), default=0.0)
        self._last = max(self._last, newest)
        return self._last if self._last or self._devices else None

    def _scan(self) -> None:
        names = self._files if self._files is not None else sorted(map(str, Path(self._place[0]).glob(self._place[1])))
        for gone in set(self._devices) - set(names):
            self._close_device(gone)
        for name in names:
            if name not in self._devices and _is_device(name):
                self._open_device(name)
        self._terminals = []
        if self._logins:
            self._terminals = [str(path) for place, pattern in TERMINALS for path in Path(place).glob(pattern)]
            with suppress(OSError):
                self._last = max([self._last, *logins(LOGINS)])

    def _open_device(self, name: str) -> None:
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
            asyncio.get_running_loop().add_reader(descriptor, self._event, name, descriptor)
        except OSError as error:
            log.debug("%s: %s", name, error)
            return
        self._devices[name] = descriptor

    def _event(self, name: str, descriptor: int) -> None:
        try:
            reported = os.read(descriptor, _EVENTS)
        except BlockingIOError:
            return
        except OSError:
            reported = b""
        if not reported:  # it has been unplugged
            self._close_device(name)
            return
        self._last = time.time()
        self._used()

    def _close_device(self, name: str) -> None:
        descriptor = self._devices.pop(name)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)

    def close(self) -> None:
        """Lets go of the devices."""
        for name in list(self._devices):
            self._close_device(name)
        self._scanned = float("-inf")


def _is_device(name: str) -> bool:
    """Whether a file reports use by what can be read from it (input devices, pipes); terminals' input is somebody else's."""
    try:
        status = os.stat(name)
        return stat.S_ISFIFO(status.st_mode) or (stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) == 13)
    except OSError:
        return False


def logins(path: Path) -> list[float]:
    """Return when each of the users came who are logged in: seconds since the epoch, of utmp(5). Errors: OSError."""
    data = path.read_bytes()
    whole = data[: len(data) // _LOGIN.size * _LOGIN.size]
    return [float(second) for kind, second in _LOGIN.iter_unpack(whole) if kind == _USER_PROCESS]


def _touched(name: str) -> float:
    """When a file was last read or written; 0 if it is not there. A terminal is read by anyone who waits for its user alone: what programs
    write to it is no use by him."""
    try:
        status = os.stat(name)
    except OSError:
        return 0.0
    return status.st_atime if stat.S_ISCHR(status.st_mode) else max(status.st_mtime, status.st_atime)


class OwnLoad:
    """How many processors are used by others than guests and farhome itself: the owner's own load."""

    def __init__(self, node: Callable[[], float | None], guests: Callable[[], float | None], own: Callable[[], float]) -> None:
        """Each returns seconds of processor, in all."""
        self._counters = node, guests, own
        self._seen: deque[tuple[float, float]] = deque()

    def sample(self, now: float) -> tuple[float | None, float | None]:
        """Processors over about the last WINDOW, and since the last sample: what is known sooner, and may be a moment's work only. None
        while nothing is known. now: seconds of any one clock."""
        node, guests, own = (counter() for counter in self._counters)
        if node is None or (self._seen and now <= self._seen[-1][0]):
            return None, None
        self._seen.append((now, node - (guests or 0.0) - (own or 0.0)))
        while len(self._seen) > 2 and now - self._seen[1][0] >= WINDOW:
            self._seen.popleft()
        return self._since(0, WINDOW / 2), self._since(-2, LEAST_WINDOW)

    def _since(self, index: int, least: float) -> float | None:
        if len(self._seen) < 2:
            return None
        (begun, before), (now, after) = self._seen[index], self._seen[-1]
        return max(0.0, (after - before) / (now - begun)) if now - begun >= least else None

    def forget(self) -> None:
        """Begins anew."""
        self._seen.clear()


class Programs:
    """Seconds of processor that some programs have used in all, those that have ended too."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._used: dict[int, float] = {}
        self._total = 0.0

    def cpu(self) -> float:
        """Since the first look at each; the daemon's own besides."""
        now: dict[int, float] = {}
        for pid in set(self._pids()):
            if (used := _used_by(pid)) is not None:
                now[pid] = used
                self._total += max(0.0, used - self._used.get(pid, used))
        self._used = now
        return self._total + time.process_time()


def _used_by(pid: int) -> float | None:
    """Seconds of processor of a process, None if it has ended. By its clock (clock_getcpuclockid(3)), which knows nanoseconds: /proc shows
    hundredths of a second, which is as much as is used between two checks."""
    with suppress(OSError):
        return time.clock_gettime(~pid << 3 | _PROCESS_CLOCK)
    return None


def battery(root: Path = Path("/sys/class/power_supply")) -> tuple[bool | None, float | None]:
    """Return whether the node runs on its battery, and how full that is (0 to 1); None where nothing reports it."""
    levels, discharging, mains = [], [], []
    for supply in _supplies(root):
        kind = _word(supply / "type")
        if kind == "Battery" and _word(supply / "scope") != "Device":
            discharging.append(_word(supply / "status") == "Discharging")
            if (level := _word(supply / "capacity")).isdigit():
                levels.append(int(level) / 100)
        elif kind in ("Mains", "USB"):
            mains.append(_word(supply / "online") == "1")
    level_of_all = sum(levels) / len(levels) if levels else None
    if not discharging:
        return None, None
    return (any(discharging) if not mains else not any(mains)), level_of_all


def _supplies(root: Path) -> Iterable[Path]:
    try:
        return sorted(root.iterdir())
    except OSError:
        return []


def _word(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
