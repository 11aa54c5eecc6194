"""What a node daemon does for its cluster: listens, lets nodes in, takes them out, renews certificates."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from node.cluster import join
from node.cluster.front.connections import PeerError, PeerRefused
from node.cluster.front.front import Front
from node.cluster.front.peer_server import Caller
from node.cluster.gossiping import Gossiping
from node.cluster.keys.certificates import Certificates, Doubtful, Known
from node.cluster.keys.pki import KeyStore, PkiError
from node.cluster.keys.signed import Record, key_digest
from node.cluster.peers import Peers
from node.cluster.renewal import Renewal, answer_renew
from node.cluster.spreading import Spreading
from node.common.config import ConfigError, InForce
from node.common.names import check_name, format_endpoint
from node.common.paths import Paths

SIGNED_PERIOD = 30.0
"""Seconds between two times that nodes that can sign report to one another which nodes they have let in."""
FRONT_PATIENCE = 10.0
"""Seconds within which the front is there, even where there is too much to do."""
REPORTED = 3000
"""Records that are sent at once, the newest: what a message has room for."""

log = logging.getLogger("mosd.cluster")


class Clustering:
    """The cluster as one daemon sees to it."""

    def __init__(
        self, paths: Paths, in_force: InForce, keys: KeyStore, certificates: Certificates, front: Front, peers: Peers,
        gossiping: Gossiping, incarnation: int, parted: Callable[[list[str]], None],
    ) -> None:  # fmt: skip
        """incarnation: of this daemon's gossip; parted: is notified of nodes that were taken out, once nothing of theirs counts any
        more."""
        self._paths = paths
        self._in_force = in_force
        self._keys = keys
        self._certificates = certificates
        self._front = front
        self._peers = peers
        self._gossiping = gossiping
        self._gossip = gossiping.gossip
        self._incarnation = incarnation
        self._parted = parted
        self.listens = False
        """whether peers can connect: this node is in a cluster"""
        self.spreading = Spreading(keys, peers, self._gossip, self.removed)
        self.renewal = Renewal(keys, peers, self._gossip.known.peers, self.begin)
        certificates.met = self._met
        front.met = self._seen

    async def fetch_removals(self, endpoints: Iterable[tuple[str, int]]) -> None:
        """Before anybody is believed: who was taken out of the cluster while this node was off. endpoints: of those who may know."""
        if self._keys.exists():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FRONT_PATIENCE):
                    await self._front.wait_until_ready()  # or others would seem to be silent
            self.spreading.read()
            await self.spreading.ask_first(endpoints)

    async def begin(self) -> None:
        """Listens for peers once this node is in a cluster. Errors: FarhomeError."""
        config = self._in_force.config
        if not self._keys.exists():
            log.info("this node is in no cluster yet (mosctl cluster init, or join)")
            return
        if self._keys.name() != config.name:
            raise ConfigError(f"{self._paths.config}: name is {config.name}, but the node joined its cluster as {self._keys.name()}")
        self._front.start()
        if self._certificates.reload():
            self._gossip.own.sign_anew()
        self.spreading.read()
        try:
            await self._gossiping.open(self._front, self._incarnation, config.address, config.port)
            await self._front.listen(config.address, config.port)
        except OSError as error:
            where = format_endpoint(config.address, config.port)
            raise ConfigError(f"{self._paths.config}: cannot listen at {where}: {error.strerror}") from None
        self.listens = True

    def _seen(self, shown: Known) -> None:
        """A node has shown its certificate, which the front has checked."""
        try:
            known = self._certificates.take(shown)
            if self._keys.is_authority() and self._keys.signed.get(known.name) is None:  # let in before there was a record
                since, until = known.since.timestamp(), known.until.timestamp()
                self._keys.signed.take(Record(known.name, known.serial, key_digest(known.key), since, until))
        except (Doubtful, ValueError, OSError) as doubt:
            log.debug("%s", doubt)

    def _met(self, name: str, anew: bool) -> None:
        if anew:
            self._gossip.begin_anew(name)
        self._gossip.prove(name)

    def removed(self, names: set[str]) -> None:
        """Ends what this node has with these, which are news on the list of those who were taken out."""
        self._front.removed(names)
        gone = []
        for name in sorted(names):
            if name == self._in_force.config.name:
                if self._keys.exists() and self._keys.is_over():
                    log.error("this node was removed from the cluster (mosctl cluster join TOKEN lets it in again)")
                continue
            self._peers.drop(name)
            known = self._certificates.get(name)
            if known is not None and not self._keys.removals.bars(name, known.since):
                continue  # it was let in again
            log.warning("node %s was removed from the cluster", name)
            self._front.ignore(name)
            self._certificates.drop(name)
            self._gossiping.drop(name)
            gone.append(name)
        self._parted(gone)

    # -- what peers ask --------------------------------------------------------------------------------------------------

    async def join(self, caller: Caller, parameters: dict[str, Any]) -> dict[str, Any]:
        """Lets a node in. Errors: PeerRefused."""
        limited_log, members = self._front.limited_log, {*self._gossip.known.peers(), self._in_force.config.name}
        try:
            answer = join.answer_join(self._keys, members, caller, parameters)
        except (PeerRefused, ValueError, PkiError) as error:
            limited_log.warn("join", caller.address.rpartition(":")[0], f"refused peer {caller.address}: {error}")
            raise PeerRefused("join", str(error)) from None
        if "certificate" in answer:
            log.info("node %s joined the cluster from %s", parameters["name"], caller.address)
        return answer

    async def answer(self, caller: Caller, method: str, parameters: dict[str, Any]) -> Any:
        """Return what a peer asks of the cluster. Errors: PeerRefused, ValueError, FarhomeError, OSError; LookupError: it is none of
        these."""
        if method == "removals":
            return self.spreading.answer(parameters)
        if method == "renew":
            renewed = answer_renew(self._keys, caller, parameters)
            log.info("renewed the certificate of %s", caller.name)
            return renewed
        if method == "authority":
            key = parameters.get("key")
            if not isinstance(key, bytes):
                raise PeerRefused("authority", "there is no key")
            self._keys.take_authority(key)
            self._take_signed(parameters)
            log.warning("%s has handed the authority's key over: this node can sign for the cluster", caller.name)
            return True
        if method == "signed":
            self._take_signed(parameters)
            return True
        raise LookupError(method)

    def _take_signed(self, parameters: dict[str, Any]) -> None:
        """Takes records of another node that can sign. Errors: ValueError, PeerRefused."""
        reported, signature = parameters.get("signed"), parameters.get("signature")
        if not self._keys.is_authority():
            raise PeerRefused("signed", "this node cannot sign")
        if not isinstance(reported, bytes) or not isinstance(signature, bytes):
            raise ValueError("that is no list of what was signed")
        key = self._keys.authority().public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        try:
            key.verify(signature, b"farhome signed\0" + reported, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise ValueError("the list of what was signed is not by an authority") from None
        for one in json.loads(reported):
            name, serial, key_digest = check_name(one["name"]), str(one["serial"]), str(one["key"])
            self._keys.signed.take(Record(name, serial, key_digest, float(one["since"]), float(one["until"])))

    def signed(self) -> dict[str, bytes]:
        """Whom this node knows to have been let in, as nodes that can sign report to one another."""
        newest = sorted(self._keys.signed.all(), key=lambda record: record.since, reverse=True)[:REPORTED]
        reported = json.dumps([asdict(record) for record in newest]).encode()
        signature = self._keys.authority_private_key().sign(b"farhome signed\0" + reported, ec.ECDSA(hashes.SHA256()))
        return {"signed": reported, "signature": signature}

    async def report_signed(self) -> None:
        """Report to other nodes that can sign which nodes this one has let in."""
        if not self._keys.exists() or not self._keys.is_authority():
            return
        for name in self._authorities():
            try:
                await self._peers.call(name, "signed", self.signed())
            except (PeerError, PkiError) as error:
                log.debug("%s does not hear whom this node has let in: %s", name, error)

    def _authorities(self) -> list[str]:
        return [name for name in sorted(self._peers.connected()) if self._peers.hello_of(name).get("authority") is True]
