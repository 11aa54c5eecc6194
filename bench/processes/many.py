"""What it costs to have many processes of one home away at once: memory at home for each stub and its deputy, and on the node for
each guest and its remote. Deputies, and remotes, share programs beyond the first few (node/programs/hosts.py): what all of them have,
divided by the number of processes.

Memory is the proportional share of resident pages (PSS): what several processes map is divided by their number. The program is
`sleep`, so that nearly all of it is ours. FARHOME_BENCH_PROCESSES says how many, instead of 200.

The cases `merged` are the same processes after the kernel's same-page merging (KSM) has looked at all of their pages, which the owner of
a machine may turn on (docs/install.md); the bench does so for its own time, if nobody has.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.common.nodes import bench_lab, checked, wait_until
from bench.common.result import BenchFailed, Result

if TYPE_CHECKING:
    from lab import Node

PROCESSES, SHORT_PROCESSES = 200, 20
AT_A_TIME = 2
"""Moves; a node takes only so many guests on their way to it."""
ATTEMPTS = 20
SECONDS = "3600"
START = f"i=0; while [ $i -lt $0 ]; do mosrun -L sleep {SECONDS} >/dev/null 2>&1 </dev/null & echo $!; i=$((i+1)); done"


KSM = Path("/sys/kernel/mm/ksm")
MERGING = {"pages_to_scan": "5000", "run": "1"}
LOOKS = 3
"""Times that the kernel has to have looked at every page: a page is merged when it was the same at two looks."""
MERGED_WITHIN = 600.0
"""Seconds."""


def _pss(process: Path) -> float:
    """MiB; 0 of one that has ended or has given its memory up."""
    try:
        for line in (process / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


def _processes(node: Node) -> Iterator[tuple[int, int, list[str]]]:
    """(pid, parent, command line) of all in a node, ids as it sees them."""
    for process in (node.root / "proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
            yield int(process.name), parent, (process / "cmdline").read_text().split("\0")
        except (OSError, UnicodeDecodeError):
            continue


def _programs(node: Node, room: str) -> set[int]:
    """Process ids of the deputies or remotes of a node, and of the programs that several of them share."""
    return {pid for pid, _, command in _processes(node) if command[3:5] in (["-m", room], ["-m", f"{room}.host"])}


def _with_descendants(node: Node, pids: set[int]) -> set[int]:
    """They and all that come from them."""
    children = defaultdict(list)
    for pid, parent, _ in _processes(node):
        children[parent].append(pid)
    found = list(pids)
    for pid in found:
        found += [child for child in children[pid] if child not in pids]
    return set(found)


def _move(node: Node, pid: int) -> None:
    for attempt in range(ATTEMPTS):
        try:
            checked(node, ["migrate", str(pid), "n2"])
            return
        except BenchFailed:
            if attempt == ATTEMPTS - 1:
                raise


def memory_of(home: Node, away: Node, pids: list[int]) -> tuple[float, float]:
    """MiB for each process that is away: of stubs and deputies, of guests and remotes. Errors: BenchFailed when one is not away."""
    where = {entry["pid"]: entry["where"] for entry in json.loads(checked(home, ["mosps", "--json"]))}
    here = [pid for pid in pids if where.get(pid) != "n2"]
    if here:
        raise BenchFailed(f"of {len(pids)} processes {len(here)} are not away")
    stubs = _memory(home, set(pids) | _programs(home, "deputy"))
    guests = _memory(away, _with_descendants(away, _programs(away, "remote")))
    return stubs / len(pids), guests / len(pids)


def _memory(node: Node, pids: set[int]) -> float:
    return sum(_pss(node.root / "proc" / str(pid)) for pid in pids)


@contextmanager
def merging() -> Iterator[None]:
    """While the kernel merges pages, after it has. Errors: OSError, BenchFailed."""
    before = {name: (KSM / name).read_text().strip() for name in MERGING}
    end = time.monotonic() + MERGED_WITHIN
    try:
        for name, value in MERGING.items():
            (KSM / name).write_text(value)
        wanted = _looks() + LOOKS
        while _looks() < wanted:
            if time.monotonic() > end:
                raise BenchFailed(f"the kernel does not look at all pages within {MERGED_WITHIN:.0f} s")
            time.sleep(0.5)
        yield
    finally:
        if before["run"] == "0":
            (KSM / "run").write_text("2")  # takes apart what it has merged
        for name, value in before.items():
            (KSM / name).write_text(value)


def _looks() -> int:
    return int((KSM / "full_scans").read_text())


def measure(home: Node, away: Node, count: int, *, with_merging: bool = True) -> tuple[list[float], dict[str, tuple[float, float]]]:
    """MiB of each process while it is native; and how it was measured -> for each, of stubs and deputies, of guests and remotes.
    Errors: BenchFailed."""
    pids = [int(word) for word in checked(home, ["sh", "-c", START, str(count)]).split()]
    names = [home.root / "proc" / str(pid) / "comm" for pid in pids]
    wait_until(lambda: all(name.read_text() == "sleep\n" for name in names), "the last program")
    native = [_pss(home.root / "proc" / str(pid)) for pid in pids]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        list(pool.map(lambda pid: _move(home, pid), pids))
    found = {"": memory_of(home, away, pids)}
    if with_merging and KSM.is_dir():
        with merging():
            found[", merged"] = memory_of(home, away, pids)
    return native, found


def run() -> list[Result]:
    """Measure in a fresh lab of two nodes. Errors: BenchFailed."""
    chosen = os.environ.get("FARHOME_BENCH_PROCESSES", "")
    count = int(chosen) if chosen.isdigit() and int(chosen) > 0 else PROCESSES
    with bench_lab(2) as lab:
        native, found = measure(lab.node("n1"), lab.node("n2"), count)
    return _results(native, found, count)


def short() -> list[Result]:
    """Measure few processes, whose pages the kernel does not merge. Errors: BenchFailed."""
    with bench_lab(2) as lab:
        native, found = measure(lab.node("n1"), lab.node("n2"), SHORT_PROCESSES, with_merging=False)
    return _results(native, found, SHORT_PROCESSES)


def _results(native: list[float], found: dict[str, tuple[float, float]], count: int) -> list[Result]:
    return [
        Result.of(f"{case}, {count} processes{how}", [ours], native, unit="MiB", baseline_name="the process at home")
        for how, (stub, guest) in found.items()
        for case, ours in (("stub and deputy", stub), ("guest and remote", guest), ("both", stub + guest))
    ]
