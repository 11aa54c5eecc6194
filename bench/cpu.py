"""A cpu-bound program away against at home: the same running process, moved out and home by turns."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING

from bench.nodes import INSIDE, bench_lab, checked, wait_until
from bench.result import BenchFailed, Result

if TYPE_CHECKING:
    from lab import Lab

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 6
PIECES = 6
#: Pieces of work that are let go after a move: the one that was cut by it, and one with the caches cold.
SKIPPED = 2


class Pieces:
    """The times of the pieces of work that a program writes, as they come."""

    def __init__(self, stream: IO[str]) -> None:
        self.times: list[float] = []
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self.times.append(int(line) / 1e6)

    def next(self, count: int) -> list[float]:
        """Return the times, in ms, of `count` pieces that are begun after now."""
        start = len(self.times) + SKIPPED
        wait_until(lambda: len(self.times) >= start + count, f"the next {count} pieces of work", 60)
        return self.times[start : start + count]


def _build() -> str:
    """Compile the C program; returns where the nodes see it. Errors: BenchFailed."""
    target = ROOT / ".build" / "bench-cpu"
    target.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix="bench-cpu.", delete=False) as new:
        command = ["gcc", "-O2", "-Wall", "-Wextra", "-o", new.name, str(ROOT / "bench" / "cpu.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        os.unlink(new.name)
        raise BenchFailed(f"gcc does not compile bench/cpu.c: {done.stderr.strip().splitlines()[0]}")
    os.chmod(new.name, 0o755)
    os.replace(new.name, target)
    return f"{INSIDE}/.build/{target.name}"


def _where(lab: Lab, job: str) -> tuple[int, str]:
    rows = json.loads(checked(lab.node("n1"), ["mosps", "--json", "-J", job]))
    if len(rows) != 1:
        raise BenchFailed(f"mosps shows {len(rows)} processes of job {job} instead of one")
    return int(rows[0]["pid"]), str(rows[0]["where"])


def _migrate(lab: Lab, job: str, target: str) -> None:
    pid, _ = _where(lab, job)
    checked(lab.node("n1"), ["migrate", str(pid), target])
    _, where = _where(lab, job)
    if where != target:
        raise BenchFailed(f"the program was to be {target} and is {where}")


def _measure(lab: Lab, case: str, program: list[str]) -> Result:
    away: list[float] = []
    home: list[float] = []
    job = f"bench-{case}"
    # Locked: the balancer is to keep its hands off; moves by hand go all the same.
    with lab.node("n1").popen(
        ["mosrun", "-L", "-J", job, *program], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            pieces = Pieces(process.stdout)
            for _ in range(ROUNDS):
                home += pieces.next(PIECES)
                _migrate(lab, job, "n2")
                away += pieces.next(PIECES)
                _migrate(lab, job, "home")
        finally:
            process.kill()
    return Result.of(case, away, home, unit="ms", baseline_name="at home")


def run() -> list[Result]:
    """Measure in a fresh lab of two equal nodes. Errors: BenchFailed."""
    with bench_lab(2) as lab:
        return [
            _measure(lab, "c", [_build()]),
            _measure(lab, "python", ["/usr/bin/python3", f"{INSIDE}/bench/cpu_loop.py"]),
        ]
