"""Guests' control groups: every guest in one of its own under `farhome/guests`, so that the owner can bound and see them.

Version 1 hierarchies, the unified one, and both at once (hybrid) occur; a group is made in each that there is. Nothing here
takes memory away from a guest by force: a kill for want of memory would be one that it had not seen at home. What is above
the policy's max_memory is throttled (memory.high) where the kernel can, and sent away by the daemon.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

BASE = "farhome/guests"
CONTROLLERS = ("cpu", "cpuacct", "memory", "freezer")
PERIOD_US = 100_000
LOW_WEIGHT = {"cpu.weight": "20", "cpu.shares": "205"}
"""A fifth of an ordinary group: the owner's own programs come first even while guests are here."""

log = logging.getLogger("mosd.cgroups")


def hierarchies(mounts: str = "/proc/self/mounts") -> dict[str, Path]:
    """Mount points by controller ("unified" for version 2) of the hierarchies that guests are put in."""
    found: dict[str, Path] = {}
    with open(mounts, encoding="utf-8") as source:
        for line in source:
            _, point, kind, options, *_ = line.split()
            if kind == "cgroup2":
                found.setdefault("unified", Path(point))
            elif kind == "cgroup":
                for controller in set(options.split(",")) & set(CONTROLLERS):
                    found.setdefault(controller, Path(point))
    return found


def _handed_on(directory: Path) -> set[str]:
    """Controllers that a group of version 2 has and can hand on to those below it; none in version 1."""
    try:
        return {"cpu", "memory"} & set((directory / "cgroup.controllers").read_text().split())
    except OSError:
        return set()


def _write(path: Path, value: str) -> bool:
    try:
        path.write_text(value)
    except OSError as error:
        log.debug("%s: %s", path, error)
        return False
    return True


class GuestGroups:
    """The groups of all guests on this node."""

    def __init__(self) -> None:
        self._points = sorted(set(hierarchies().values()))

    def directories(self, name: str) -> list[Path]:
        """The directories of a group, one in each hierarchy."""
        return [point / name for point in self._points]

    def prepare(self, cpu_share: float, max_memory: int | None) -> None:
        """Makes the groups above the guests' and bounds them: a share (0..1) of all cpus, bytes of memory."""
        for point in self._points:
            # Version 2 gives a group only the controllers that every group above hands on.
            for directory in (point, point / "farhome", point / BASE):
                try:
                    directory.mkdir(exist_ok=True)
                except OSError as error:
                    log.debug("%s: %s", directory, error)
                    break
                for controller in _handed_on(directory):
                    _write(directory / "cgroup.subtree_control", f"+{controller}")
            guests = point / BASE
            for file, value in LOW_WEIGHT.items():
                if (guests / file).exists():
                    _write(guests / file, value)
            quota = int(cpu_share * (os.cpu_count() or 1) * PERIOD_US) if cpu_share < 1 else -1
            if (guests / "cpu.cfs_quota_us").exists():
                _write(guests / "cpu.cfs_quota_us", str(quota))
            if (guests / "cpu.max").exists():
                _write(guests / "cpu.max", f"{quota if quota > 0 else 'max'} {PERIOD_US}")
            if (guests / "memory.high").exists():
                _write(guests / "memory.high", "max" if max_memory is None else str(max_memory))
            elif (guests / "memory.soft_limit_in_bytes").exists():
                _write(guests / "memory.soft_limit_in_bytes", "-1" if max_memory is None else str(max_memory))

    def create(self, key: str) -> str:
        """Makes the group of one guest; returns its name, relative to each hierarchy's mount point."""
        name = f"{BASE}/{key}"
        for directory in self.directories(name):
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                log.debug("%s: %s", directory, error)
        return name

    def remove(self, key: str) -> bool:
        """Removes the group of a guest that has gone; False while something is still in it."""
        removed = True
        for directory in self.directories(f"{BASE}/{key}"):
            removed = _remove_tree(directory) and removed
        return removed

    def memory(self, key: str) -> int:
        """Bytes that a guest uses here, 0 if nothing tells."""
        for directory in self.directories(f"{BASE}/{key}"):
            for file in ("memory.current", "memory.usage_in_bytes"):
                try:
                    return int((directory / file).read_text())
                except (OSError, ValueError):
                    continue
        return 0

    def remove_all(self) -> None:
        """Removes the groups above the guests' too, if no guest is left."""
        for point in self._points:
            for name in (BASE, "farhome"):
                try:
                    (point / name).rmdir()
                except OSError:
                    break


def _remove_tree(directory: Path) -> bool:
    try:
        for child in directory.iterdir():
            if child.is_dir():
                _remove_tree(child)
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
