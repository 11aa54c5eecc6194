"""What the node daemon does again and again, as long as it lives."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("mosd")


async def periodically(what: str, step: Callable[[], Awaitable[None] | None], pause: Callable[[], float], delayed: bool = False) -> None:
    """Makes the step, pauses so many seconds, and so on; delayed: pauses first. A step that fails is logged as what it is about, and the
    next one is made all the same."""
    if delayed:
        await asyncio.sleep(pause())
    while True:
        try:
            made = step()
            if inspect.isawaitable(made):
                await made
        except Exception:
            log.exception("%s met a fault", what)
        await asyncio.sleep(pause())
