"""Threads and children made by a process that is away against the same at home: from the call to their end, which it waits for."""

from __future__ import annotations

import subprocess
import threading
from typing import IO

from bench.common.nodes import bench_lab, build, checked, migrate, wait_until
from bench.common.result import Result

COUNT = 40
KINDS = ("thread", "fork", "vfork", "spawn")


class Times:
    """What the program writes, as it comes: microseconds of each kind."""

    def __init__(self, stream: IO[str]) -> None:
        self.times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            kind, time = line.split()
            self.times[kind].append(int(time) / 1e3)

    def next(self) -> dict[str, list[float]]:
        """The times of COUNT children of each kind that are made after now."""
        start = {kind: len(times) + 1 for kind, times in self.times.items()}
        wait_until(lambda: all(len(self.times[kind]) >= start[kind] + COUNT for kind in KINDS), "the next children", 120)
        return {kind: self.times[kind][start[kind] : start[kind] + COUNT] for kind in KINDS}


def run() -> list[Result]:
    """Measure in a fresh lab of two equal nodes. Errors: BenchFailed."""
    with (
        bench_lab(2) as lab,
        lab.node("n1").popen(
            ["mosrun", "-L", "-J", "bench-births", build("processes/births")], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            times = Times(process.stdout)
            home = times.next()
            migrate(lab, "bench-births", "n2")
            away = times.next()
            checked(lab.node("n1"), ["mosps"])
        finally:
            process.kill()
        return [Result.of(kind, away[kind], home[kind], unit="us", baseline_name="at home") for kind in KINDS]


short = run
"""It takes seconds."""
