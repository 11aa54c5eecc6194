"""What the commands ask of the node daemon: the operations of the control socket, and those that are about the node itself."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from engine.criu import kept
from node.cluster.front.connections import PROTOCOL_VERSION
from node.guests.guests import EXPEL_TIMEOUT, MOST_EXPEL_TIMEOUT
from node.moves.home_process import HOME
from node.requests.cluster_commands import ClusterCommands
from node.requests.control import BadRequest, Client
from node.requests.owner_commands import OwnerCommands
from node.requests.parts import Parts
from node.requests.process_commands import ProcessCommands
from node.requests.registering import Registering
from node.requests.watching import Watching

Command = Callable[[Client, dict[str, Any]], Awaitable[dict[str, Any]]]


class Commands:
    """Answers clients of the control socket; who may do what is decided here."""

    def __init__(self, parts: Parts) -> None:
        self._node = parts
        watching, registering = Watching(parts), Registering(parts)
        self._commands: dict[str, Command] = {
            "status": self._status, "nodes": self._nodes, "reload": self._reload, "block": self._block, "unblock": self._unblock,
            "expel": self._expel, "mfs": self._mfs, "register": registering.register, "restart": registering.restart_checkpoint,
            "watch": watching.answer, "processes": watching.of_node, "cluster": ClusterCommands(parts).command,
            **ProcessCommands(parts).operations(), **OwnerCommands(parts).operations(),
        }  # fmt: skip

    async def handle(self, client: Client, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one request. Errors: FarhomeError with the sentence and exit code for the client."""
        command = self._commands.get(operation)
        if command is None:
            raise BadRequest(f"unknown operation {operation!r}")
        return await command(client, request)

    async def _mfs(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """The cluster file tree here, and what guests here know of their homes."""
        return self._node.files.row() | {"remembered": await self._node.guests.usage.remembered()}

    async def _status(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        node = self._node
        entries, refusal = list(node.registry), node.guests.lends()
        return {
            "name": node.config.name, "address": node.config.address, "port": node.config.port, "version": PROTOCOL_VERSION,
            "cluster": node.keys.cluster() if node.keys.exists() else None, "authority": node.keys.is_authority(),
            "uptime": time.time() - node.started, "pid": os.getpid(),
            "processes": len(entries), "away": sum(1 for entry in entries if entry.where != HOME), "guests": len(node.guests.all()),
            "blocked": node.guests.blocked, "lending": refusal is None, "why_not_lending": refusal or "",
            "owner": node.lending.state.stage.value,
            "balance": node.config.balance, "interception": node.config.interception, "engine": node.config.engine,
            "images_fail": kept.why_images_fail(),
            "peers": sorted(node.cluster.gossip.known.peers()), "connected": sorted(node.peers.connected()),
            "no_datagrams": node.cluster.gossip.membership.deaf(), "dropped_datagrams": dict(node.cluster.gossiping.dropped),
        }  # fmt: skip

    async def _nodes(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        return {"nodes": self._node.cluster.view().rows()}

    async def _reload(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        client.require_root()
        await self._node.reload()
        return {"name": self._node.config.name}

    async def _block(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        client.require_root()
        self._node.guests.block(True)
        return {"guests": len(self._node.guests.all())}

    async def _unblock(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        client.require_root()
        self._node.guests.block(False)
        return {}

    async def _expel(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        client.require_root()
        key = request.get("guest")
        keys = [guest.key for guest in self._node.guests.all()]
        if key is not None and key not in keys:
            raise BadRequest(f"there is no guest {key}")
        within = request.get("within", EXPEL_TIMEOUT)
        if isinstance(within, bool) or not isinstance(within, (int, float)) or not 0 < within <= MOST_EXPEL_TIMEOUT:
            raise BadRequest(f"a time is up to {MOST_EXPEL_TIMEOUT:.0f} seconds")
        left = await self._node.guests.expel(key, f"{self._node.config.name} wants its machine back", within)
        return {"expelled": [k for k in ([key] if key else keys) if k not in left], "left": left}
