"""The nodes that are looked at for one process: a few at random, one of the fastest idle ones, and those whose files it reads.

Not the best of all that are known: with figures that are seconds old all nodes would find the same best one and pile on it
(Mitzenmacher, IEEE TPDS 11(1), 2000); of a few taken at random the best is nearly as good, and each time another.
"""

from __future__ import annotations

import random
from collections.abc import Container

from balancer.decisions.process import Process, Settings, why_not_there
from balancer.load.load import LoadVector
from balancer.load.view import View


def sampled(
    view: View, process: Process, rng: random.Random, settings: Settings, without: Container[str] = ()
) -> tuple[list[LoadVector], list[tuple[LoadVector, str]]]:
    """Return the nodes to choose from, not that where it is, and those where it cannot go, each with the reason."""
    possible: list[LoadVector] = []
    refused: list[tuple[LoadVector, str]] = []
    for entry in view.others():
        if entry.vector.name == process.where or entry.vector.name in without:
            continue
        refusal = why_not_there(entry, process, settings)
        if refusal is None:
            possible.append(entry.vector)
        else:
            refused.append((entry.vector, refusal))
    chosen = rng.sample(possible, min(settings.sample, len(possible)))
    idle = [vector for vector in possible if vector.idle]
    fastest = max((vector.speed for vector in idle), default=0.0)
    best = [vector for vector in idle if vector.speed == fastest]
    if best and not any(vector in chosen for vector in best):
        chosen.append(rng.choice(best))
    chosen += [vector for vector in possible if vector.name in process.files and vector not in chosen]
    return chosen, refused
