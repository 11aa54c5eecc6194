"""Runs random programs natively and away: `python -m tests.referee [--seed N] [--calls N] [--way away|moved]`."""

from __future__ import annotations

import argparse
import time
from collections import Counter

from tests.moves.cluster import Cluster
from tests.moves.storm import new_seed
from tests.referee.compare import Court, step_name
from tests.referee.program import LENGTH, episode, program


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.referee", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the whole program (default: a new one)")
    parser.add_argument("--episode", type=int, action="append", default=[], help="this one alone, as it was told")
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--way", choices=["native", "away", "moved"], default="away")
    parser.add_argument("--shorten", type=int, default=3, help="how many differences are shortened")
    parser.add_argument("--unsteady", type=int, default=0, help="how many differences between native runs are shown")
    options = parser.parse_args()
    seed = options.seed or new_seed() % 1_000_000
    episodes = [episode(number) for number in options.episode] or program(seed, options.calls)
    cluster = Cluster(3)
    court = Court(cluster)
    began = time.monotonic()
    try:
        found, unsteady = court.judge(episodes, options.way)
        print(f"seed {seed}: {len(episodes)} episodes, {len(episodes) * LENGTH} calls each way in {time.monotonic() - began:.0f} s;"
              f" {len(unsteady)} differ natively: {Counter(map(step_name, unsteady)).most_common()}")  # fmt: skip
        for one in unsteady[: options.unsteady]:
            print(one)
        print(Counter(map(step_name, found)).most_common())
        for one in found:
            print(one)
        seen: set[str] = set()
        for one in found:
            if step_name(one) not in seen and len(seen) < options.shorten:
                seen.add(step_name(one))
                short = court.shorten(one)
                print("----", short, *(f"        {step.text[:150]}" for step in short.episode.steps), sep="\n")
                for record in court.both(short):
                    print("    record", *record.lines, sep="\n        ")
        return 1 if found else 0
    finally:
        court.close()
        cluster.down()


if __name__ == "__main__":
    raise SystemExit(main())
