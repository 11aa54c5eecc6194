"""What root asks of the cluster: takes a node out, hands the authority's key over, gives it up."""

from __future__ import annotations

import logging
from typing import Any

from kernel_helpers.common.errors import FarhomeError
from node.cluster.front.connections import PeerError
from node.common.names import check_name
from node.requests.control import BadRequest, Client, NotPermitted
from node.requests.parts import Parts

HANDOVER_TIMEOUT = 10.0

log = logging.getLogger("mosd.cluster")


class NotDone(FarhomeError):
    """What is asked of the cluster cannot be done."""

    exit_code = 75


class ClusterCommands:
    """Answers the operation `cluster` of the control socket."""

    def __init__(self, parts: Parts) -> None:
        self._node = parts
        self._keys = parts.keys
        self._peers = parts.peers
        self._gossip = parts.cluster.gossip

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
        if name == self._node.name:
            raise NotDone(f"{name} is this node; another one that can sign may remove it, after `mosctl cluster resign` here")
        if step == "remove":
            return await self._remove(name)
        if step == "add-authority":
            return await self._hand_over(name)
        raise BadRequest("there is no such step")

    async def _remove(self, name: str) -> dict[str, Any]:
        peers = self._gossip.known.peers()
        if self._keys.signed.get(name) is None and name not in peers:
            raise NotDone(f"no node {name} is known")
        if await self._can_sign(name):
            raise NotDone(f"{name} has the authority's key and could let itself in again: `mosctl cluster resign` there first; if it is not"
                          " to be trusted any more, make the cluster anew")  # fmt: skip
        try:
            self._keys.remove(name)
        except (ValueError, OSError) as error:
            raise NotDone(str(error)) from None
        self._node.clustering.spreading.read()
        self._node.clustering.removed({name})
        knows, late = await self._node.clustering.spreading.inform(other for other in peers if other != name)
        return {"removed": name, "informed": knows, "late": late}

    async def _can_sign(self, name: str) -> bool:
        self._peers.hang_up(name)  # what it said of itself may be old
        try:
            await self._peers.call(name, "ping", {}, 2.0)
        except PeerError:
            return False
        return self._peers.hello_of(name).get("authority") is True

    async def _hand_over(self, name: str) -> dict[str, Any]:
        key = self._keys.authority_number()
        try:
            await self._peers.call(name, "authority", {"key": key, **self._node.clustering.signed()}, HANDOVER_TIMEOUT)
        except PeerError as error:
            raise NotDone(f"{name} does not take the authority's key: {error}") from None
        self._peers.hang_up(name)  # what it says of itself is another thing now
        log.warning("the authority's key is handed over to %s, which can sign for the cluster, too", name)
        return {"authority": name}

    async def _resign(self) -> dict[str, Any]:
        for name in sorted(self._gossip.known.peers()):
            if await self._can_sign(name):
                await self._peers.call(name, "signed", self._node.clustering.signed())
                self._keys.authority_key.unlink()
                self._peers.close()
                log.warning("this node has given the authority's key up; %s can sign", name)
                return {"authority": name}
        raise NotDone("no other node that can be reached has the authority's key (mosctl cluster add-authority NODE): without it nobody"
                      " could be let in, nor any certificate renewed")  # fmt: skip
