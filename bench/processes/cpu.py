"""A cpu-bound program away against at home: the same running process, moved out and home by turns."""

from __future__ import annotations

import subprocess
import threading
from typing import IO, TYPE_CHECKING

from bench.common.nodes import INSIDE, bench_lab, build, migrate, wait_until
from bench.common.result import Result

if TYPE_CHECKING:
    from lab import Lab

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
                migrate(lab, job, "n2")
                away += pieces.next(PIECES)
                migrate(lab, job, "home")
        finally:
            process.kill()
    return Result.of(case, away, home, unit="ms", baseline_name="at home")


def run() -> list[Result]:
    """Measure in a fresh lab of two equal nodes. Errors: BenchFailed."""
    with bench_lab(2) as lab:
        return [
            _measure(lab, "c", [build("processes/cpu")]),
            _measure(lab, "python", ["/usr/bin/python3", f"{INSIDE}/bench/processes/cpu_loop.py"]),
        ]
