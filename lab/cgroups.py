"""Cgroups of a lab: one directory per node in every hierarchy that matters, cgroup v1, v2 and both at once.

Layout in each hierarchy: ``farhome-lab/LAB/NODE``. In v2 a group that passes controllers on must hold no process itself,
so there a node's processes live in ``NODE/init`` and ``NODE``, which the node sees as its root, stays free.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.state import start_time

TOP = "farhome-lab"
LEAF = "init"
HELPERS = "helpers"
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "pids", "freezer")
PERIOD = 0.02
"""Seconds, of the cpu quota: short, so that a slow node is slow evenly instead of running and standing still."""


@dataclass(frozen=True)
class Hierarchy:
    """A mounted hierarchy: ``version`` 1 or 2, its mount point and, for version 1, the options that name it."""

    version: int
    path: Path
    options: str

    def mount_argument(self) -> str:
        """Return what ``node-setup`` needs to mount it again."""
        return f"{'cgroup2' if self.version == 2 else 'cgroup'}:{self.options}:{self.path}"


def hierarchies() -> list[Hierarchy]:
    """Return those that hold a controller of ``CONTROLLERS``, and the v2 one; a mount point above another comes first."""
    found: dict[Path, Hierarchy] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        path = Path(left.split(" ")[4])
        named = [option for option in options.split(",") if option in CONTROLLERS]
        if kind == "cgroup2":
            found[path] = Hierarchy(2, path, "")
        elif kind == "cgroup" and named:
            found[path] = Hierarchy(1, path, ",".join(named))
    writable = [one for path, one in found.items() if os.access(path, os.W_OK)]
    return sorted(writable, key=lambda one: len(one.path.parts))


def directories(lab: str, group: str = "") -> list[Path]:
    """Return the directories of a lab, or of one group in it, in all hierarchies, whether they exist or not."""
    return [one.path / TOP / lab / group for one in hierarchies()]


def process_directories(lab: str, node: str) -> list[Path]:
    """Return where a process must be put to be in the node."""
    return [one.path / TOP / lab / node / (LEAF if one.version == 2 else "") for one in hierarchies()]


def create(lab: str, group: str, cpus: float | None = None, period: float = PERIOD) -> None:
    """Make the group in all hierarchies; it may use ``cpus`` processors (fractions too) in each period (seconds). Errors: OSError."""
    microseconds = round(period * 1e6)
    for one in hierarchies():
        directory = one.path / TOP / lab / group
        directory.mkdir(parents=True, exist_ok=True)
        if "cpuset" in one.options.split(","):
            for child in (one.path / TOP, one.path / TOP / lab, directory):
                _take_processors(child)
        if one.version == 2:
            (directory / LEAF).mkdir(exist_ok=True)
            for parent in (one.path, one.path / TOP, one.path / TOP / lab):
                _pass_controllers_on(parent)
        if cpus is not None:
            quota = max(1000, round(cpus * microseconds))
            if (directory / "cpu.max").exists():
                (directory / "cpu.max").write_text(f"{quota} {microseconds}")
            elif (directory / "cpu.cfs_quota_us").exists():
                (directory / "cpu.cfs_period_us").write_text(str(microseconds))
                (directory / "cpu.cfs_quota_us").write_text(str(quota))


def _take_processors(directory: Path) -> None:
    """Have a new v1 cpuset hold what its parent has: an empty one takes no process."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if not (directory / name).read_text().strip():
            (directory / name).write_text((directory.parent / name).read_text())


def _pass_controllers_on(directory: Path) -> None:
    available = (directory / "cgroup.controllers").read_text().split()
    for controller in CONTROLLERS:
        if controller in available:
            try:
                (directory / "cgroup.subtree_control").write_text(f"+{controller}")
            except OSError:
                pass  # in a container whose root group holds processes; a lab without that limit is better than none


def settle(lab: str, group: str, pid: int) -> None:
    """Put a node's process 1, which made the group the root of its cgroup namespace, where the node's processes live."""
    for one in hierarchies():
        if one.version == 2:
            directory = one.path / TOP / lab / group
            (directory / LEAF / "cgroup.procs").write_text(str(pid))
            _pass_controllers_on(directory)


def processor_seconds(lab: str, group: str = "") -> float:
    """Return what the group has used of processors since it was made, by all that has ever been in it. Errors: OSError if nothing reports
    it."""
    for directory in directories(lab, group):
        if (directory / "cpuacct.usage").exists():
            return int((directory / "cpuacct.usage").read_text()) / 1e9
        if (directory / "cpu.max").exists():
            return int((directory / "cpu.stat").read_text().split()[1]) / 1e6
    raise FileNotFoundError(errno.ENOENT, "no control group counts processors", group)


def _groups_below(directory: Path) -> Iterator[Path]:
    """The group and all below it, leaves first."""
    for path, _, _ in os.walk(directory, topdown=False):
        yield Path(path)


def processes(lab: str, group: str = "") -> set[int]:
    """Return all processes in the group and below it."""
    found: set[int] = set()
    for top in directories(lab, group):
        for directory in _groups_below(top):
            try:
                found.update(int(word) for word in (directory / "cgroup.procs").read_text().split())
            except OSError:
                continue  # it went away while we looked
    return found


def kill(lab: str, group: str = "", timeout: float = 10.0) -> None:
    """End every process in the group and below it, and wait until they are gone.

    Errors: TimeoutError when some are still there after ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    seen: dict[int, int | None] = {}
    while True:
        for top in directories(lab, group):
            for directory in _groups_below(top):
                _thaw(directory)
        remaining = processes(lab, group) - {os.getpid()}
        seen.update((pid, start_time(pid)) for pid in remaining - set(seen))
        for top in directories(lab, group):
            _write(top / "cgroup.kill", "1")  # all at once, where the kernel can
        for pid in remaining:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        # A process leaves its groups' lists before it has really ended; process 1 of a node ends after all others.
        ending = {pid for pid, start in seen.items() if start is not None and start_time(pid) == start}
        if not remaining | ending:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {sorted(remaining | ending)} do not die")
        time.sleep(0.003)


def _thaw(directory: Path) -> None:
    """A v1 frozen process does not die before it is thawed."""
    if (directory / "freezer.state").exists():
        _write(directory / "freezer.state", "THAWED")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError:
        pass


def remove(lab: str, group: str = "", timeout: float = 5.0) -> None:
    """Remove the group and all below it, and the lab's top directory when it was the last.

    Errors: OSError (EBUSY) when a group still holds a process after ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    for top in directories(lab, group):
        for directory in _groups_below(top):
            while True:
                try:
                    directory.rmdir()
                except FileNotFoundError:
                    pass
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.003)
                    continue
                break
        try:
            if not group:
                top.parent.rmdir()
        except OSError:
            pass  # another lab is up
