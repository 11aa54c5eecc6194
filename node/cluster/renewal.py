"""Certificates last thirty days: each node has its own renewed well before that, for the key that it has, by a node that can sign."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from cryptography import x509

from node.cluster.front.connections import PeerError, PeerRefused
from node.cluster.front.peer_server import Caller
from node.cluster.keys.forms import Stated, key_of, point_of
from node.cluster.keys.pki import CLOCK_SKEW, LIFETIME, KeyStore
from node.cluster.keys.signed import key_digest
from node.cluster.peers import Peers
from node.common.paths import write_atomically

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
    """Return whether it is to be renewed: near its end, or made in the days when they lasted ten years."""
    life = life_of(certificate)
    return certificate.not_valid_after_utc - now < life * LEFT or life > 2 * LIFETIME


class Renewal:
    """Looks after this node's certificate."""

    def __init__(self, keys: KeyStore, peers: Peers, known: Callable[[], Iterable[str]], installed: Callable[[], Awaitable[None]]) -> None:
        """known: names of the other nodes; installed: is called when there is a new certificate."""
        self._keys = keys
        self._peers = peers
        self._known = known
        self._installed = installed
        self._period = SHORTEST_PERIOD
        self._next = 0

    def period(self) -> float:
        """Return seconds until the next check."""
        return self._period

    async def poll(self) -> None:
        """Has the certificate renewed if it is time. Errors: PkiError, OSError."""
        if not self._keys.exists():
            return
        certificate = self._keys.certificate()
        seconds = min(life_of(certificate), LIFETIME).total_seconds()
        self._period = min(LONGEST_PERIOD, max(SHORTEST_PERIOD, seconds / TRIES))
        now = datetime.datetime.now(datetime.UTC)
        if not is_due(certificate, now):
            return
        renewed = self._sign_here() if self._keys.is_authority() else await self._ask()
        if renewed is None:
            if (left := certificate.not_valid_after_utc - now) < life_of(certificate) * LEFT:
                log.warning("nobody renews this node's certificate, which ends in %.1f hours", left.total_seconds() / 3600)
            return
        write_atomically(self._keys.node_certificate, renewed, 0o644)
        log.info("this node's certificate is renewed")
        await self._installed()

    def _sign_here(self) -> bytes:
        return self._keys.sign(self._keys.private_key().public_key(), self._keys.name())

    async def _ask(self) -> bytes | None:
        key, own = self._keys.private_key(), self._keys.name()
        request, point = self._keys.request(key, own), point_of(key.public_key())
        names = sorted(self._known())
        first = [name for name in names if self._peers.hello_of(name).get("authority") is True]
        self._next = (self._next + ASKED) % max(1, len(names))
        for name in dict.fromkeys([*first, *(names * 2)[self._next : self._next + ASKED]]):
            try:
                answer = await self._peers.call(name, "renew", {"request": request})
                try:
                    reported = {**answer, "point": point} if isinstance(answer, dict) else None
                    return self._keys.made_again(Stated.from_wire(own, reported))
                except ValueError:
                    log.warning("%s has signed something else than this node's key", name)
            except PeerError as error:
                log.debug("%s does not renew the certificate: %s", name, error)
        return None


def answer_renew(keys: KeyStore, caller: Caller, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return what a new certificate says, for the key that the caller's connection has proved to have.

    parameters: as the front has taken them apart (node/cluster/front/reading.py). Errors: PeerRefused, ValueError, PkiError, OSError.
    """
    if not keys.is_authority():
        raise PeerRefused("renew", "this node cannot sign")
    shown = Stated.from_wire(caller.name, parameters.get("certificate"))
    try:
        keys.made_again(shown)  # the program that reports it has no rights, and is not believed in this
    except ValueError:
        raise PeerRefused("renew", "the certificate is not of this cluster") from None
    keys.removals.load(keys.authority())
    since, now = datetime.datetime.fromtimestamp(shown.since, datetime.UTC), datetime.datetime.now(datetime.UTC)
    if keys.removals.bars(caller.name, since) or shown.until < now.timestamp():
        raise PeerRefused("renew", "the certificate does not count any more")
    key = key_of(shown.point)
    record = keys.signed.in_use(caller.name, keys.removals.names())
    if record is not None and record.key != key_digest(key):
        raise PeerRefused("renew", f"another key has the name {caller.name} by now")
    return Stated.of(keys.certify(key, caller.name)).to_wire()
