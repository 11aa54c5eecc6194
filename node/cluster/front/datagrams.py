"""Gossip as mosd has it: to nodes by name, by way of the front, which encrypts, sends, receives and decrypts the datagrams."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
from collections import Counter
from collections.abc import Callable

from balancer.gossip.datagram import Datagram
from node.cluster.front.front import Front
from node.common.tasks import Tasks

NAMES_KEPT = 60.0
"""Seconds that the address of a host's name is good for."""

Endpoint = tuple[str, int]


class Datagrams:
    """Sends to nodes by name; what they send is given to `hear` with the name that its encryption proves."""

    def __init__(
        self, front: Front, address: Callable[[str], Endpoint | None], hear: Callable[[str, Datagram], None], spend: Callable[[int], None]
    ) -> None:
        """address: of a node; spend: is notified of bytes that introductions take."""
        self._front = front
        self._address = address
        self._hear = hear
        self._hosts: dict[str, tuple[str | None, float]] = {}
        self._tasks = Tasks()
        front.hear, front.spend = self._take, spend

    @property
    def dropped(self) -> Counter[str]:
        """Datagrams that nothing was taken of, by why."""
        return self._front.dropped

    def send(self, name: str, data: bytes) -> None:
        """Sends to a node, as soon as it has proven who it is; if it cannot be sent it is lost."""
        endpoint = self._address(name)
        if endpoint is not None and (number := self._number_of(endpoint[0])) is not None:
            self._front.send("send", name, number, endpoint[1], data)

    def ask(self, endpoint: Endpoint) -> None:
        """Asks the node at that address for its certificate."""
        if (number := self._number_of(endpoint[0])) is not None:
            self._front.send("ask", number, endpoint[1])

    def _take(self, name: str, datagram: Datagram) -> None:
        try:
            self._hear(name, datagram)
        except ValueError as error:
            self._front.send("nonsense", f"{name}: {error}"[:200])

    def _number_of(self, host: str) -> str | None:
        """The numeric address of a host; None while it is looked up."""
        if (numeric := _numeric(host)) is not None:
            return numeric
        now = asyncio.get_running_loop().time()
        number, until = self._hosts.get(host, (None, 0.0))
        if now >= until:
            self._hosts[host] = number, now + NAMES_KEPT
            self._tasks.spawn(self._look_up(host))
        return number

    async def _look_up(self, host: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            found = (await loop.getaddrinfo(host, None, type=socket.SOCK_DGRAM))[0][4][0]
        except OSError:
            del self._hosts[host]
        else:
            self._hosts[host] = str(found), loop.time() + NAMES_KEPT

    def close(self) -> None:
        """Hears nothing any more."""
        self._front.hear = lambda name, datagram: None
        self._tasks.cancel()


@functools.lru_cache(maxsize=4096)
def _numeric(host: str) -> str | None:
    """An address that is one already, None of a name."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None
