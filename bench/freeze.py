"""How long a move stands still and takes in all, out, hop and home, against plain CRIU between the same nodes.

The program (freeze.c) holds 10 MB, 200 MB or 1 GiB, works on it all the time, and verifies it at its end. `frozen` is what
the deputy measures, from the seizing to the word that the guest runs; `total` is the time of the command `migrate`. Plain CRIU
is `criu dump`, the images over the network and `criu restore`, of the same program from n1 to n2: from the dump's start to the
restore's end, for both.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.nodes import INSIDE, bench_lab, build, checked, wait_until
from bench.result import BenchFailed, Result
from engine.criu import tool

if TYPE_CHECKING:
    from lab import Lab, Node

ROOT = Path(__file__).resolve().parent.parent
PYTHON = f"{INSIDE}/.venv/bin/python"
#: Megabytes -> rounds, each of an out, a hop and a way home. FARHOME_BENCH_ROUNDS sets all of them.
SIZES = {10: 5, 200: 3, 1024: 1}
MOVES = (("out", "n2"), ("hop", "n3"), ("home", "home"))
PLAIN_PID = 30000
IMAGES = "/run/plain-criu"


def _said(node: Node, path: str) -> str:
    try:
        return (node.root / path.lstrip("/")).read_text()
    except OSError:
        return ""


def _verified(node: Node, pid: int, path: str, what: str) -> None:
    """Ends the program, which tells whether all of its memory is as it should be. Errors: BenchFailed."""
    checked(node, ["kill", "-TERM", str(pid)])
    wait_until(lambda: _said(node, path) not in ("", "ready\n"), f"the last word of {what}", 60)
    if not _said(node, path).startswith("intact "):
        raise BenchFailed(f"{what} found its memory damaged after the moves")


@dataclass
class Ours:
    """Times of moves in ms, by kind of move."""

    frozen: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind, _ in MOVES})
    total: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind, _ in MOVES})


def moves(lab: Lab, program: str, megabytes: int, result: Ours) -> None:
    """Moves the program out, on and home, adds the times to `result`, and verifies it. Errors: BenchFailed."""
    node, path, job = lab.node("n1"), f"/tmp/freeze-{megabytes}", f"freeze-{megabytes}"
    # Locked: the balancer is to keep its hands off; moves by hand go all the same.
    argv = ["mosrun", "-L", "-J", job, program, str(megabytes), path]
    with node.popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _said(node, path) == "ready\n", f"the program of {megabytes} MB", 60)
            pid = int(process.node_pid)
            for kind, target in MOVES:
                begun = time.monotonic()
                told = json.loads(checked(node, ["migrate", "--json", str(pid), target], 120))
                result.total[kind].append((time.monotonic() - begun) * 1e3)
                if not told.get("moved") or told["where"] != target:
                    raise BenchFailed(f"the program of {megabytes} MB did not move {kind}: {told.get('reason')}")
                result.frozen[kind].append(float(told["frozen_ms"]))
            _verified(node, pid, path, f"the program of {megabytes} MB")
            if process.wait(60) != 0:
                raise BenchFailed(f"the program of {megabytes} MB ended with {process.returncode}")
        finally:
            process.kill()


def plain(lab: Lab, program: str, megabytes: int, pid: int = PLAIN_PID) -> float:
    """Moves the program from n1 to n2 with CRIU alone, and verifies it; returns the ms it stood still. Errors: BenchFailed."""
    home, away = lab.node("n1"), lab.node("n2")
    script, path, what = f"{INSIDE}/bench/plain_criu.py", f"/tmp/plain-{megabytes}", f"the program moved by CRIU alone, {megabytes} MB,"
    for node in (home, away):
        checked(node, ["rm", "-f", path])
    try:
        checked(home, [PYTHON, script, "start", str(pid), program, str(megabytes), path])
        wait_until(lambda: _said(home, path) == "ready\n", what, 60)
        with away.popen([PYTHON, script, "target", IMAGES, away.address, *tool().argv], stdout=subprocess.PIPE, text=True) as target:
            try:
                assert target.stdout is not None
                port = str(target.stdout.readline()).strip()
                told = checked(home, [PYTHON, script, "source", str(pid), IMAGES, away.address, port, *tool().argv], 180)
                if target.wait(60) != 0:
                    raise BenchFailed(f"{what} was not restored")
            finally:
                target.kill()
        _verified(away, pid, path, what)
    finally:
        for node in (home, away):
            with contextlib.suppress(BenchFailed):
                checked(node, ["sh", "-c", f"kill -9 {pid} 2>/dev/null; rm -rf {IMAGES}; true"])
    return float(json.loads(told)["frozen"])


def _sizes() -> Iterator[tuple[int, int]]:
    chosen = os.environ.get("FARHOME_BENCH_ROUNDS", "")
    for megabytes, rounds in SIZES.items():
        yield megabytes, int(chosen) if chosen.isdigit() and int(chosen) > 0 else rounds


def run() -> list[Result]:
    """Measure in a fresh lab of three equal nodes. Errors: BenchFailed."""
    program = build("freeze")
    results: list[Result] = []
    with bench_lab(3, cpus=2) as lab:
        plain(lab, program, 1)  # CRIU learns the kernel once, in each node
        moves(lab, program, 1, Ours())
        for megabytes, rounds in _sizes():
            ours, baseline = Ours(), []
            for _ in range(rounds):  # by turns: whatever else the machine does weighs on both
                moves(lab, program, megabytes, ours)
                baseline.append(plain(lab, program, megabytes))
            size = f"{megabytes} MB" if megabytes < 1024 else f"{megabytes // 1024} GiB"
            for name, times in (("frozen", ours.frozen), ("total", ours.total)):
                results += [
                    Result.of(f"{size} {kind} {name}", times[kind], baseline, unit="ms", baseline_name="criu dump + copy + restore")
                    for kind, _ in MOVES
                ]
    return results
