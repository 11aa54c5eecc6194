"""What the node daemon does again and again, as long as it lives."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable, Callable

GRID = 0.5
"""Seconds: pauses that are as long end together, as waking up costs more than most of what is done then."""

_phase = random.random() * GRID
"""of this daemon: those of other nodes are not to act in step with it"""

log = logging.getLogger("mosd")


def shared_pause(seconds: float, now: float) -> float:
    """About so many seconds, from `now` (of the loop's clock) to a moment at which others may wake up as well."""
    return max(0.0, round((now + seconds - _phase) / GRID) * GRID + _phase - now) if seconds >= GRID else seconds


async def periodically(
    what: str, step: Callable[[], Awaitable[None] | None], pause: Callable[[], float], delayed: bool = False, shared: bool = True
) -> None:
    """Makes the step, pauses about so many seconds, and so on; delayed: pauses first; shared: the pause may be up to half a GRID longer or
    shorter, to end together with others. A step that fails is logged as what it is about, and the next one is made all the same."""

    async def rest() -> None:
        seconds = pause()
        await asyncio.sleep(shared_pause(seconds, asyncio.get_running_loop().time()) if shared else seconds)

    if delayed:
        await rest()
    while True:
        try:
            made = step()
            if inspect.isawaitable(made):
                await made
        except Exception:
            log.exception("%s met a fault", what)
        await rest()
