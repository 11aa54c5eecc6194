"""Leftovers that a run of the tests must not leave behind on the machine.

Several things may use the machine at once, so by default only what can be traced to this run (by its id in environments and
names), or bears the project's name and was not there before, is a fault. On a machine of one's own FARHOME_STRICT=1 makes
every difference one.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

RUN = "FARHOME_TEST_RUN"
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/run")
_OUR_FILES = ("farhome", "criu", "mos")


@dataclass(frozen=True)
class Snapshot:
    """Things that are there now, as readable lines."""

    traced: frozenset[str]
    named: frozenset[str]
    others: frozenset[str]


def take(run: str) -> Snapshot:
    """Records the state of the machine; ``run`` is the id of this run of the tests."""
    named: set[str] = set()
    others: set[str] = set()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split(" ")[4]
        ours = "farhome" in line or " - nsfs " in line  # a mount of a namespace keeps it without any process
        (named if ours else others).add(f"mount {point}")
    others.update(f"link {entry.name}" for entry in Path("/sys/class/net").iterdir())
    for directory in _TEMPORARY:
        for entry in os.scandir(directory):
            with suppress(FileNotFoundError):  # another run takes it away just now
                if entry.name.startswith(_OUR_FILES) and not _is_of_criu(Path(entry.path)):
                    named.add(f"file {entry.path}")
    for path, names, _ in os.walk("/sys/fs/cgroup"):
        named.update(f"cgroup {path}/{name}" for name in names if "farhome" in name or run in name)
    return Snapshot(frozenset(_processes(run)), frozenset(named), frozenset(others))


def _is_of_criu(path: Path) -> bool:
    """Whether nothing is there but CRIU's own memory of the kernel, where CRIU keeps it or where we do (engine/criu/criu.py)."""
    return all(file.name == "criu.kdat" or file.name.startswith("kept-") or file.is_dir() for file in (path, *path.rglob("*")))


def _processes(run: str) -> set[str]:
    """Processes that have the run's id in their environment: all that a test starts, and what those start."""
    own = {os.getpid(), os.getppid()}
    found: set[str] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in own:
            continue
        try:
            if f"{RUN}={run}".encode() in (entry / "environ").read_bytes():
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.add(f"process {entry.name} {command[:120]}")
        except OSError:
            continue  # it has ended
    return found


def difference(before: Snapshot, run: str, seconds: float = 5.0) -> tuple[list[str], list[str]]:
    """Return what is there now and was not before: (faults, remarks). Ending processes have ``seconds`` to end."""
    strict = os.environ.get("FARHOME_STRICT") == "1"
    deadline = time.monotonic() + seconds
    while True:
        now = take(run)
        new = now.named - before.named
        foreign = {line for line in new if run not in line and ("farhome-lab" in line or line.startswith("file "))}
        faults = (now.traced - before.traced) | new
        remarks = now.others - before.others
        if strict:
            faults, remarks = faults | remarks, frozenset()
        else:
            faults, remarks = faults - foreign, remarks | foreign  # another run may have made those
        if not faults or time.monotonic() > deadline:
            return sorted(faults), sorted(remarks)
        time.sleep(0.05)
