"""What other nodes ask of this daemon: one method for each of the wire (docs/architecture.md); those of the cluster are Clustering's."""

from __future__ import annotations

from typing import Any

from node.cluster.front.connections import PROTOCOL_VERSION, PeerRefused
from node.cluster.front.peer_server import Caller
from node.guests.orphans import MOST_PIDS
from node.moves.home_process import HOME
from node.moves.move import Manner
from node.requests.parts import Parts
from node.requests.watching import Watching


class PeerRequests:
    """Answers peers, whose names their certificates have proved."""

    def __init__(self, parts: Parts) -> None:
        self._node = parts
        self._watching = Watching(parts)

    def hello(self) -> dict[str, Any]:
        """Return what this node says of itself to a peer."""
        node = self._node
        return {
            "version": PROTOCOL_VERSION, "name": node.config.name, "address": node.config.address, "port": node.config.port,
            "processor": node.processors.own.to_wire(), "mfs_port": node.files.port(), "authority": node.keys.is_authority(),
        }  # fmt: skip

    async def answer(self, caller: Caller, method: str, parameters: dict[str, Any]) -> Any:
        """Return the answer to one call. Errors: PeerRefused, ValueError, FarhomeError, OSError."""
        node = self._node
        if method == "hello":
            return self._met(caller, parameters)
        if method == "gossip":
            return node.cluster.gossiping.receive_call(caller.name, parameters.get("payload"))
        if method == "reserve":
            return await self._reserve(caller, parameters)
        if method == "usage":
            return await node.guests.usage.seconds(caller, parameters.get("pids"), parameters.get("reads") is True)
        if method == "cancel":
            await node.guests.cancel(caller, str(parameters.get("key")), parameters.get("ended") is True)
            return True
        if method == "over":
            return self._over(parameters.get("pids"))
        if method == "expel":
            return await self._expelled(caller, parameters)
        if method == "processes":
            return await self._watching.for_peer(parameters)
        if method == "ping":
            return True
        try:
            return await node.clustering.answer(caller, method, parameters)
        except LookupError:
            raise PeerRefused("method", f"unknown method {method[:40]!r}") from None

    def _met(self, caller: Caller, parameters: dict[str, Any]) -> dict[str, Any]:
        address, port = parameters.get("address"), parameters.get("port")
        if isinstance(address, str) and isinstance(port, int) and 0 < port < 65536:
            self._node.contacts.met(caller.name, address, port)
            self._node.files.learn(caller.name, address, parameters.get("mfs_port", 0))
        return self.hello()

    async def _reserve(self, caller: Caller, parameters: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._node.guests.reserve(caller, parameters)
        except PeerRefused:
            self._node.cluster.correct(caller.name)
            raise

    def _over(self, pids: object) -> list[int]:
        """Return those of these processes of ours that are away no more. Errors: ValueError."""
        if not isinstance(pids, list) or len(pids) > MOST_PIDS or not all(isinstance(pid, int) and 0 < pid < 1 << 22 for pid in pids):
            raise ValueError(f"pids: at most {MOST_PIDS} numbers of processes")
        return [pid for pid in pids if self._node.mover.is_over(pid)]

    async def _expelled(self, caller: Caller, parameters: dict[str, Any]) -> bool:
        """A node sends one of our processes home."""
        pid, reason = parameters.get("pid"), str(parameters.get("reason", ""))[:200]
        entry = self._node.registry.get(pid) if isinstance(pid, int) else None
        if entry is None or entry.where != caller.name:
            return False
        if parameters.get("checkpoint") is True:
            return await self._node.checkpoints.take_home(entry, reason)
        await self._node.mover.move(entry.pid, HOME, reason, manner=Manner(why=reason))
        return True
