"""Certificates last thirty days: each node has its own renewed well before that, for the key that it has, by a node that can sign."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Iterable
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from node.certificates import key_bytes
from node.paths import write_atomically
from node.peer_server import Caller
from node.peers import PeerError, PeerRefused, Peers
from node.pki import CLOCK_SKEW, LIFETIME, KeyStore
from node.signed import key_digest

LEFT = 1 / 3
"""The share of its life from which on a certificate is renewed."""
TRIES = 30
"""Times in a life that it is looked at, and asked for anew if nobody has answered."""
LONGEST_PERIOD = 3600.0
SHORTEST_PERIOD = 1.0
ASKED = 8
"""Nodes that are asked in one go, if it is not known who can sign."""

log = logging.getLogger("mosd.cluster")


def life_of(certificate: x509.Certificate) -> datetime.timedelta:
    """For how long it was made."""
    return certificate.not_valid_after_utc - certificate.not_valid_before_utc - CLOCK_SKEW


def is_due(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    """Whether it is to be renewed: near its end, or made in the days when they lasted ten years."""
    life = life_of(certificate)
    return certificate.not_valid_after_utc - now < life * LEFT or life > 2 * LIFETIME


class Renewal:
    """Looks after this node's certificate."""

    def __init__(self, keys: KeyStore, peers: Peers, known: Callable[[], Iterable[str]], installed: Callable[[], None]) -> None:
        """known: names of the other nodes; installed: is called when there is a new certificate."""
        self._keys = keys
        self._peers = peers
        self._known = known
        self._installed = installed
        self._period = SHORTEST_PERIOD
        self._next = 0

    def period(self) -> float:
        """Seconds until the next look."""
        return self._period

    async def look(self) -> None:
        """Has the certificate renewed if it is time. Errors: PkiError, OSError."""
        if not self._keys.exists():
            return
        certificate = self._keys.certificate()
        seconds = min(life_of(certificate), LIFETIME).total_seconds()
        self._period = min(LONGEST_PERIOD, max(SHORTEST_PERIOD, seconds / TRIES))
        now = datetime.datetime.now(datetime.UTC)
        if not is_due(certificate, now):
            return
        request = self._keys.request(self._keys.private_key(), self._keys.name())
        renewed = self._sign_here(request) if self._keys.is_authority() else await self._ask(request)
        if renewed is None:
            if (left := certificate.not_valid_after_utc - now) < life_of(certificate) * LEFT:
                log.warning("nobody renews this node's certificate, which ends in %.1f hours", left.total_seconds() / 3600)
            return
        write_atomically(self._keys.node_certificate, renewed, 0o644)
        log.info("this node's certificate is renewed")
        self._installed()

    def _sign_here(self, request: bytes) -> bytes:
        return self._keys.sign(request, expected=self._keys.name())

    async def _ask(self, request: bytes) -> bytes | None:
        names = sorted(self._known())
        first = [name for name in names if self._peers.hello_of(name).get("authority") is True]
        self._next = (self._next + ASKED) % max(1, len(names))
        for name in dict.fromkeys([*first, *(names * 2)[self._next : self._next + ASKED]]):
            try:
                answer = await self._peers.call(name, "renew", {"request": request})
                if isinstance(answer, bytes) and self._is_ours(answer):
                    return answer
                log.warning("%s has signed something else than this node's key", name)
            except PeerError as error:
                log.debug("%s does not renew the certificate: %s", name, error)
        return None

    def _is_ours(self, pem: bytes) -> bool:
        try:
            certificate = x509.load_pem_x509_certificate(pem)
            certificate.verify_directly_issued_by(self._keys.authority())
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            return False
        mine: Any = self._keys.private_key().public_key()
        return key_bytes(certificate.public_key()) == key_bytes(mine)  # type: ignore[arg-type]


def answer_renew(keys: KeyStore, caller: Caller, parameters: dict[str, Any]) -> bytes:
    """A new certificate for the key that the caller's connection has proved to have. Errors: PeerRefused, ValueError, PkiError."""
    request = parameters.get("request")
    if not keys.is_authority():
        raise PeerRefused("renew", "this node cannot sign")
    if not isinstance(request, bytes):
        raise PeerRefused("renew", "the request is not complete")
    shown, wanted = x509.load_der_x509_certificate(caller.certificate), x509.load_pem_x509_csr(request).public_key()
    try:
        shown.verify_directly_issued_by(keys.authority())    # who tells us of the caller has no rights, and is not believed in this
    except (TypeError, InvalidSignature):
        raise PeerRefused("renew", "the certificate is not of this cluster") from None
    if key_bytes(shown.public_key()) != key_bytes(wanted):  # type: ignore[arg-type]
        raise PeerRefused("renew", "a certificate is renewed for its own key alone")
    keys.removals.load(keys.authority())
    if keys.removals.covers(shown) or shown.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        raise PeerRefused("renew", "the certificate does not count any more")
    record = keys.signed.in_use(caller.name, keys.removals.names())
    if record is not None and record.key != key_digest(wanted):
        raise PeerRefused("renew", f"another key has the name {caller.name} by now")
    return keys.sign(request, expected=caller.name)
