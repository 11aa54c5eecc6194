"""How fast another node's files are, against sshfs between the same two nodes and against the native file system.

Two labs of two nodes: one as farhome is shipped, encrypting, with sshfs and its defaults beside it; one where neither encrypts
(sshfs speaks to a bare sftp-server over TCP). Home's files lie in its memory. All ways to them take turns in each round. A case is one
run of file_ops.c in the away node; what is said to be cold has not been seen there before: home makes it anew for each sample, a
moment before, or the away node's kernel is asked to forget it. Nobody has changed it for a moment then. Writing ends with fsync, since
sshfs writes behind the program's back; `cache=no` is sshfs's only way not to show what is old, which ours never does. `FUSE alone and
native after it` is no way to files, but what writing could come to at most: a write returns when home has it, so nothing of one piece is
done while the one before it is under way.

`at its data` is a program on the node whose files it works on, by the path that it has them by on all nodes (/mfs/NODE). The last cases
are programs under mosrun that work on the files of their home while they are away (file_work.py).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.common.nodes import bench_lab, build, checked, rounds, wait_until
from bench.common.result import Result
from bench.files import file_work
from bench.files.sshfs import Server, installed

if TYPE_CHECKING:
    from lab import Lab, Node

ROUNDS, SHORT_ROUNDS = 3, 2
TIMES = 3
"""What is quick, or what differs by a few per cent, has so many samples in each round."""
FILES, LISTED, MEGABYTES = 2000, 1000, 64
READS = 5000
SECONDS = 0.3
AT_REST = 0.2
"""Seconds for which nobody has changed the files that are looked at."""
BASE = "/tmp/mfs-bench"
CONFIGURATION = '[mfs]\nexports = ["/tmp"]\nroot = "root"\n'
POSTMARK = """set number 500
set transactions {transactions}
set size 512 10240
set read {block}
set write {block}
set buffering {buffering}
set location {location}
run
quit
"""
TRANSACTIONS, TRANSACTIONS_AT_DATA = 10_000, 100_000


@dataclass
class Way:
    """A way to home's files: programs on `node` find them at `point`."""

    home: Node
    node: Node
    point: str
    samples: dict[str, list[float]] = field(default_factory=dict)


class Cases:
    """One sample of each case, in what it says; `number` makes names that nobody has seen."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.number = 0

    def _run(self, node: Node, *arguments: object) -> float:
        return float(checked(node, [self.program, *map(str, arguments)], 300))

    def _fresh(self, way: Way, count: int, size: int = 1024) -> str:
        self.number += 1
        self._run(way.home, "prepare", f"{BASE}/{self.number}", count, size)
        time.sleep(AT_REST)
        return f"{way.point}/{self.number}"

    def _each(self, way: Way, what: str, count: int) -> float:
        value = self._run(way.node, what, self._fresh(way, count), FILES)
        checked(way.home, ["rm", "-r", f"{BASE}/{self.number}"])
        return value

    def stat(self, way: Way) -> float:
        return self._each(way, "stat", FILES)

    def open(self, way: Way) -> float:
        return self._each(way, "open", FILES)

    def create(self, way: Way) -> float:
        return self._each(way, "create", 0)

    def unlink(self, way: Way) -> float:
        return self._each(way, "unlink", FILES)

    def list(self, way: Way) -> float:
        value = self._run(way.node, "list", self._fresh(way, LISTED))
        checked(way.home, ["rm", "-r", f"{BASE}/{self.number}"])
        return value

    def write(self, way: Way) -> float:
        return self._run(way.node, "write", f"{way.point}/large", MEGABYTES)

    def read(self, way: Way) -> float:
        time.sleep(AT_REST)
        return self._run(way.node, "read", f"{way.point}/large")

    def again(self, way: Way) -> float:
        return self._run(way.node, "again", f"{way.point}/large", SECONDS)

    def restat(self, way: Way) -> float:
        return self._run(way.node, "restat", f"{way.point}/large", SECONDS)

    def random(self, way: Way) -> float:
        time.sleep(AT_REST)
        return self._run(way.node, "random", f"{way.point}/large", READS)

    def postmark(self, way: Way, block: int, *, transactions: int = TRANSACTIONS, buffering: str = "true") -> float:
        self.number += 1
        directory, name = f"{way.point}/{self.number}", f"/tmp/postmark-{self.number}"
        checked(way.home, ["mkdir", f"{BASE}/{self.number}"])
        text = POSTMARK.format(transactions=transactions, block=block, buffering=buffering, location=directory)
        (way.node.root / name[1:]).write_text(text)
        value = self._run(way.node, "run", "postmark", name)
        checked(way.home, ["rm", "-r", f"{BASE}/{self.number}"])
        return value


Measure = Callable[[Cases, Way], float]
POSTMARKS: dict[str, tuple[str, Measure]] = {
    "PostMark, blocks of 512": ("s", lambda cases, way: cases.postmark(way, 512)),
    "PostMark, blocks of 4096": ("s", lambda cases, way: cases.postmark(way, 4096)),
    "PostMark, 4096 unbuffered": ("s", lambda cases, way: cases.postmark(way, 4096, buffering="false")),
}
UNSEEN: dict[str, tuple[str, Measure]] = {
    "stat, cold": ("/s", Cases.stat),
    "open and close, cold": ("/s", Cases.open),
    "create": ("/s", Cases.create),
    "unlink": ("/s", Cases.unlink),
    f"ls -l of {LISTED}, cold": ("/s", Cases.list),
}
LARGE: dict[str, tuple[str, Measure]] = {
    "sequential write, fsync": ("MiB/s", Cases.write),
    "sequential read, cold": ("MiB/s", Cases.read),
    "4 KiB random read, cold": ("/s", Cases.random),
}
WRITTEN = {case: LARGE[case] for case in ("sequential write, fsync",)}
KEPT: dict[str, tuple[str, Measure]] = {"read, warm": ("MiB/s", Cases.again), "stat, cached": ("/s", Cases.restat)}
AT_DATA: dict[str, tuple[str, Measure]] = {
    f"PostMark at its data, blocks of {block}": (
        "s",
        lambda cases, way, block=block: cases.postmark(way, block, transactions=TRANSACTIONS_AT_DATA),  # type: ignore[misc]
    )
    for block in (512, 4096)
}
EVERYTHING = POSTMARKS | UNSEEN | LARGE
OFTEN = LARGE | KEPT | AT_DATA


@dataclass(frozen=True)
class Comparison:
    """Ours against a baseline in these cases."""

    suffix: str
    ours: Way
    baseline: Way
    baseline_name: str
    cases: dict[str, tuple[str, Measure]]

    @property
    def ways(self) -> tuple[Way, ...]:
        """All that have to be measured."""
        return (self.ours, self.baseline)

    def results(self) -> Iterator[Result]:
        for case, (unit, _) in self.cases.items():
            ours, theirs = self.ours.samples[case], self.baseline.samples[case]
            yield Result.of(f"{case}{self.suffix}", ours, theirs, unit=unit, baseline_name=self.baseline_name)


@dataclass(frozen=True)
class Least(Comparison):
    """What anyone who writes by FUSE, and waits until home has it, could have if the way to home took no time: `ours` writes to a FUSE file
    system that keeps nothing (fuse_alone.c), `native` at home; a piece is written when both have been done, one after the other."""

    native: Way

    @property
    def ways(self) -> tuple[Way, ...]:
        return (self.ours, self.baseline, self.native)

    def results(self) -> Iterator[Result]:
        for case, (unit, _) in self.cases.items():
            both = zip(self.ours.samples[case], self.native.samples[case], strict=True)
            least = [1 / (1 / alone + 1 / native) for alone, native in both]
            yield Result.of(f"{case}{self.suffix}", least, self.baseline.samples[case], unit=unit, baseline_name=self.baseline_name)


def _ours(lab: Lab) -> Way:
    home, node = lab.node("n1"), lab.node("n2")
    point = f"/mfs/n1{BASE}"
    wait_until(lambda: node.run(["test", "-d", point], timeout=30).returncode == 0, f"{point} on {node.name}")
    return Way(home, node, point)


def _theirs(server: Server, node: Node, name: str, *options: str, encrypted: bool = True) -> Way:
    point = f"/tmp/{name}"
    server.mount(node, BASE, point, *options, encrypted=encrypted)
    return Way(server.home, node, point)


@contextlib.contextmanager
def _alone(home: Node, node: Node) -> Iterator[Way]:
    """FUSE without anything behind it. Errors: BenchFailed."""
    point = "/tmp/fuse-alone"
    checked(node, ["mkdir", "-p", point])
    server = node.popen([build("files/fuse_alone"), point], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until((node.root / point.lstrip("/")).is_mount, f"the mount of {point}")
        yield Way(home, node, point)
    finally:
        server.kill()
        server.wait(10)


@contextlib.contextmanager
def _nodes(kind: str, configuration: str) -> Iterator[tuple[Lab, Server]]:
    with bench_lab(2, name=f"bench{os.getpid()}-{kind}", cpus=2, configuration=configuration) as lab, Server(lab.node("n1")) as server:
        checked(lab.node("n1"), ["mkdir", "-p", BASE])
        yield lab, server


def comparisons(encrypted: Lab, plain: Lab, servers: tuple[Server, Server], alone: Way) -> list[Comparison]:
    """All ways, compared as people would choose between them. Errors: BenchFailed if one cannot be had."""
    home, away = encrypted.node("n1"), encrypted.node("n2")
    ours, bare = _ours(encrypted), _ours(plain)
    native, at_data = Way(home, home, BASE), Way(home, home, f"/mfs/{home.name}{BASE}")
    sshfs = _theirs(servers[0], away, "sshfs")
    strict = _theirs(servers[0], away, "sshfs-strict", "cache=no")
    bare_sshfs = _theirs(servers[1], plain.node("n2"), "sshfs-bare", encrypted=False)
    once = {"PostMark, blocks of 4096": POSTMARKS["PostMark, blocks of 4096"]}
    return [
        Comparison("", ours, sshfs, "sshfs", EVERYTHING),
        Comparison(", nothing old", ours, strict, "sshfs cache=no", once | UNSEEN),
        Comparison(", not encrypted", bare, bare_sshfs, "sshfs directport", once | UNSEEN | LARGE),
        Comparison(", not encrypted", bare, native, "native", WRITTEN),
        Least(", FUSE alone and native after it", alone, bare_sshfs, "sshfs directport", WRITTEN, native),
        Comparison("", ours, native, "native", KEPT),
        Comparison("", at_data, native, "native", AT_DATA),
    ]


def run() -> list[Result]:
    """Measure in two fresh labs. Errors: BenchFailed."""
    installed()
    cases = Cases(build("files/file_ops"))
    with (
        _nodes("encrypted", CONFIGURATION) as (encrypted, first),
        _nodes("plain", f"encryption = false\n{CONFIGURATION}") as (plain, second),
        _alone(plain.node("n1"), plain.node("n2")) as alone,
    ):
        compared = comparisons(encrypted, plain, (first, second), alone)
        for one in compared:
            cases.write(one.ours)  # the large file is there
        for _ in range(rounds(ROUNDS)):
            for case, (_, measure) in (EVERYTHING | KEPT | AT_DATA).items():
                ways = {id(way): way for one in compared if case in one.cases for way in one.ways}
                for _ in range(TIMES if case in OFTEN else 1):
                    for way in ways.values():  # by turns: whatever else the machine does weighs on all
                        way.samples.setdefault(case, []).append(measure(cases, way))
        worked = file_work.results(encrypted, cases.program, rounds(ROUNDS))
    return [result for one in compared for result in one.results()] + worked


def short() -> list[Result]:
    """Measure names and large files against the native file system, in one lab as farhome is shipped. Errors: BenchFailed."""
    cases = Cases(build("files/file_ops"))
    with bench_lab(2, cpus=2, configuration=CONFIGURATION) as lab:
        checked(lab.node("n1"), ["mkdir", "-p", BASE])
        home = lab.node("n1")
        compared = Comparison("", _ours(lab), Way(home, home, BASE), "native", UNSEEN | LARGE | KEPT)
        cases.write(compared.ours)  # the large file is there
        for _ in range(SHORT_ROUNDS):
            for case, (_, measure) in compared.cases.items():
                for way in compared.ways:
                    way.samples.setdefault(case, []).append(measure(cases, way))
    return list(compared.results())
