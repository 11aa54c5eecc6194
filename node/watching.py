"""The operation `watch`: in one answer all that a monitor shows, of those processes that its user may know of."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from node import process
from node.control import Client
from node.registry import HomeProcess

if TYPE_CHECKING:
    from node.daemon import Daemon

MOST_PROCESSES = 400
MOST_GUESTS = 200
MOST_EVENTS = 300
"""Of each, so that an answer stays below the greatest frame; of processes those that are away or moved last."""
LONGEST_COMMAND = 120


class Watching:
    """Answers `watch`."""

    def __init__(self, node: Daemon) -> None:
        self._node = node

    async def answer(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """Nodes as this one knows them, its home processes (everybody's, as in `mosps -a`), its guests, and of what the client
        may act on also the moves and the last decisions."""
        node, now = self._node, time.time()
        node.registry.adopt_children()
        node.registry.refresh_commands()
        view = node.balancer.view()
        entries = sorted(node.registry, key=lambda entry: (entry.state == "home", -entry.since))
        known = [entry for entry in (*entries, *node.registry.ended.values()) if client.may_act_on(entry.uid)]
        return {
            "node": node.config.name, "at": now,
            "nodes": [row | self._own() if row["self"] else row for row in view.rows()],
            "dead": sorted(name for name in node.balancer.gossip.peers() if name not in view.entries),
            "processes": [self._process(client, entry, now) for entry in entries[:MOST_PROCESSES]],
            "unseen": max(0, len(entries) - MOST_PROCESSES),
            "guests": [row | {"command": row["command"][:LONGEST_COMMAND]} for row in (await node.guests.rows())[:MOST_GUESTS]],
            "events": sorted(events(known), key=lambda event: event["at"])[-MOST_EVENTS:],
            "counters": node.mover.tally.row(),
        }  # fmt: skip

    def _own(self) -> dict[str, Any]:
        """What a node knows of itself better than others do: why it lends nothing, in the words of its policy."""
        return {"closed_why": self._node.guests.lends() or "", "owner_idle": self._node.lending.sight.idle}

    def _process(self, client: Client, entry: HomeProcess, now: float) -> dict[str, Any]:
        decision = self._node.balancer.decisions.get(entry.pid) if client.may_act_on(entry.uid) else None
        progress = self._node.mover.progress.get(entry.pid)
        return {
            "pid": entry.pid, "user": process.user_name(entry.uid), "where": entry.where, "state": entry.state,
            "seconds": max(0.0, now - entry.since), "moves": entry.moves, "command": entry.command[:LONGEST_COMMAND], "why": entry.why,
            "job": entry.job, "locked": entry.locked, "home_only": entry.home_only, "adopted": entry.adopted,
            "decision": decision.reason if decision else "",
            "share": min(1.0, progress.sent / max(1, progress.total)) if progress else None,
        }  # fmt: skip


def events(entries: list[HomeProcess]) -> Iterator[dict[str, Any]]:
    """The last happenings of these processes."""
    for entry in entries:
        for happening in entry.history.recent:
            yield {"pid": entry.pid, **asdict(happening)}
