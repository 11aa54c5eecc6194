"""How old is what nodes know of one another, and what it costs to know it: the gossip of the nodes, under virtual time.

Each case is of one number of nodes that know one another; figures are taken when the ages have settled. The baselines are
the targets: average ages from the theory of Amar and Barak with two peers a period, and 3 KB a second.
"""

from __future__ import annotations

import gc
import random
from dataclasses import dataclass
from statistics import fmean

from balancer.gossip.datagram import LIMIT, Card
from balancer.gossip.gossip import Gossip
from balancer.load.load import LoadVector
from balancer.virtual import VirtualNetwork
from bench.common.result import Result

AGES = {16: 2.8, 32: 3.5, 64: 4.5, 128: 5.9, 1000: 16.0}
"""Seconds of average age, by the number of nodes."""
WITH_LOSS = 1.25
"""How much greater it may be with a fifth of all datagrams lost."""
LOSS = 0.2
BYTES = 3000.0
SEEDS = (1, 2, 3)
HUGE = 10_000
HUGE_KNOWN = 128
"""Members that each node of the greatest cluster knows at first."""
HUGE_SECONDS = 16.0
"""By then what each may send at once at first has been sent."""
GIB = 1 << 30


@dataclass(frozen=True)
class Picture:
    """What was seen of one cluster: average age in seconds, bytes a second and node, bytes of the greatest datagram."""

    age: float
    bytes: float
    largest: int
    known: float  # nodes of which a node has an entry


def vector(number: int, runnable: float) -> LoadVector:
    """Return a load vector of node `n<number>`."""
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    load = runnable / 4
    return LoadVector(f"n{number}", 1, 0, address, 7226, runnable, load, 4.0, 1.0, 8 * GIB, 16 * GIB, 2, True, False, 1)


def watch(count: int, seed: int, loss: float = 0.0, known: int | None = None, settle: float | None = None) -> Picture:
    """Return the picture of so many nodes, of which each knows all others at first, or `known` random ones."""
    rng = random.Random(seed)
    network = VirtualNetwork(seed, lambda gossip: gossip.update_self(vectors[gossip.name]), loss)
    vectors = {f"n{number}": vector(number, rng.uniform(1, 8)) for number in range(1, count + 1)}
    cards = [Card(v.name, v.address, v.port, 1, v.cores, v.speed, v.memory_total, v.version) for v in vectors.values()]
    for name in vectors:
        gossip: Gossip = network.add(name)
        for card in cards if known is None else rng.sample(cards, known):
            gossip.membership.learn(card)
    settled = settle if settle is not None else 20 + count / 32
    samples = min(10, max(1, 10_000 // count))
    network.run(settled)
    before = sum(gossip.allowance.spent for gossip in network.nodes.values())
    ages, seen = [], 0
    for second in range(1, samples + 1):
        network.run(settled + second + rng.random())
        now = list(network.ages())
        ages.append(fmean(now))
        seen += len(now)
    sent = sum(gossip.allowance.spent for gossip in network.nodes.values()) - before
    return Picture(fmean(ages), sent / count / (network.now - settled), network.largest, seen / samples / count)


def run() -> list[Result]:
    """Watch clusters of all sizes; the greatest once, in some minutes."""
    # Millions of entries, none of which is part of a cycle.
    gc.freeze()
    gc.disable()
    try:
        return _run()
    finally:
        gc.enable()


def _run() -> list[Result]:
    results: list[Result] = []
    busiest: list[float] = []
    largest: list[int] = []
    for count, limit in AGES.items():
        for loss, allowed in ((0.0, limit), (LOSS, WITH_LOSS * limit)):
            seen = [watch(count, seed, loss) for seed in (SEEDS if count < 1000 else SEEDS[:1])]
            case = f"age, {count} nodes" + (", 20 % lost" if loss else "")
            results.append(Result.of(case, [p.age for p in seen], [allowed], unit="s", baseline_name="target"))
            busiest.append(max(p.bytes for p in seen))
            largest.append(max(p.largest for p in seen))
    huge = watch(HUGE, SEEDS[0], known=HUGE_KNOWN, settle=HUGE_SECONDS)
    results.append(Result.of(f"nodes known, {HUGE} nodes", [huge.known], [HUGE_KNOWN], unit="nodes", baseline_name="at the start"))
    busiest.append(huge.bytes)
    largest.append(huge.largest)
    results.append(Result.of("bytes a second, any size", [max(busiest)], [BYTES], unit="B/s", baseline_name="target"))
    results.append(Result.of("greatest datagram", [max(largest)], [LIMIT], unit="B", baseline_name="limit"))
    return results
