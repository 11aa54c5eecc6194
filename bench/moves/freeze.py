"""How long a move stands still and takes in all, out, hop and home, against plain CRIU between the same nodes.

The program (freeze.c) holds 10 MB to 4 GiB, does nothing or writes to it, and verifies it at its end. `frozen` is what the deputy
measures, from the seizing to the word that the guest runs, and before it the moment in which it was stopped to be watched; `total` is
the time of the command `migrate`. Plain CRIU is `criu dump`, the images over the network and `criu restore`, of the same program from n1
to n2: from the dump's start to the restore's end, for both.

One that only reads, at random, is moved with `--memory postcopy`: `lost` is how long it would have taken for what it has not read in the
two seconds from the move's begin, the freeze included; `rate` how much it reads in the first of them, against the second before the move.

`ahead` is at what rate memory goes ahead of the process while it runs, against bare TCP streams from n1 to n2 (stream.py), one of a
megabyte again and again, and one of as much memory into fresh memory, both as the machine has its streams and, where its congestion control
paces them (bbr), without that, as moves go: through virtual cables, which are as fast as the processors that both nodes share, and over
links of 10 Gbit/s.

`encrypted` is the same program by turns in a lab as it is shipped, and in one whose nodes have given encryption up: its records have a MAC
alone, which is the least that there is.

A crowd (crowd.c) is a program of 1,000 threads, or of 30,000 mappings, which is moved in the same way: `frozen` is for each of them, in
microseconds.

FARHOME_BENCH_CASES names those parts that are measured, with commas between: memory, reads, crowds, encrypted, link; without it, all.

A virtual machine's host may have taken back memory that was free, and gives it again page by page: as much as a move needs is used once
before it.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import mmap
import os
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.common.nodes import INSIDE, bench_lab, build, checked, rounds, wait_until
from bench.common.result import BenchFailed, Result
from engine.criu.criu import tool

if TYPE_CHECKING:
    from lab import Lab, Node

ROOT = Path(__file__).resolve().parents[2]
PYTHON = f"{INSIDE}/.venv/bin/python"
#: Megabytes, pages that the program writes a second (-1: as many as it can), rounds, each of an out, a hop and a way home.
#: FARHOME_BENCH_ROUNDS sets all of them.
CASES = ((10, 0, 10), (200, -1, 3), (1024, 0, 10), (1024, 20000, 10), (4096, 0, 3))
SHORT_CASE = (10, 0, 5)
CROWDS = (("threads", 1000, 0, 5), ("mappings", 30000, 1, 5))
"""What there is many of, how many, what crowd.c calls it, rounds."""
PARTS = ("memory", "reads", "crowds", "encrypted", "link")
ENCRYPTED = ((200, -1, 5), (1024, 0, 5))
"""Megabytes, pages a second, rounds."""
BEFORE, AFTER, WINDOW = 1.5, 3.0, 2.0
"""Seconds that a reader is left alone before a move, and after it, and that are looked at."""
READER = (1024, 5)
"""Megabytes, rounds."""
STREAM = 1 << 30
"""Bytes of a bare stream."""
STREAMS = {
    "piece": "one megabyte", "memory": "memory to memory",
    "piece-unpaced": "one megabyte, not paced", "memory-unpaced": "memory to memory, not paced",
}  # fmt: skip
LINK = ("10gbit", 1024, 5)
"""Rate, megabytes, rounds."""
MOVES = (("out", "n2"), ("hop", "n3"), ("home", "home"))
PLAIN_PID = 30000
MADV_POPULATE_WRITE = 23
IMAGES = "/run/plain-criu"


def _said(node: Node, path: str) -> str:
    try:
        return (node.root / path.lstrip("/")).read_text()
    except OSError:
        return ""


def _verified(node: Node, pid: int, path: str, what: str) -> None:
    """Ends the program, which reports whether all of its memory is as it should be. Errors: BenchFailed."""
    checked(node, ["kill", "-TERM", str(pid)])
    wait_until(lambda: _said(node, path) not in ("", "ready\n"), f"the last word of {what}", 60)
    if not _said(node, path).startswith("intact "):
        raise BenchFailed(f"{what} found its memory damaged after the moves")


def have_memory(size: int) -> None:
    """Uses so many bytes, and gives them back."""
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as room:
        room.madvise(MADV_POPULATE_WRITE)


@dataclass
class Ours:
    """Times of moves in ms, by kind of move."""

    frozen: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind, _ in MOVES})
    total: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind, _ in MOVES})
    rate: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind, _ in MOVES})
    """MiB/s at which memory went ahead, if it did"""


def moves(lab: Lab, program: str, megabytes: int, rate: int, result: Ours) -> None:
    """Moves the program out, on and home, adds the times to `result`, and verifies it. Errors: BenchFailed."""
    _moves(lab, program, megabytes, rate, megabytes * 2**20 * 5 // 4, f"the program of {megabytes} MB", result)


def crowd_moves(lab: Lab, program: str, count: int, kind: int, result: Ours) -> None:
    """The same of a crowd. Errors: BenchFailed."""
    _moves(lab, program, count, kind, count << 14, f"the crowd of {count}", result)


def _moves(lab: Lab, program: str, size: int, kind_or_rate: int, memory: int, what: str, result: Ours) -> None:
    node, path, job = lab.node("n1"), f"/tmp/freeze-{size}", f"freeze-{size}"
    # Locked: the balancer is to keep its hands off; moves by hand go all the same.
    argv = ["mosrun", "-L", "-J", job, program, str(size), path, str(kind_or_rate)]
    checked(node, ["rm", "-f", path])
    with node.popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _said(node, path) == "ready\n", what, 60)
            pid = int(process.node_pid)
            for kind, target in MOVES:
                have_memory(memory)
                begun = time.monotonic()
                reported = json.loads(checked(node, ["migrate", "--json", str(pid), target], 120))
                result.total[kind].append((time.monotonic() - begun) * 1e3)
                if not reported.get("moved") or reported["where"] != target:
                    raise BenchFailed(f"{what} did not move {kind}: {reported.get('reason')}")
                result.frozen[kind].append(float(reported["frozen_ms"]))
                if reported["ahead_ms"]:
                    result.rate[kind].append(reported["ahead_bytes"] / 2**20 / (reported["ahead_ms"] / 1e3))
            _verified(node, pid, path, what)
            if process.wait(60) != 0:
                raise BenchFailed(f"{what} ended with {process.returncode}")
        finally:
            process.kill()


@dataclass
class Reader:
    """What a program that reads has lost by moves, by kind of move: ms, pages a second in the first second, and in that before."""

    lost: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind, _ in MOVES})
    rate: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind, _ in MOVES})
    before: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind, _ in MOVES})


def reads(lab: Lab, program: str, megabytes: int, result: Reader) -> None:
    """Moves a program that reads its memory at random, which follows it. Errors: BenchFailed."""
    node, path, job = lab.node("n1"), f"/tmp/reader-{megabytes}", f"reader-{megabytes}"
    argv = ["mosrun", "-L", "-J", job, program, str(megabytes), path, "-2"]
    begun: dict[str, float] = {}
    with node.popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _said(node, path) == "ready\n", f"the reader of {megabytes} MB", 60)
            pid = int(process.node_pid)
            for kind, target in MOVES:
                time.sleep(BEFORE)
                begun[kind] = time.time()
                reported = json.loads(checked(node, ["migrate", "--json", "--memory", "postcopy", str(pid), target], 120))
                if not reported.get("moved") or not reported["follows_bytes"]:
                    raise BenchFailed(f"the reader did not move {kind} with its memory after it: {reported.get('reason')}")
                time.sleep(AFTER)
            _verified(node, pid, path, "the reader")
        finally:
            process.kill()
    samples = [(float(when), int(number)) for when, number in map(str.split, _said(node, f"{path}.samples").splitlines())]

    def until(when: float) -> float:
        at = bisect.bisect(samples, (when, 0))
        if not 0 < at < len(samples):
            raise BenchFailed("the reader reported too short a time")
        (earlier, first), (later, last) = samples[at - 1], samples[at]
        return first + (last - first) * (when - earlier) / (later - earlier)

    for kind, at in begun.items():
        base = until(at) - until(at - 1)
        result.before[kind].append(base)
        result.rate[kind].append(until(at + 1) - until(at))
        result.lost[kind].append((WINDOW - (until(at + WINDOW) - until(at)) / base) * 1e3)


def plain(lab: Lab, program: str, megabytes: int, rate: int, pid: int = PLAIN_PID) -> float:
    """Moves the program from n1 to n2 with CRIU alone, and verifies it; returns the ms it stood still. Errors: BenchFailed."""
    home, away = lab.node("n1"), lab.node("n2")
    script, path, what = (
        f"{INSIDE}/bench/moves/plain_criu.py",
        f"/tmp/plain-{megabytes}",
        f"the program moved by CRIU alone, {megabytes} MB,",
    )
    for node in (home, away):
        checked(node, ["rm", "-f", path])
    try:
        checked(home, [PYTHON, script, "start", str(pid), program, str(megabytes), path, str(rate)])
        wait_until(lambda: _said(home, path) == "ready\n", what, 60)
        with away.popen([PYTHON, script, "target", IMAGES, away.address, *tool().argv], stdout=subprocess.PIPE, text=True) as target:
            try:
                assert target.stdout is not None
                port = str(target.stdout.readline()).strip()
                reported = checked(home, [PYTHON, script, "source", str(pid), IMAGES, away.address, port, *tool().argv], 180)
                if target.wait(60) != 0:
                    raise BenchFailed(f"{what} was not restored")
            finally:
                target.kill()
        _verified(away, pid, path, what)
    finally:
        for node in (home, away):
            with contextlib.suppress(BenchFailed):
                checked(node, ["sh", "-c", f"kill -9 {pid} 2>/dev/null; rm -rf {IMAGES}; true"])
    return float(json.loads(reported)["frozen"])


def stream(lab: Lab, what: str) -> float:
    """MiB/s of a bare TCP stream from n1 to n2 (of STREAMS). Errors: BenchFailed."""
    home, away, script = lab.node("n1"), lab.node("n2"), f"{INSIDE}/bench/moves/stream.py"
    have_memory(2 * STREAM)
    with away.popen([PYTHON, script, "take", what, away.address, str(STREAM)], stdout=subprocess.PIPE, text=True) as taker:
        try:
            assert taker.stdout is not None
            port = str(taker.stdout.readline()).strip()
            seconds = float(checked(home, [PYTHON, script, "give", what, away.address, str(STREAM), port], 60))
        finally:
            taker.kill()
    return STREAM / 2**20 / seconds


class Streams:
    """What bare streams of each kind have moved, in MiB/s."""

    def __init__(self) -> None:
        self._rates: dict[str, list[float]] = {what: [] for what in STREAMS}

    def run(self, lab: Lab) -> None:
        """One of each kind. Errors: BenchFailed."""
        for what, rates in self._rates.items():
            rates.append(stream(lab, what))

    def against(self, case: str, ours: Ours) -> list[Result]:
        return [
            Result.of(f"{case}, {kind} ahead", ours.rate[kind], rates, unit="MiB/s", baseline_name=f"bare TCP stream, {STREAMS[what]}")
            for what, rates in self._rates.items()
            for kind, _ in MOVES
        ]


def _cases() -> Iterator[tuple[int, int, int]]:
    for megabytes, rate, usual in CASES:
        yield megabytes, rate, rounds(usual)


def over_a_link(program: str) -> list[Result]:
    """At what rate memory goes ahead over links of a known rate. Errors: BenchFailed."""
    bandwidth, megabytes, usual = LINK
    ours, bare = Ours(), Streams()
    with bench_lab(3, cpus=2, bandwidth=bandwidth) as lab:
        moves(lab, program, 1, 0, Ours())
        for _ in range(rounds(usual)):
            moves(lab, program, megabytes, 0, ours)
            bare.run(lab)
    return bare.against(f"1 GiB, idle, links of {bandwidth}", ours)


def encrypted(program: str) -> list[Result]:
    """Moves with encryption against moves without. Errors: BenchFailed."""
    results: list[Result] = []
    with (
        bench_lab(3, cpus=2) as encrypted,
        bench_lab(3, cpus=2, name=f"bench{os.getpid()}p", configuration="encryption = false\n") as plain,
    ):
        for lab in (encrypted, plain):
            moves(lab, program, 1, 0, Ours())
        for megabytes, rate, usual in ENCRYPTED:
            ours, theirs = Ours(), Ours()
            for _ in range(rounds(usual)):
                moves(plain, program, megabytes, rate, theirs)
                moves(encrypted, program, megabytes, rate, ours)
            what = "idle" if not rate else "written all the time"
            for name, times, others in (("frozen", ours.frozen, theirs.frozen), ("total", ours.total, theirs.total)):
                results += [
                    Result.of(
                        f"{megabytes} MB, {what}, {kind} {name}, encrypted", times[kind], others[kind], unit="ms",
                        baseline_name="not encrypted, a MAC alone",
                    )
                    for kind, _ in MOVES
                ]  # fmt: skip
    return results


def parts() -> list[str]:
    """What is to be measured (of PARTS). Errors: BenchFailed."""
    chosen = [part for part in os.environ.get("FARHOME_BENCH_CASES", "").split(",") if part] or list(PARTS)
    for part in chosen:
        if part not in PARTS:
            raise BenchFailed(f"FARHOME_BENCH_CASES names {part!r}; there are {', '.join(PARTS)}")
    return chosen


def of_memory(lab: Lab, program: str, cases: Iterable[tuple[int, int, int]]) -> list[Result]:
    """Moves of programs of these sizes. Errors: BenchFailed."""
    results: list[Result] = []
    for megabytes, rate, count in cases:
        ours, baseline, bare = Ours(), [], Streams()
        is_streamed = rate == 0 and megabytes >= 1024
        for _ in range(count):  # by turns: whatever else the machine does weighs on both
            moves(lab, program, megabytes, rate, ours)
            baseline.append(plain(lab, program, megabytes, rate))
            if is_streamed:
                bare.run(lab)
        size = f"{megabytes} MB" if megabytes < 1024 else f"{megabytes // 1024} GiB"
        what = {0: "idle", -1: "written all the time"}.get(rate, f"{rate} pages/s written")
        for name, times in (("frozen", ours.frozen), ("total", ours.total)):
            results += [
                Result.of(f"{size}, {what}, {kind} {name}", times[kind], baseline, unit="ms", baseline_name="criu dump + copy + restore")
                for kind, _ in MOVES
            ]
        if is_streamed:
            results += bare.against(f"{size}, {what}", ours)
    return results


def of_reads(lab: Lab, program: str) -> list[Result]:
    """Moves of a program that reads its memory. Errors: BenchFailed."""
    results: list[Result] = []
    megabytes, usual = READER
    reader, baseline = Reader(), []
    for _ in range(rounds(usual)):
        reads(lab, program, megabytes, reader)
        baseline.append(plain(lab, program, megabytes, 0))
    for kind, _ in MOVES:
        case = f"1 GiB, read at random, {kind}"
        results.append(Result.of(f"{case} lost", reader.lost[kind], baseline, unit="ms", baseline_name="criu dump + copy + restore"))
        results.append(Result.of(f"{case} rate", reader.rate[kind], reader.before[kind], unit="pages/s", baseline_name="the second before"))
    return results


def of_crowds(lab: Lab) -> list[Result]:
    """Moves of many threads, and of many mappings. Errors: BenchFailed."""
    program = build("moves/crowd")
    results: list[Result] = []
    for what, count, kind_of_crowd, usual in CROWDS:
        ours, baseline = Ours(), []
        for _ in range(rounds(usual)):
            crowd_moves(lab, program, count, kind_of_crowd, ours)
            baseline.append(plain(lab, program, count, kind_of_crowd))
        for kind, _ in MOVES:
            each, theirs = [time * 1e3 / count for time in ours.frozen[kind]], [time * 1e3 / count for time in baseline]
            case = f"{count} {what}, {kind} frozen, each"
            results.append(Result.of(case, each, theirs, unit="us", baseline_name="criu dump + copy + restore"))
    return results


def run() -> list[Result]:
    """Measure in a fresh lab of three equal nodes. Errors: BenchFailed."""
    chosen = parts()
    program = build("moves/freeze")
    results: list[Result] = []
    if {"memory", "reads", "crowds"} & set(chosen):
        with bench_lab(3, cpus=2) as lab:
            plain(lab, program, 1, 0)  # CRIU learns the kernel once, in each node
            moves(lab, program, 1, 0, Ours())
            results += of_memory(lab, program, _cases()) if "memory" in chosen else []
            results += of_reads(lab, program) if "reads" in chosen else []
            results += of_crowds(lab) if "crowds" in chosen else []
    results += encrypted(program) if "encrypted" in chosen else []
    return results + (over_a_link(program) if "link" in chosen else [])


def short() -> list[Result]:
    """Measure moves of the smallest program. Errors: BenchFailed."""
    program = build("moves/freeze")
    with bench_lab(3, cpus=2) as lab:
        plain(lab, program, 1, 0)
        moves(lab, program, 1, 0, Ours())
        return of_memory(lab, program, [SHORT_CASE])
