"""The UDP socket of a node's gossip: encrypted datagrams out and in, and introductions of nodes that have not met.

What is garbled, forged, old or of a stranger is dropped and counted, with a line in the log now and then. A stranger is asked
who it is; how often strangers are answered, and their certificates looked at, is bounded. It runs in the front
(node/cluster/front/program.py), without rights.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from balancer.gossip.datagram import UDP
from balancer.gossip.letters import Allowance
from node.cluster.front.gossip_encryption import INTRODUCTION_REPLY, INTRODUCTION_REQUEST, DatagramCiphers, DatagramRejected
from node.cluster.keys.certificates import Certificates
from node.cluster.keys.pki import KeyStore

ASK_PERIOD = 0.2
"""Seconds before a node that has not said who it is is asked again."""
WAITING = 4
"""Datagrams that wait for that, to each such node."""
WAIT = 1.0
"""Seconds that they do: no time is counted in the ages that they report."""
INTRODUCTIONS = 50.0
"""Certificates that are looked at, and strangers that are answered, in a second."""
AT_ONCE = 64
"""Datagrams that are taken before the daemon does something else."""
LONGEST = 2048
LOG_PERIOD = 60.0

log = logging.getLogger("mosd.gossip")

Endpoint = tuple[str, int]


class GossipSocket:
    """Sends to nodes by name; what they send is given to `hear` with the name that its encryption proves."""

    def __init__(
        self, keys: KeyStore, incarnation: int, address: Callable[[str], Endpoint | None], hear: Callable[[str, bytes], None],
        spend: Callable[[int], None], certificates: Certificates | None = None,
    ) -> None:  # fmt: skip
        """incarnation: greater with each start; address: of a node, in numbers; spend: is notified of bytes that introductions take.
        Errors: PkiError."""
        self._keys = keys
        self._address = address
        self._hear = hear
        self._spend = spend
        self._certificates = certificates or Certificates(keys)
        self._ciphers = DatagramCiphers(keys, incarnation << 32, self._certificates)
        self._waiting: dict[str, list[tuple[float, bytes]]] = {}
        self._asked: dict[str, float] = {}
        self._allowance = Allowance(time.monotonic, INTRODUCTIONS, 1.0)
        self._socket: socket.socket | None = None
        self.dropped: Counter[str] = Counter()
        """Datagrams that nothing was taken of, by why."""
        self.changed: Callable[[], None] = lambda: None
        """Is called when there is one more."""
        self._reported: Counter[str] = Counter()
        self._reported_at = float("-inf")

    # -- start and end ------------------------------------------------------------------------------------------------------------

    def start(self, sock: socket.socket) -> None:
        """Speaks by that socket, which is bound."""
        self._socket = sock
        asyncio.get_running_loop().add_reader(sock, self._receive, sock)

    def reload(self) -> None:
        """Reads keys and certificates again. Errors: PkiError."""
        self._ciphers.reload(self._keys)

    def close(self) -> None:
        """Hears and says nothing any more."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    # -- out -------------------------------------------------------------------------------------------------------------

    def send(self, name: str, data: bytes) -> None:
        """Sends to a node, as soon as it has proven who it is; if it cannot be sent it is lost."""
        endpoint = self._address(name)
        if endpoint is None:
            return
        if self._ciphers.has_met(name):
            self._put(self._ciphers.encrypt(name, data), endpoint)
            return
        now = asyncio.get_running_loop().time()
        self._waiting.setdefault(name, []).append((now, data))
        del self._waiting[name][:-WAITING]
        if now - self._asked.get(name, float("-inf")) >= ASK_PERIOD:
            self._asked[name] = now
            self._introduce(INTRODUCTION_REQUEST, endpoint)

    def ask(self, endpoint: Endpoint) -> None:
        """Asks the node at that address for its certificate."""
        if self._may_spend():
            self._introduce(INTRODUCTION_REQUEST, endpoint)

    def drop(self, name: str) -> None:
        """Hears nothing of that node any more, until it has shown another certificate."""
        self._ciphers.drop(name)
        self._waiting.pop(name, None)

    def _put(self, datagram: bytes, endpoint: Endpoint) -> None:
        if self._socket is not None:
            try:
                self._socket.sendto(datagram, endpoint)
            except OSError as error:
                # The way is barred, or our own buffer full: the membership sees to who does not answer.
                log.debug("nothing is sent to %s: %s", endpoint[0], error)

    # -- in --------------------------------------------------------------------------------------------------------------

    def _receive(self, sock: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                data, source = sock.recvfrom(LONGEST)
            except BlockingIOError:
                return
            except OSError as error:
                log.debug("%s", error)
                return
            self._take(data, source)

    def _take(self, data: bytes, source: Any) -> None:
        try:
            if data[:1] in (INTRODUCTION_REQUEST, INTRODUCTION_REPLY):
                self._introduced(data, source)
                return
            name, decrypted = self._ciphers.decrypt(data)
        except DatagramRejected as rejected:
            self.count(rejected.why, source[0])
            if rejected.why == "unknown" and self._may_spend():
                self._introduce(INTRODUCTION_REQUEST, source[:2])
            return
        try:
            self._hear(name, decrypted)
        except ValueError as error:
            self.count("nonsense", f"{name}: {error}")

    def _introduced(self, data: bytes, source: Any) -> None:
        name = self._ciphers.is_met(data)
        if (name is None or data[:1] == INTRODUCTION_REQUEST) and not self._may_spend():
            self.count("unexamined", source[0])
            return
        name = name or self._ciphers.meet(data)
        if data[:1] == INTRODUCTION_REQUEST:
            self._introduce(INTRODUCTION_REPLY, source[:2])
        self._asked.pop(name, None)
        now = asyncio.get_running_loop().time()
        for since, waiting in self._waiting.pop(name, []):
            if now - since < WAIT:
                self.send(name, waiting)

    def _may_spend(self) -> bool:
        if self._allowance.left < 1:
            return False
        self._allowance.spend(1)
        return True

    def _introduce(self, form: bytes, endpoint: Endpoint) -> None:
        introduction = self._ciphers.introduction(form)
        self._spend(UDP + len(introduction))
        self._put(introduction, endpoint)

    def count(self, why: str, example: str) -> None:
        """Counts a datagram that nothing was taken of."""
        self.dropped[why] += 1
        self.changed()
        now = asyncio.get_running_loop().time()
        if why == "unknown" or now - self._reported_at < LOG_PERIOD:
            return
        self._reported_at = now
        news = self.dropped - self._reported
        self._reported = Counter(self.dropped)
        log.warning("dropped datagrams: %s; such as from %s", ", ".join(f"{count} {what}" for what, count in sorted(news.items())), example)
