"""Guests' control groups: every guest in one of its own under `farhome/guests`, so that the owner can bound and see them.

Version 1 hierarchies, the unified one, and both at once (hybrid) occur; a group is made in each that there is. What is above
the policy's max_memory is throttled (memory.high) where the kernel can, or reclaimed first when memory is short (version 1, which knows
a soft limit only), and sent away by the daemon: a kill for want of memory would be one that a guest had not seen at home. It comes all
the same where all guests together have so much that the owner's programs would be killed instead (memory.max). How many processes and
threads a tree of guests may have (pids.max) is bounded always; one more is then made at home.

Who supervises guests must answer while they stand still, and is in no group of theirs. What it does for a guest that calls all the time
is lent, too: a remote that nobody moves is beside them, in `farhome/remotes`, and so gets a part of what is theirs, and before them. One
with a move under way is in a group of its own, `farhome-remotes`, which gets less than the owner's programs if the owner is back.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from node.common import kernel_files

TOP = "farhome"
BASE = f"{TOP}/guests"
RESTING = f"{TOP}/remotes"
REMOTES = "farhome-remotes"
CONTROLLERS = ("cpu", "cpuacct", "memory", "freezer", "pids")
_TRIES = 100
PERIOD_US = 20_000
"""Of the cpu quota: short, so that who is held back is slow evenly, and a move that begins then need not wait long for its guest."""
NANOSECONDS, MICROSECONDS = 1e-9, 1e-6
LEAST_QUOTA_US = 1000
"""What the kernel takes."""
LOW_WEIGHT = {"cpu.weight": "4", "cpu.shares": "41"}
"""A twenty-fifth of an ordinary group: where the owner's own programs want all of a processor, guests take no more than that of it. The
daemon's own work comes on top of that, and in all it is to be less than a twentieth."""

FULL_WEIGHT = {"cpu.weight": "100", "cpu.shares": "1024"}
FIRST_WEIGHT = {"cpu.weight": "1000", "cpu.shares": "10240"}
"""Ten times that of another guest: one that arrives or leaves stands still for as long as it waits for a processor."""
REMOTES_WEIGHT = {"cpu.weight": "20", "cpu.shares": "205"}
"""A fifth: guests are to go soon, even where the owner wants all processors."""

log = logging.getLogger("mosd.cgroups")


@dataclass(frozen=True)
class Bounds:
    """Of all guests together. processors: None is no limit; is_idle: they get only what nobody else wants (SCHED_IDLE); is_prompt: what
    they may have they get at once; memory in bytes, above which the kernel reclaims (None: no limit), most_memory above which it kills;
    tasks: processes and threads."""

    processors: float | None = None
    is_idle: bool = False
    memory: int | None = None
    is_prompt: bool = False
    most_memory: int | None = None
    tasks: int | None = None


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


def _counters(directories: Iterable[Path]) -> Iterator[tuple[Path, float]]:
    """Files that may report how much of the processors a group has used, and in which unit of seconds."""
    for directory in directories:
        yield directory / "cpuacct.usage", NANOSECONDS
        yield directory / "cpu.stat", MICROSECONDS


def _handed_on(directory: Path) -> set[str]:
    """Controllers that a group of version 2 has and can hand on to those below it; none in version 1."""
    try:
        return {"cpu", "memory", "pids"} & set((directory / "cgroup.controllers").read_text().split())
    except OSError:
        return set()


def most_tasks() -> int:
    """Processes and threads that all guests together may have: half of what the kernel has room for."""
    try:
        most = int(Path("/proc/sys/kernel/threads-max").read_text())
    except (OSError, ValueError):
        most = 1 << 15
    return max(512, most) // 2


def _write(path: Path, value: str) -> bool:
    try:
        path.write_text(value)
    except OSError as error:
        log.debug("%s: %s", path, error)
        return False
    return True


def _weigh(group: Path, weight: dict[str, str]) -> None:
    for file, value in weight.items():
        if (group / file).exists():
            _write(group / file, value)


def _is_weighed(point: Path) -> bool:
    """Whether the groups of a hierarchy share processors by weight. What is beside the guests' group has the controllers that it has."""
    return any((point / BASE / file).exists() for file in FULL_WEIGHT)


class GuestGroups:
    """The groups of all guests on this node."""

    def __init__(self, points: Iterable[Path] | None = None) -> None:
        """points: where the hierarchies of the node are mounted, if not as this program sees them."""
        self._counters: dict[str, tuple[Path, float]] = {}
        """By the name of a group: where its use of processors is shown."""
        self._memory_files: dict[str, str] = {}
        """By the key of a guest: where its memory is."""
        self._weighed: set[Path] = set()
        """Hierarchies whose groups share processors by weight: those in which remotes are put."""
        self._remotes_weight = FULL_WEIGHT
        self._points = sorted(set(hierarchies().values() if points is None else points))

    def directories(self, name: str) -> list[Path]:
        """Return the directories of a group, one in each hierarchy."""
        return [point / name for point in self._points]

    def prepare(self) -> None:
        """Makes the groups above the guests'."""
        for point in self._points:
            # Version 2 gives a group only the controllers that every group above hands on.
            for directory in (point, point / TOP, point / BASE):
                _make(directory)
                for controller in _handed_on(directory):
                    _write(directory / "cgroup.subtree_control", f"+{controller}")
            if _is_weighed(point):
                self._weighed.add(point)
                for name, weight in ((RESTING, FIRST_WEIGHT), (REMOTES, self._remotes_weight)):
                    _make(point / name)
                    _weigh(point / name, weight)

    def bound(self, bounds: Bounds) -> None:
        """Bounds all guests together, at once. The bounds are those of the uppermost group: its neighbours are the owner's."""
        quota = max(LEAST_QUOTA_US, int(bounds.processors * PERIOD_US)) if bounds.processors is not None else -1
        for point in self._points:
            top = point / TOP
            if (top / "cpu.idle").exists():
                _write(top / "cpu.idle", str(int(bounds.is_idle)))
            if not bounds.is_idle:
                _weigh(top, FULL_WEIGHT if bounds.is_prompt else LOW_WEIGHT)
            if (top / "cpu.cfs_quota_us").exists():
                _write(top / "cpu.cfs_quota_us", "-1")  # as long as there is a quota, another period may make it too great
                _write(top / "cpu.cfs_period_us", str(PERIOD_US))
                _write(top / "cpu.cfs_quota_us", str(quota))
            if (top / "cpu.max").exists():
                _write(top / "cpu.max", f"{quota if quota > 0 else 'max'} {PERIOD_US}")
        self._bound_memory(BASE, bounds.memory)  # who supervises them is not killed for it
        self._bound_hard(BASE, bounds.most_memory, bounds.tasks)

    def place_remote(self, pid: int, is_at_rest: bool) -> None:
        """Puts a program that supervises guests beside them, or (one that moves a guest) beside the owner's programs. Takes some ms."""
        if not self._weighed:
            self.prepare()
        for point in sorted(self._weighed):
            self._join(point / (RESTING if is_at_rest else REMOTES), pid)

    def _join(self, directory: Path, pid: int) -> None:
        """Puts a process into a group that prepare() makes, and that a daemon which ends removes if it is empty."""
        for _ in range(_TRIES):
            try:
                (directory / "cgroup.procs").write_text(str(pid))
                return
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV):  # it is not that the group has been removed
                    log.debug("%s: %s", directory, error)
                    return
            self.prepare()
        log.warning("%s is removed again and again", directory)

    def weigh_remotes(self, is_owner_back: bool) -> None:
        """Gives those that move guests less of the processors than the owner's programs have, or as much as anybody has."""
        self._remotes_weight = REMOTES_WEIGHT if is_owner_back else FULL_WEIGHT
        for point in self._weighed:
            _weigh(point / REMOTES, self._remotes_weight)

    def bound_memory(self, key: str, most: int | None) -> None:
        """Bounds the memory of one guest, besides that of all together; None: without limit."""
        self._bound_memory(f"{BASE}/{key}", most)

    def bound_tasks(self, key: str, most: int) -> None:
        """Bounds how many processes and threads a tree of guests may have."""
        self._bound_hard(f"{BASE}/{key}", None, most)

    def _bound_hard(self, name: str, memory: int | None, tasks: int | None) -> None:
        for directory in self.directories(name):
            for file, most in (("memory.max", memory), ("memory.limit_in_bytes", memory), ("pids.max", tasks)):
                if most is not None and (directory / file).exists():
                    _write(directory / file, str(most))

    def _bound_memory(self, name: str, most: int | None) -> None:
        for directory in self.directories(name):
            for file, none in (("memory.high", "max"), ("memory.soft_limit_in_bytes", "-1")):
                if (directory / file).exists():
                    _write(directory / file, none if most is None else str(most))

    def put_first(self, key: str, first: bool) -> None:
        """Has a guest get a processor before the others, or not any more. What all of them have together stays as it is."""
        for directory in self.directories(f"{BASE}/{key}"):
            _weigh(directory, FIRST_WEIGHT if first else FULL_WEIGHT)

    def freeze(self, key: str, frozen: bool) -> bool:
        """Has the processes of one guest stand still, or go on; False if nothing here can.

        By version 2 where there is one: what it has frozen can be killed, and traced. What version 1 has frozen must be thawed before.
        """
        directories = self.directories(f"{BASE}/{key}")
        for file, words in (("cgroup.freeze", "01"), ("freezer.state", ("THAWED", "FROZEN"))):
            for directory in directories:
                if (directory / file).exists():
                    return _write(directory / file, words[frozen])
        return False

    def exists(self, key: str) -> bool:
        """Return whether a guest has a group still."""
        return any(directory.exists() for directory in self.directories(f"{BASE}/{key}"))

    def stands_still(self, key: str) -> bool:
        """Return whether all processes of a guest have come to stand still."""
        for directory in self.directories(f"{BASE}/{key}"):
            for file, word in (("cgroup.events", "frozen 1"), ("freezer.state", "FROZEN")):
                try:
                    if word in (directory / file).read_text().splitlines():
                        return True
                except OSError:
                    continue
        return False

    def is_held_back(self) -> bool:
        """Return whether guests get only a share of the processors, or what nobody else wants."""
        for point in self._points:
            for file in ("cpu.idle", "cpu.cfs_quota_us", "cpu.max"):
                try:
                    word = (point / TOP / file).read_text().split()[0]
                except OSError:
                    continue
                if word not in ("0", "-1", "max"):
                    return True
        return False

    def cpu(self, key: str | None = None) -> float | None:
        """Return seconds of processor that a guest has used here, or all guests since the groups were made; None if nothing reports it."""
        return self._cpu(f"{BASE}/{key}" if key is not None else BASE)

    def cpu_of_node(self) -> float | None:
        """Return seconds of processor that have been used on this node by whatever is on it; None if nothing reports it."""
        return self._cpu("")

    def _cpu(self, name: str) -> float | None:
        known = self._counters.get(name)
        for file, unit in (known,) if known is not None else _counters(self.directories(name)):
            try:
                words = kernel_files.read(file).split(maxsplit=2)
            except OSError:
                self._counters.pop(name, None)
                continue
            # What version 1 calls cpu.stat is something else.
            if unit == NANOSECONDS or words[:1] == [b"usage_usec"]:
                self._counters[name] = file, unit
                return int(words[-1] if unit == NANOSECONDS else words[1]) * unit
        return None

    def create(self, key: str) -> str:
        """Makes the group of one guest; returns its name, relative to each hierarchy's mount point."""
        name = f"{BASE}/{key}"
        for directory in self.directories(name):
            _make(directory)
        return name

    def remove(self, key: str) -> bool:
        """Removes the group of a guest that has gone; False while something is still in it."""
        self._counters.pop(f"{BASE}/{key}", None)
        self._memory_files.pop(key, None)
        removed = True
        for directory in self.directories(f"{BASE}/{key}"):
            removed = _remove_tree(directory) and removed
        return removed

    def memory(self, key: str) -> int:
        """Return bytes that a guest uses here, 0 if nothing reports it."""
        known = self._memory_files.get(key)
        for file in (known,) if known is not None else self._memory_counters(key):
            try:
                used = int(kernel_files.read(file))
            except (OSError, ValueError):
                self._memory_files.pop(key, None)
                continue
            self._memory_files[key] = file
            return used
        return 0

    def _memory_counters(self, key: str) -> Iterator[str]:
        """Files that may report how much memory a guest uses."""
        for directory in self.directories(f"{BASE}/{key}"):
            yield from (f"{directory}/{file}" for file in ("memory.current", "memory.usage_in_bytes"))

    def remove_all(self) -> None:
        """Removes the groups above the guests' too, if no guest is left."""
        for point in self._points:
            for name in (BASE, RESTING, TOP, REMOTES):
                with suppress(OSError):
                    (point / name).rmdir()


def _make(directory: Path) -> None:
    """Make a group, and those above it, which a daemon that ends may remove at the same time (remove_all)."""
    for _ in range(_TRIES):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            return
        except (FileNotFoundError, FileExistsError):  # removed just before, or just after it was found
            continue
        except OSError as error:
            log.debug("%s: %s", directory, error)
            return
    log.warning("%s cannot be made: the group above it is removed again and again", directory)


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
