"""Encryption of datagrams between nodes: each pair of nodes has a key of its own, from the keys of their two certificates.

::

    1 | sender's id (6) | number (8) | tag (16) | text        encrypted and authenticated: AES-SIV (RFC 5297)
    2 | the sender's certificate (DER)                         who I am, and who are you?
    3 | the sender's certificate (DER)                         who I am

The key is the HKDF of the Diffie-Hellman secret of both certificates' keys, so that nothing has to be agreed upon, nothing is
lost with a restart, and nobody can speak for another node. A certificate counts if the cluster's authority signed it; it is
public, and is true no matter which node sends it. Numbers grow, over restarts too (their upper half is the number of
the daemon's life): a datagram is taken once, and none that is much older than the newest of its sender.
"""

from __future__ import annotations

import struct
from typing import Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding

from balancer.gossip.datagram import ENVELOPE, LIMIT, node_id
from node.cluster.keys.certificates import MOST, Certificates, Doubtful, Known
from node.cluster.keys.pki import KeyStore, common_name

ENCRYPTED, INTRODUCTION_REQUEST, INTRODUCTION_REPLY = b"\x01", b"\x02", b"\x03"
REORDERED = 64
"""So many numbers behind the newest a datagram may come: the network may bring them in another order."""
_HEAD = struct.Struct("!c6sQ")
_TAG = ENVELOPE - _HEAD.size
_KEY = 32

Why = Literal["garbled", "unknown", "forged", "replayed", "removed"]


class DatagramRejected(ValueError):
    """A datagram that nothing is taken of: cut or no datagram at all, of a node not met yet, not by whom it says, old, or of a
    node that was taken out."""

    def __init__(self, why: Why) -> None:
        super().__init__(f"gossip: the datagram is {why}")
        self.why: Why = why


class Numbers:
    """Which numbers of one sender have come."""

    def __init__(self) -> None:
        self._newest = -1
        self._seen = 0  # bit n: newest - n has come

    def take(self, number: int) -> bool:
        """Return whether the number is new; from now on it is not."""
        ahead = number - self._newest
        if ahead > 0:
            self._seen = (self._seen << min(ahead, REORDERED) | 1) & ((1 << REORDERED) - 1)
            self._newest = number
            return True
        if -ahead >= REORDERED or self._seen >> -ahead & 1:
            return False
        self._seen |= 1 << -ahead
        return True


class _Pair:
    """What this node has with one other."""

    def __init__(self, known: Known, cipher: AESSIV) -> None:
        self.name = known.name
        self.key = known.key
        self.cipher = cipher
        self.numbers = Numbers()


class DatagramCiphers:
    """Encrypts datagrams to the nodes that this one has met, and decrypts theirs."""

    def __init__(self, keys: KeyStore, number: int, certificates: Certificates | None = None) -> None:
        """number: of the datagram before the first; greater than all that this node has used. Errors: PkiError."""
        self._certificates = certificates or Certificates(keys)
        self.number = number
        self._pairs: dict[bytes, _Pair] = {}
        self._key: ec.EllipticCurvePrivateKey | None = None
        self.reload(keys)

    def reload(self, keys: KeyStore) -> None:
        """Reads key and certificate anew; with another key nobody has been met. Errors: PkiError."""
        before, self._key = self._key, keys.private_key()
        certificate = keys.certificate()
        if before is not None and before.public_key() != self._key.public_key():
            self._pairs.clear()
        self._id = node_id(common_name(certificate))
        self._certificate = certificate.public_bytes(Encoding.DER)

    def introduction(self, form: bytes) -> bytes:
        """INTRODUCTION_REQUEST or INTRODUCTION_REPLY, with this node's certificate."""
        return form + self._certificate

    def has_met(self, name: str) -> bool:
        return node_id(name) in self._pairs

    def is_met(self, introduction: bytes) -> str | None:
        """The node that has introduced itself with the same certificate before."""
        name = self._certificates.name_of(introduction[1:])
        return name if name is not None and self.has_met(name) else None

    def drop(self, name: str) -> None:
        """Decrypts nothing of that node any more, until it has shown a certificate that counts."""
        self._pairs.pop(node_id(name), None)

    def meet(self, introduction: bytes) -> str:
        """Takes a certificate; returns the name of its node. Costs some hundred µs. Errors: DatagramRejected."""
        try:
            known = self._certificates.meet(introduction[1:])
        except Doubtful as doubt:
            raise DatagramRejected(doubt.why) from None
        other = node_id(known.name)
        if other == self._id:
            raise DatagramRejected("forged")
        pair = self._pairs.get(other)
        # A certificate that was renewed is of the same key: what has come under it does not come again.
        if pair is None or pair.key != known.key:
            while len(self._pairs) >= MOST:
                del self._pairs[next(iter(self._pairs))]
            self._pairs[other] = _Pair(known, self._cipher(other, known.key))
        return known.name

    def _cipher(self, other: bytes, public: ec.EllipticCurvePublicKey) -> AESSIV:
        assert self._key is not None
        secret = self._key.exchange(ec.ECDH(), public)
        between = b"farhome gossip" + b"".join(sorted((self._id, other)))
        return AESSIV(HKDF(hashes.SHA256(), _KEY, None, between).derive(secret))

    def encrypt(self, name: str, data: bytes) -> bytes:
        """Return the datagram for that node. Errors: KeyError if it has not been met."""
        other = node_id(name)
        cipher = self._pairs[other].cipher
        self.number += 1
        head = _HEAD.pack(ENCRYPTED, self._id, self.number)
        return head + cipher.encrypt(data, [head, other])

    def decrypt(self, datagram: bytes) -> tuple[str, bytes]:
        """Name of the sender, and what it sent. Errors: DatagramRejected."""
        if not ENVELOPE < len(datagram) <= LIMIT or datagram[:1] != ENCRYPTED:
            raise DatagramRejected("garbled")
        _, other, number = _HEAD.unpack_from(datagram)
        pair = self._pairs.get(other)
        if pair is None:
            raise DatagramRejected("unknown")
        try:
            data = pair.cipher.decrypt(datagram[_HEAD.size :], [datagram[: _HEAD.size], self._id])
        except InvalidTag:
            raise DatagramRejected("forged") from None
        if not pair.numbers.take(number):
            raise DatagramRejected("replayed")
        return pair.name, data
