"""How soon a node that has died is noticed by all others: real daemons in a lab.

One node after the other dies without a last word in a cluster of six, until three are left; that in several labs. The time is
until each of the others counts it as dead, so the last of them. The baseline is the target.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict

from bench.common.nodes import bench_lab, wait_until
from bench.common.result import Result
from lab import Lab, LabError

NODES, LEAST = 6, 4
ROUNDS = 5
"""Labs; FARHOME_BENCH_ROUNDS says otherwise."""
TARGET = 8.0
PATIENCE = 60.0
SETTLE = 3.0
"""Seconds in which all that was news has been sent."""
POLL = 0.05


def knows(lab: Lab, at: str) -> tuple[set[str], set[str]]:
    """Return the nodes that are there, and those that are dead, for that node; none if it does not answer in time."""
    try:
        answer = lab.node(at).ask_mosd("watch")
    except LabError:
        return set(), set()
    return {row["name"] for row in answer["nodes"]}, {one["name"] for one in answer["dead"]}


def death(lab: Lab, victim: str, others: list[str]) -> float:
    """Return the seconds until all others know that the victim is dead. Errors: BenchFailed."""
    wait_until(lambda: all(knows(lab, name)[0] == {*others, victim} for name in others), "the view of all", PATIENCE)
    time.sleep(SETTLE)
    begun = time.monotonic()
    lab.kill(victim)
    left = set(others)
    while left:
        left -= {name for name in left if victim in knows(lab, name)[1]}
        if time.monotonic() - begun > PATIENCE:
            break
        time.sleep(POLL)
    return time.monotonic() - begun


def run() -> list[Result]:
    """Let nodes die; some minutes."""
    times: dict[int, list[float]] = defaultdict(list)
    for _ in range(int(os.environ.get("FARHOME_BENCH_ROUNDS") or ROUNDS)):
        with bench_lab(NODES, configuration="[balance]\nenabled = false\n") as lab:
            names = [f"n{number}" for number in range(1, NODES + 1)]
            while len(names) >= LEAST:
                count, victim = len(names), names.pop()
                times[count].append(death(lab, victim, names))
    return [
        Result.of(f"dead node noticed by all, {count} nodes", seconds, [TARGET], unit="s", baseline_name="target")
        for count, seconds in sorted(times.items())
    ]  # fmt: skip
