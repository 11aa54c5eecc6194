"""What a target looks at before it takes a guest that a balancer sends, and when one that was not taken is tried again."""

from __future__ import annotations

import random

from balancer.decisions.process import Settings
from balancer.load.load import LoadVector


def recheck(
    vector: LoadVector, source_slowdown: float, runnable: float, memory: int = 0, coming: int = 0, settings: Settings | None = None
) -> str | None:
    """Return why the target, by its own fresh vector, finds a balancer's move not worth it now, or None.

    `memory` is that of the guest, `coming` that of guests that are on their way already, in bytes. What is refused here may be
    taken soon: the reason is none that lasts.
    """
    settings = settings or Settings()
    if coming and coming + memory > settings.arriving:
        return f"other guests are on their way to {vector.name}"
    there = vector.slowdown_with(runnable)
    if (source_slowdown - there) * vector.speed > settings.margin:
        return None
    return f"{vector.name} is busier than was known: a slowdown of {there:.2f} there, {source_slowdown:.2f} where it is"


def retry_after(passes: bool, rng: random.Random, settings: Settings | None = None) -> float:
    """Return the seconds before the balancer tries a process again whose move was not made; `passes`: its target only found itself
    too busy just then, and has reported its load. By chance a half more or less, so that those do not come back together who were
    refused together."""
    settings = settings or Settings()
    return (settings.retry_busy if passes else settings.retry_failed) * rng.uniform(0.5, 1.5)
