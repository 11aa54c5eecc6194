"""Addresses of other nodes: the seeds of the configuration are dialled until their names are known, and a later daemon has what this one
came to know."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

from balancer.gossip.gossip import Gossip
from node.cluster.front.connections import PeerError
from node.cluster.front.front import Front
from node.cluster.front.pending import source_of
from node.cluster.peers import Peers
from node.common.config import InForce
from node.common.names import format_endpoint, parse_endpoint
from node.common.paths import Paths, write_atomically

PERIOD = 2.0

log = logging.getLogger("mosd")


class Contacts:
    """Finds the other nodes; gossip keeps what it brings."""

    def __init__(self, paths: Paths, in_force: InForce, front: Front, peers: Peers, gossip: Gossip, greet: Callable[[str], None]) -> None:
        """greet: is notified of a node that has just come into touch."""
        self._paths = paths
        self._in_force = in_force
        self._front = front
        self._peers = peers
        self._gossip = gossip
        self._greet = greet
        self._remembered: dict[str, tuple[str, int]] = {}
        self._dialled: set[tuple[str, int]] = set()
        """seeds whose names are known"""

    async def poll(self, listens: bool) -> None:
        """Dials seeds until their names are known. listens: whether this node is in a cluster."""
        if listens:
            if not self._peers.connected():
                self._dialled.clear()  # alone again: seeds are where to look for the others
            for endpoint in self.seeds() - self._dialled:
                try:
                    await self._dial(endpoint)
                    self._dialled.add(endpoint)
                except PeerError as error:
                    log.debug("seed %s: %s", format_endpoint(*endpoint), error)
        self._remember()

    async def _dial(self, endpoint: tuple[str, int]) -> None:
        """Gets to know the node at that address. Errors: PeerError."""
        connection = await self._peers.dial(*endpoint)
        host, port = connection.hello.get("address", endpoint[0]), connection.hello.get("port", endpoint[1])
        if isinstance(host, str) and isinstance(port, int):
            self.met(connection.name, host, port)

    def met(self, name: str, host: str, port: int) -> None:
        """A node has said where it is."""
        self._gossip.learn(name, host, port)
        self._remember()
        self._greet(name)

    def recall(self) -> None:
        """Learns the addresses that a daemon before this one knew: no node is unknown just because we are new."""
        try:
            known = json.loads(self._paths.peers.read_bytes())
            for name, (host, port) in known.items():
                self._gossip.learn(str(name), str(host), int(port))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError) as error:
            log.warning("%s is ignored: %s", self._paths.peers, error)

    def _remember(self) -> None:
        peers = self._gossip.known.peers()
        if peers != self._remembered:
            self._front.set_member_addresses({source_of(host) for host, _ in peers.values()})
            try:
                write_atomically(self._paths.peers, json.dumps(peers).encode())
                self._remembered = peers
            except OSError as error:
                log.debug("%s: %s", self._paths.peers, error)

    def seeds(self) -> set[tuple[str, int]]:
        """Return where to look for other nodes: by the configuration, and by what this node joined with."""
        config = self._in_force.config
        seeds = set(config.peers)
        try:
            seeds |= {parse_endpoint(line) for line in self._paths.seeds.read_text(encoding="ascii").split()}
        except (OSError, ValueError):
            pass
        return seeds - {(config.address, config.port)}
