"""How nodes come to know who was taken out of the cluster, within seconds, and before they believe anybody else.

Gossip carries four bytes that stand for the list; nodes of which they differ unite their lists over TLS. Who takes a node out informs all
others at once. A daemon that starts asks the nodes that it knows of before it listens to any.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from balancer.gossip.gossip import Gossip
from node.cluster.front.connections import PeerError
from node.cluster.keys.pki import KeyStore
from node.cluster.peers import Peers
from node.common.names import format_endpoint

PERIOD = 0.25
AT_ONCE = 16
"""Nodes that are informed at a time."""
TIMEOUT = 3.0
ASK_TIMEOUT = 3.0
"""Seconds that a daemon that starts waits for others to say who was taken out."""
ASKED = 64

log = logging.getLogger("mosd.cluster")


class Spreading:
    """Keeps the list of this node that of all."""

    def __init__(self, keys: KeyStore, peers: Peers, gossip: Gossip, removed: Callable[[set[str]], None]) -> None:
        """removed: is notified of nodes that are news on the list."""
        self._keys = keys
        self._peers = peers
        self._gossip = gossip
        self._removed = removed
        self._asking: dict[str, asyncio.Task[bool]] = {}

    def read(self) -> None:
        """Takes what is on the disk. Errors: PkiError."""
        self._news(self._keys.removals.load(self._keys.authority()))

    def _news(self, names: set[str]) -> None:
        self._gossip.removed = self._keys.removals.digest()
        if names:
            self._removed(names)

    def take(self, lines: object) -> None:
        """Take the report of another node. Errors: ValueError, OSError, PkiError."""
        if not isinstance(lines, list):
            raise ValueError("that is no list of removed nodes")
        self._news(self._keys.removals.merge(self._keys.authority(), lines))

    def answer(self, parameters: dict[str, Any]) -> list[Any]:
        """Take another node's list, if it sends one; returns this one's. Errors: ValueError, OSError, PkiError."""
        if "lines" in parameters:
            self.take(parameters["lines"])
        return self._keys.removals.lines()

    async def poll(self) -> None:
        """Asks nodes whose list is another one."""
        for name in list(self._gossip.differing):
            if len(self._asking) >= AT_ONCE:
                return
            self._gossip.differing.discard(name)
            if name not in self._asking:
                self._asking[name] = task = asyncio.get_running_loop().create_task(self._exchange(name))
                task.add_done_callback(lambda _, name=name: self._asking.pop(name, None))  # type: ignore[misc]

    async def _exchange(self, name: str) -> bool:
        try:
            self.take(await self._peers.call(name, "removals", {"lines": self._keys.removals.lines()}, TIMEOUT))
        except (PeerError, ValueError, OSError) as error:
            log.debug("%s does not hear who was removed: %s", name, error)
            return False
        return True

    async def inform(self, names: Iterable[str]) -> tuple[list[str], list[str]]:
        """Inform all of these; return those that know it, and those that do not."""
        room, names = asyncio.Semaphore(AT_ONCE), sorted(names)

        async def one(name: str) -> bool:
            async with room:
                return await self._exchange(name)

        reported = await asyncio.gather(*(one(name) for name in names))
        return [n for n, knows in zip(names, reported, strict=True) if knows], [
            n for n, knows in zip(names, reported, strict=True) if not knows
        ]

    async def ask_first(self, endpoints: Iterable[tuple[str, int]]) -> None:
        """Asks the nodes at these addresses, all at the same time, until all have answered, or for some seconds."""
        tasks = [asyncio.create_task(self._ask(endpoint)) for endpoint in list(endpoints)[:ASKED]]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=ASK_TIMEOUT)
        for task in late:
            task.cancel()

    async def _ask(self, endpoint: tuple[str, int]) -> None:
        try:
            self.take(await self._peers.ask(endpoint, "removals", {}))
        except (PeerError, ValueError, OSError) as error:
            log.debug("%s does not say who was removed: %s", format_endpoint(*endpoint), error)

    def close(self) -> None:
        """Asks nobody any more."""
        for task in self._asking.values():
            task.cancel()
