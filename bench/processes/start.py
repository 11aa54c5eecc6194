"""``mosrun true`` against ``true``: what registering with the node daemon adds to the start of a program."""

from __future__ import annotations

import json

from bench.common.nodes import INSIDE, bench_lab, checked
from bench.common.result import Result

COUNT = 60


def run() -> list[Result]:
    """Measure in a node of a fresh lab. Errors: BenchFailed."""
    with bench_lab(1) as lab:
        command = [
            f"{INSIDE}/.venv/bin/python",
            f"{INSIDE}/bench/processes/spawn_times.py",
            str(COUNT),
            "mosrun",
            "true",
            "::",
            "true",
        ]
        times = json.loads(checked(lab.node("n1"), command, timeout=120))
    return [Result.of("mosrun true", times["ours"], times["baseline"], unit="us", baseline_name="true")]


short = run
"""It takes seconds."""
