"""Runs random programs natively and away: `python -m tests.referee [--seed N] [--calls N] [--way away|moved] [--minutes N]`."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter

from tests.moves.cluster import Cluster
from tests.moves.storm import new_seed
from tests.referee.compare import Court, Difference, step_name
from tests.referee.explained import explain
from tests.referee.program import Episode, episode, program

PART = 8_000
"""Calls that are run at once."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.referee", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the whole program (default: a new one); each part of it has the next one")
    parser.add_argument("--episode", type=int, action="append", default=[], help="this one alone, by its number in the report")
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=600, help="no part begins later than that")
    parser.add_argument("--way", choices=["native", "away", "moved"], default="away")
    parser.add_argument("--shorten", type=int, default=3, help="how many differences are shortened")
    options = parser.parse_args()
    seed = options.seed or new_seed() % 1_000_000
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # it takes its nodes with it, as a bench does
    cluster = Cluster(3)
    court = Court(cluster)
    began = time.monotonic()
    found: list[Difference] = []
    try:
        if options.episode:
            found = judge(court, [episode(number) for number in options.episode], options.way)
        while not options.episode and court.compared[options.way] < options.calls and time.monotonic() - began < options.minutes * 60:
            found += judge(court, program(seed, min(PART, options.calls)), options.way)
            print(f"seed {seed}: {court.compared[options.way]} calls the same in {time.monotonic() - began:.0f} s", flush=True)
            seed += 1
        show_shortest(court, found, options.shorten)
        return 1 if found else 0
    finally:
        court.close()
        cluster.down()


def judge(court: Court, episodes: list[Episode], way: str) -> list[Difference]:
    """Returns the unexplained differences; prints all differences."""
    found, unsteady = court.judge(episodes, way)
    if unsteady:
        print(f"not judged further, as they differ natively: {Counter(map(step_name, unsteady)).most_common()}")
    for one in found:
        reason = explain(one)
        print(f"{one}\n    explained: {reason.reason}" if reason else one, flush=True)
    return [one for one in found if not explain(one)]


def show_shortest(court: Court, found: list[Difference], most: int) -> None:
    """The shortest programs found that show them, one for each call."""
    seen: set[str] = set()
    for one in found:
        if step_name(one) not in seen and len(seen) < most:
            seen.add(step_name(one))
            short = court.shorten(one)
            print("----", short, *(f"        {step.text[:150]}" for step in short.episode.steps), sep="\n")
            for record in court.both(short):
                print("    record", *record.lines, sep="\n        ", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
