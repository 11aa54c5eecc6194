"""Half an hour of storms, two at a time, as root and as an ordinary user, until the first difference."""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.moves.cluster import Cluster
from tests.moves.storm import Verdict, new_seed, storm
from tests.moves.workloads import USER, WORKLOADS

SECONDS = float(os.environ.get("FARHOME_SOAK_SECONDS", "1800"))


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 1800)
def test_half_an_hour_without_one_difference(cluster: Cluster) -> None:
    seed = new_seed()
    print(f"soak with seed {seed}")
    rounds = [(workload, user) for workload in WORKLOADS for user in ("", USER)]
    end = time.monotonic() + SECONDS
    verdicts: list[Verdict] = []

    def one_lane(lane: int) -> None:
        # The lanes take different workloads, since two of one name would share a directory.
        own = [(workload, user) for workload, user in rounds if WORKLOADS.index(workload) % 2 == lane]
        order = random.Random(seed + lane)
        while not any(verdict.wrong for verdict in verdicts):
            order.shuffle(own)
            for workload, user in own:
                if time.monotonic() > end:
                    return
                verdict = storm(cluster, workload, user=user, scale=4, seed=order.randrange(1, 2**32), every=(0.3, 2.0))
                print(verdict, flush=True)
                verdicts.append(verdict)
                if verdict.wrong:
                    return

    with ThreadPoolExecutor(2) as pool:
        for lane in [pool.submit(one_lane, lane) for lane in range(2)]:
            lane.result()
    wrong = [str(verdict) for verdict in verdicts if verdict.wrong]
    assert not wrong, "\n".join(wrong)
    moves = [move for verdict in verdicts for move in verdict.moves if move.done]
    print(f"{len(verdicts)} storms, {len(moves)} moves, seed {seed}, longest freeze {max(move.frozen_ms for move in moves):.0f} ms")
    assert {move.kind for move in moves} == {"out", "hop", "home"}
