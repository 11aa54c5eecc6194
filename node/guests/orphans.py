"""Guests whose processes have ended at home while nobody there could report it: their deputies were killed, and mosd with them, or
before it knew of a child. They wait for a home that is not heard; it is asked, and guests of processes that it has no more end."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from node.cluster.front.connections import PeerError
from node.cluster.front.peer_server import Caller
from node.guests.guest import Guest
from node.guests.guests import Guests
from node.programs.programs import ProgramError

MOST_PIDS = 256
"""Of one question."""
TIMEOUT = 5.0
"""Seconds for an answer."""

log = logging.getLogger("mosd.guests")


class Orphans:
    """ask: calls a method of a peer (node/cluster/peers.py)."""

    def __init__(self, guests: Guests, ask: Callable[[str, str, dict[str, Any], float], Awaitable[Any]]) -> None:
        self._guests = guests
        self._ask = ask

    async def poll(self) -> None:
        """Ask the homes of all that wait for them. One that does not answer is asked the next time."""
        waiting: defaultdict[str, list[Guest]] = defaultdict(list)
        for guest in self._guests.all():
            if self._guests.freezing.is_cut(guest):
                waiting[guest.home].append(guest)
        await asyncio.gather(*(self._look_at(home, guests) for home, guests in waiting.items()))

    async def _look_at(self, home: str, guests: list[Guest]) -> None:
        some = random.sample(guests, min(len(guests), MOST_PIDS))
        try:
            over = await self._ask(home, "over", {"pids": [guest.pid for guest in some]}, TIMEOUT)
        except PeerError as error:
            log.debug("guests of %s wait on: %s", home, error)
            return
        for guest in some:
            if isinstance(over, list) and guest.pid in over:
                log.info("guest %s ends: %s has no such process any more", guest.key, home)
                with suppress(ProgramError):  # it goes just now
                    await self._guests.cancel(Caller(home, ""), guest.key, ended=True)
