"""The certificates of the cluster's nodes that this one has seen, and what it checks by them: cards in gossip.

A certificate counts if the authority signed it, it is not over, and its node was not taken out of the cluster. Of two of one node the
later one counts. A signature is of the node's own key: 64 bytes, ECDSA on P-256 with SHA-256, its two numbers one after the other.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from balancer.gossip.datagram import SIGNATURE
from node.cluster.keys.pki import KeyStore, common_name

MOST = 2048
"""Certificates that are kept; the one that was seen first gives way."""
_HALF = SIGNATURE // 2
_HOW = ec.ECDSA(hashes.SHA256())

Doubt = Literal["forged", "replayed", "removed"]


class Doubtful(ValueError):
    """A certificate that does not count, and why: not of this cluster or over, an older one of its node, of one that was taken out."""

    def __init__(self, why: Doubt) -> None:
        super().__init__(f"the certificate is {why}")
        self.why: Doubt = why


@dataclass(frozen=True)
class Known:
    """One node's certificate, as it came."""

    name: str
    der: bytes
    key: ec.EllipticCurvePublicKey
    since: datetime.datetime
    until: datetime.datetime
    serial: str
    """in hexadecimal"""


class Certificates:
    """Those of the nodes, by name; see balancer/gossip/signatures.py for what gossip wants of them."""

    def __init__(self, keys: KeyStore) -> None:
        self._keys = keys
        self._own: ec.EllipticCurvePrivateKey | None = None
        self._name = ""
        self.met: Callable[[str, bool], None] = lambda name, anew: None
        """Is notified of each certificate that was taken, and whether it is of another key than the one before."""
        self._known: dict[str, Known] = {}
        self._names: dict[bytes, str] = {}

    def reload(self) -> bool:
        """Reads this node's key anew; whether it is another one. Errors: PkiError."""
        before, self._own, self._name = self._own, self._keys.private_key(), self._keys.name()
        return before is None or before.public_key() != self._own.public_key()

    def name_of(self, der: bytes) -> str | None:
        """Return the node whose certificate that is, if it has been seen."""
        return self._names.get(der)

    def get(self, name: str) -> Known | None:
        """Return the certificate of that node."""
        return self._known.get(name)

    def meet(self, der: bytes) -> Known:
        """Takes a certificate; costs some hundred µs if it is new. Errors: Doubtful."""
        if (name := self._names.get(der)) is not None:
            return self._known[name]
        try:
            certificate = x509.load_der_x509_certificate(der)
            certificate.verify_directly_issued_by(self._keys.authority())
            name, key = common_name(certificate), certificate.public_key()
        except (ValueError, TypeError, InvalidSignature):
            raise Doubtful("forged") from None
        now, since = datetime.datetime.now(datetime.UTC), certificate.not_valid_before_utc
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
            raise Doubtful("forged")
        if not since <= now <= certificate.not_valid_after_utc:
            raise Doubtful("forged")
        if self._keys.removals.covers(certificate):
            raise Doubtful("removed")
        return self._keep(Known(name, der, key, since, certificate.not_valid_after_utc, f"{certificate.serial_number:x}"))

    def take(self, known: Known) -> Known:
        """Takes what a certificate says that the front has checked. Errors: Doubtful."""
        if known.der in self._names:
            return self._known[self._names[known.der]]
        if self._keys.removals.bars(known.name, known.since):
            raise Doubtful("removed")
        return self._keep(known)

    def _keep(self, known: Known) -> Known:
        """Errors: Doubtful."""
        before = self._known.get(known.name)
        if before is not None and known.since < before.since:
            raise Doubtful("replayed")
        self.drop(known.name)
        while len(self._known) >= MOST:
            self.drop(next(iter(self._known)))
        self._known[known.name] = known
        self._names[known.der] = known.name
        self.met(known.name, before is not None and before.key != known.key)
        return known

    def drop(self, name: str) -> None:
        """Forgets the certificate of a node."""
        if (known := self._known.pop(name, None)) is not None:
            del self._names[known.der]

    # -- signatures ------------------------------------------------------------------------------------------------------

    def sign(self, text: bytes) -> bytes:
        """This node's signature; empty as long as it is in no cluster."""
        if self._own is None:
            return b""
        first, second = decode_dss_signature(self._own.sign(text, _HOW))
        return first.to_bytes(_HALF, "big") + second.to_bytes(_HALF, "big")

    def check(self, name: str, text: bytes, signature: bytes) -> bool | None:
        """Return whether that node has signed it; None: its certificate has not been seen."""
        if name == self._name and self._own is not None:
            return is_signed(self._own.public_key(), text, signature)
        known = self._known.get(name)
        return is_signed(known.key, text, signature) if known is not None else None


def is_signed(key: ec.EllipticCurvePublicKey, text: bytes, signature: bytes) -> bool:
    """Return whether the signature of 64 bytes is that key's, of that text."""
    if len(signature) != SIGNATURE:
        return False
    first, second = int.from_bytes(signature[:_HALF], "big"), int.from_bytes(signature[_HALF:], "big")
    try:
        key.verify(encode_dss_signature(first, second), text, _HOW)
    except InvalidSignature:
        return False
    return True
