"""The parts of a node daemon, as daemon.py puts them together: what requests are answered by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from balancer.lending.policy import LendingPolicy
from node.balancing.balancing import Balancer
from node.balancing.beginning import Beginnings
from node.balancing.cluster_view import ClusterView
from node.cluster.clustering import Clustering
from node.cluster.contacts import Contacts
from node.cluster.file_tree import FileTree
from node.cluster.front.front import Front
from node.cluster.keys.pki import KeyStore
from node.cluster.peers import Peers
from node.cluster.processors import Processors
from node.common.config import Config, InForce
from node.common.tasks import Tasks
from node.guests.guests import Guests
from node.guests.orphans import Orphans
from node.moves.checkpoints import Checkpoints
from node.moves.moves import Mover
from node.moves.registry import Registry
from node.owner.accounts import Accounts
from node.owner.ledger import Ledger
from node.owner.lending import Lending


@dataclass(frozen=True)
class Parts:
    """Each is made once; what is replaced as the daemon runs is inside of them."""

    started: float
    """in seconds since the epoch"""
    in_force: InForce
    reload: Callable[[], Awaitable[None]]
    """Reads the configuration anew. Errors: ConfigError."""
    tasks: Tasks
    # the other nodes
    keys: KeyStore
    front: Front
    peers: Peers
    cluster: ClusterView
    contacts: Contacts
    clustering: Clustering
    processors: Processors
    files: FileTree
    # home's processes
    registry: Registry
    mover: Mover
    checkpoints: Checkpoints
    balancer: Balancer
    beginnings: Beginnings
    # guests, and the owner of this node
    guests: Guests
    orphans: Orphans
    lending: Lending
    ledger: Ledger
    accounts: Accounts

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.in_force.config

    @property
    def policy(self) -> LendingPolicy:
        """The owner's policy in force."""
        return self.in_force.policy

    @property
    def name(self) -> str:
        """The name of this node."""
        return self.in_force.config.name
