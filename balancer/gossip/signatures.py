"""Who has said what in gossip: a node signs its card, and others check that by what they know of the node.

Real nodes do it by the keys of their certificates (node/cluster/keys/certificates.py). Under virtual time nobody lies, and a hash of the
same length stands there, so that datagrams are as long as real ones.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

from balancer.gossip.datagram import SIGNATURE


class Signatures(Protocol):
    """Signs for one node and checks what others have signed."""

    def sign(self, text: bytes) -> bytes:
        """Return this node's signature, SIGNATURE bytes; empty as long as it has no key."""

    def check(self, name: str, text: bytes, signature: bytes) -> bool | None:
        """Return whether that node has signed it; None: nothing is known yet that proves or disproves it."""


class Virtual:
    """Signatures under virtual time."""

    def __init__(self, name: str) -> None:
        self._name = name

    def sign(self, text: bytes) -> bytes:
        """Return a hash of node and text."""
        return _hash(self._name, text)

    def check(self, name: str, text: bytes, signature: bytes) -> bool | None:
        """Return whether it is that hash."""
        return signature == _hash(name, text)


def _hash(name: str, text: bytes) -> bytes:
    return hashlib.blake2b(text, key=name.encode()[:64], digest_size=SIGNATURE).digest()
