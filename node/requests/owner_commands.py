"""What the owner of a node asks of its daemon: what it lends and why, that he is back or away, and what has been lent so far."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from balancer.lending.explain import explain
from balancer.lending.lending import Borrower
from node.common import process
from node.owner.ledger import LENT
from node.requests.control import BadRequest, Client
from node.requests.parts import Parts

MOST_SIZE = 1 << 60


class OwnerCommands:
    """Answers those of Commands' operations that are the owner's."""

    def __init__(self, parts: Parts) -> None:
        self._node = parts

    def operations(self) -> dict[str, Callable[[Client, dict[str, Any]], Awaitable[dict[str, Any]]]]:
        """By their names."""
        return {"policy": self._policy, "owner": self._owner, "ledger": self._ledger}

    async def _policy(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """The lending policy rule by rule; `as`: for that user@node; `memory`: bytes that a guest of his would need."""
        node, who, memory = self._node, request.get("as"), request.get("memory", 0)
        if not isinstance(memory, int) or isinstance(memory, bool) or not 0 <= memory < MOST_SIZE:
            raise BadRequest("memory must be a number of bytes")
        borrower = None
        if who is not None:
            try:
                borrower = Borrower.parse(str(who), node.keys.cluster() if node.keys.exists() else "")
            except ValueError as error:
                raise BadRequest(str(error)) from None
        reported = explain(node.policy, node.guests.lending_state(), borrower, memory)
        return {"name": node.config.name, "lines": [line.to_wire() for line in reported.lines], "refusal": reported.refusal or ""}

    async def _owner(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """How it is between the owner and the guests; `back`: true or false says that he is back, or away."""
        back = request.get("back")
        if back is not None:
            client.require_root()
            if not isinstance(back, bool):
                raise BadRequest("an owner is back or away")
            self._node.lending.call(back)
        return self._node.lending.row()

    async def _ledger(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """What has been lent and borrowed; root sees all, others what was lent, and what was borrowed for them."""
        self._node.accounts.poll()
        user = process.user_name(client.uid)
        entries = [entry for entry in self._node.ledger.entries() if entry.direction == LENT or client.uid == 0 or entry.user == user]
        return {"entries": [asdict(entry) for entry in entries]}
