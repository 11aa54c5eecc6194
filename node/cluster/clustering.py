"""What a node daemon does for its cluster: lets nodes in, takes them out, renews certificates, hands the authority's key over."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from kernel_helpers.errors import FarhomeError
from node.cluster import join
from node.cluster.front.connections import PeerError, PeerRefused
from node.cluster.front.peer_server import Caller
from node.cluster.keys.certificates import Certificates, Doubtful, Known
from node.cluster.keys.pki import PkiError
from node.cluster.keys.signed import Record, key_digest
from node.cluster.renewal import Renewal, answer_renew
from node.cluster.spreading import Spreading
from node.common.names import check_name
from node.moves.parting import part_from
from node.requests.control import BadRequest, Client, NotPermitted

if TYPE_CHECKING:
    from node.daemon import Daemon

SIGNED_PERIOD = 30.0
"""Seconds between two times that those who can sign tell one another whom they have let in."""
HANDOVER_TIMEOUT = 10.0
TOLD = 3000
"""Records that are told at once, the newest: what a message has room for."""

log = logging.getLogger("mosd.cluster")


class NotDone(FarhomeError):
    """What is asked of the cluster cannot be done."""

    exit_code = 75


class Clustering:
    """The cluster as one daemon sees to it."""

    def __init__(self, node: Daemon, certificates: Certificates) -> None:
        self._node = node
        self._keys = node.keys
        self._certificates = certificates
        gossip = node.balancer.gossip
        self.spreading = Spreading(node.keys, node.peers, gossip, self._removed)
        self.renewal = Renewal(node.keys, node.peers, gossip.peers, node.begin_peers)
        certificates.met = self._met
        node.front.met = self._seen

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
        gossip = self._node.balancer.gossip
        if anew:
            gossip.begin_anew(name)
        gossip.prove(name)

    def _removed(self, names: set[str]) -> None:
        """Names that are news on the list of those who were taken out."""
        node = self._node
        node.front.removed(names)
        for name in sorted(names):
            if name == node.config.name:
                if self._keys.exists() and self._keys.is_over():
                    log.error("this node was removed from the cluster (mosctl cluster join TOKEN lets it in again)")
                continue
            node.peers.drop(name)
            known = self._certificates.get(name)
            if known is not None and not self._keys.removals.bars(name, known.since):
                continue  # it was let in again
            log.warning("node %s was removed from the cluster", name)
            self._certificates.drop(name)
            node.balancer.gossiping.drop(name)
            node.files.forget(name)
            node.spawn(part_from(node, name))
        node.spawn(node.files.look())

    # -- what peers ask --------------------------------------------------------------------------------------------------

    async def join(self, caller: Caller, parameters: dict[str, Any]) -> dict[str, Any]:
        """Lets a node in. Errors: PeerRefused."""
        grumbler, members = self._node.front.grumbler, {*self._node.balancer.gossip.peers(), self._node.config.name}
        try:
            answer = join.answer_join(self._keys, members, caller, parameters)
        except (PeerRefused, ValueError, PkiError) as error:
            grumbler.warn("join", caller.address.rpartition(":")[0], f"refused peer {caller.address}: {error}")
            raise PeerRefused("join", str(error)) from None
        if "certificate" in answer:
            log.info("node %s joined the cluster from %s", parameters["name"], caller.address)
        return answer

    async def answer(self, caller: Caller, method: str, parameters: dict[str, Any]) -> Any:
        """What a peer asks of the cluster. Errors: PeerRefused, ValueError, FarhomeError, OSError; LookupError: it is none of these."""
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
        told, signature = parameters.get("signed"), parameters.get("signature")
        if not self._keys.is_authority():
            raise PeerRefused("signed", "this node cannot sign")
        if not isinstance(told, bytes) or not isinstance(signature, bytes):
            raise ValueError("that is no list of what was signed")
        key = self._keys.authority().public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        try:
            key.verify(signature, b"farhome signed\0" + told, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise ValueError("the list of what was signed is not by an authority") from None
        for one in json.loads(told):
            name, serial, key_digest = check_name(one["name"]), str(one["serial"]), str(one["key"])
            self._keys.signed.take(Record(name, serial, key_digest, float(one["since"]), float(one["until"])))

    def _signed(self) -> dict[str, bytes]:
        newest = sorted(self._keys.signed.all(), key=lambda record: record.since, reverse=True)[:TOLD]
        told = json.dumps([asdict(record) for record in newest]).encode()
        signature = self._keys.authority_private_key().sign(b"farhome signed\0" + told, ec.ECDSA(hashes.SHA256()))
        return {"signed": told, "signature": signature}

    async def tell_signed(self) -> None:
        """Tells others who can sign whom this node has let in."""
        if not self._keys.exists() or not self._keys.is_authority():
            return
        for name in self._authorities():
            try:
                await self._node.peers.call(name, "signed", self._signed())
            except (PeerError, PkiError) as error:
                log.debug("%s is not told whom this node has let in: %s", name, error)

    def _authorities(self) -> list[str]:
        peers = self._node.peers
        return [name for name in sorted(peers.connected()) if peers.hello_of(name).get("authority") is True]

    # -- what root asks --------------------------------------------------------------------------------------------------

    async def command(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """`mosctl cluster remove`, `add-authority` and `resign`. Errors: NotPermitted, BadRequest, NotDone, FarhomeError."""
        if client.uid != 0:
            raise NotPermitted("only root may do that")
        step, name = request.get("step"), request.get("node")
        if not self._keys.exists() or not self._keys.is_authority():
            raise NotDone("this node cannot sign for a cluster: do that on the one that made it")
        if step == "resign":
            return await self._resign()
        try:
            name = check_name(name)
        except ValueError as error:
            raise BadRequest(str(error)) from None
        if name == self._node.config.name:
            raise NotDone(f"{name} is this node; another one that can sign may remove it, after `mosctl cluster resign` here")
        if step == "remove":
            return await self._remove(name)
        if step == "add-authority":
            return await self._hand_over(name)
        raise BadRequest("there is no such step")

    async def _remove(self, name: str) -> dict[str, Any]:
        peers = self._node.balancer.gossip.peers()
        if self._keys.signed.get(name) is None and name not in peers:
            raise NotDone(f"no node {name} is known")
        if await self._can_sign(name):
            raise NotDone(f"{name} has the authority's key and could let itself in again: `mosctl cluster resign` there first; if it is not"
                          " to be trusted any more, make the cluster anew")  # fmt: skip
        try:
            self._keys.remove(name)
        except (ValueError, OSError) as error:
            raise NotDone(str(error)) from None
        self.spreading.read()
        self._removed({name})
        knows, late = await self.spreading.tell(other for other in peers if other != name)
        return {"removed": name, "told": knows, "late": late}

    async def _can_sign(self, name: str) -> bool:
        self._node.peers.hang_up(name)  # what it said of itself may be old
        try:
            await self._node.peers.call(name, "ping", {}, 2.0)
        except PeerError:
            return False
        return self._node.peers.hello_of(name).get("authority") is True

    async def _hand_over(self, name: str) -> dict[str, Any]:
        key = self._keys.authority_number()
        try:
            await self._node.peers.call(name, "authority", {"key": key, **self._signed()}, HANDOVER_TIMEOUT)
        except PeerError as error:
            raise NotDone(f"{name} does not take the authority's key: {error}") from None
        self._node.peers.hang_up(name)  # what it says of itself is another thing now
        log.warning("the authority's key is handed over to %s, which can sign for the cluster, too", name)
        return {"authority": name}

    async def _resign(self) -> dict[str, Any]:
        for name in sorted(self._node.balancer.gossip.peers()):
            if await self._can_sign(name):
                await self._node.peers.call(name, "signed", self._signed())
                self._keys.authority_key.unlink()
                self._node.peers.close()
                log.warning("this node has given the authority's key up; %s can sign", name)
                return {"authority": name}
        raise NotDone("no other node that can be reached has the authority's key (mosctl cluster add-authority NODE): without it nobody"
                      " could be let in, nor any certificate renewed")  # fmt: skip
