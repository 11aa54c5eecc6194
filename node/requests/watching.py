"""The operation `watch`: in one answer all that a monitor shows, of those processes that its user may know of; and `processes`: what
another node reports about its own.

That node goes by the name of the user. Its answer is what they would see there: everybody's processes, as `mosps -a` shows them, and of
those of his own user also what was decided; who has no user there learns nobody's commands. Root of a node is root on all.
"""

from __future__ import annotations

import asyncio
import pwd
import time
from collections.abc import Container, Iterator
from dataclasses import asdict
from typing import Any

from kernel_helpers.common.errors import FarhomeError
from node.cluster.front.connections import PeerError
from node.common import process
from node.moves.history import BORN, ENDED, Happening
from node.moves.home_process import HOME, HomeProcess
from node.requests.control import BadRequest, Client
from node.requests.parts import Parts

MOST_PROCESSES = 400
MOST_GUESTS = 200
MOST_EVENTS = 300
"""Of each, so that an answer stays below the greatest frame; of processes those that are away or moved last."""
LONGEST_COMMAND = 120
ANSWER_TIMEOUT = 3.0
NOBODY = -1
"""The user id of who has none here."""


class NoAnswer(FarhomeError):
    """Another node cannot be asked now."""

    exit_code = 69


class Watching:
    """Answers both, and what other daemons ask for their clients."""

    def __init__(self, parts: Parts) -> None:
        self._node = parts

    async def answer(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """Nodes as this one knows them, its home processes (everybody's, as in `mosps -a`), its guests, and of what the client
        may act on also the moves and the last decisions."""
        node, now = self._node, time.time()
        node.registry.adopt_children()
        node.registry.refresh_commands()
        view = node.cluster.view()
        entries = sorted(node.registry, key=lambda entry: (entry.state == "home", -entry.since))
        known = [entry for entry in (*entries, *node.registry.ended.values()) if client.may_act_on(entry.uid)]
        return {
            "node": node.config.name, "at": now,
            "nodes": [row | self._own() if row["self"] else row for row in view.rows()],
            "dead": self._dead(view.entries, now),
            "processes": [self._process(client, entry, now) for entry in entries[:MOST_PROCESSES]],
            "unseen": max(0, len(entries) - MOST_PROCESSES),
            "guests": await self._guests(),
            "events": _latest(sorted(events(known), key=lambda event: event["at"])),
            "counters": node.mover.counts.row(),
        }  # fmt: skip

    def _dead(self, heard: Container[str], now: float) -> list[dict[str, Any]]:
        """Nodes of which nothing is known now, and since when they count as dead, if they have been known here to live."""
        gossip = self._node.cluster.gossip
        return [
            {"name": name, "since": None if (seconds := gossip.membership.dead_for(name)) is None else now - seconds}
            for name in sorted(gossip.known.peers()) if name not in heard
        ]  # fmt: skip

    async def of_node(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """Return the processes of another node. Errors: BadRequest, NoAnswer."""
        name = request.get("node")
        if not isinstance(name, str) or name not in self._node.cluster.gossip.known.peers():
            raise BadRequest(f"no other node {name} is known")
        asks = {"user": process.user_name(client.uid), "root": client.uid == 0}
        try:
            reported = await self._node.peers.call(name, "processes", asks, ANSWER_TIMEOUT)
        except PeerError as error:
            raise NoAnswer(f"{name} does not report its processes: {error}") from None
        if not isinstance(reported, dict):
            raise NoAnswer(f"{name} did not answer as it should")
        return {key: reported.get(key) for key in ("processes", "guests", "unseen")} | {"node": name}

    async def for_peer(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the processes here, for somebody on another node. Errors: ValueError."""
        viewer, now = _viewer(parameters), time.time()
        is_root = parameters.get("root") is True  # there: it sees what everybody here sees, and decides nothing here
        self._node.registry.adopt_children()
        entries = sorted(self._node.registry, key=lambda entry: (entry.state == "home", -entry.since))
        rows = [self._process(viewer, entry, now) for entry in entries[:MOST_PROCESSES]]
        guests = await self._guests()
        if viewer.uid == NOBODY and not is_root:
            rows, guests = ([row | {"command": "", "why": ""} for row in reported] for reported in (rows, guests))
        return {"processes": rows, "guests": guests, "unseen": max(0, len(entries) - MOST_PROCESSES)}

    async def _guests(self) -> list[dict[str, Any]]:
        return [row | {"command": row["command"][:LONGEST_COMMAND]} for row in (await self._node.guests.rows())[:MOST_GUESTS]]

    def _own(self) -> dict[str, Any]:
        """What a node knows of itself better than others do: why it lends nothing, in the words of its policy."""
        return {"closed_why": self._node.guests.lends() or "", "owner_idle": self._node.lending.sight.idle}

    def _process(self, client: Client, entry: HomeProcess, now: float) -> dict[str, Any]:
        decision = self._node.balancer.decisions.get(entry.pid) if client.may_act_on(entry.uid) else None
        progress = self._node.mover.progress_of(entry.pid)
        return {
            "pid": entry.pid, "user": process.user_name(entry.uid), "where": entry.where, "state": entry.shown_state,
            "seconds": max(0.0, now - entry.since), "moves": entry.moves, "command": entry.command[:LONGEST_COMMAND], "why": entry.why,
            "cut": entry.cut if entry.where != HOME else 0.0,
            "job": entry.job, "locked": entry.locked, "home_only": entry.home_only, "adopted": entry.adopted,
            "decision": decision.reason if decision else "",
            "share": min(1.0, progress.sent / max(1, progress.total)) if progress else None,
        }  # fmt: skip


def _viewer(parameters: dict[str, Any]) -> Client:
    """Who looks from another node, as one of this node's users. Errors: ValueError."""
    name = parameters.get("user")
    if not isinstance(name, str):
        raise ValueError("who asks for processes has a name")
    return Client(0, _uid_of(name) or NOBODY, asyncio.Event())  # root of another node is not root here


def _uid_of(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None


def _latest(reported: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last MOST_EVENTS, and when those were born that they are about."""
    left, kept = reported[:-MOST_EVENTS], reported[-MOST_EVENTS:]
    about = {event["pid"] for event in kept}
    return [event for event in left if event["what"] == BORN and event["pid"] in about][-MOST_EVENTS:] + kept


def events(entries: list[HomeProcess]) -> Iterator[dict[str, Any]]:
    """The last happenings of these processes, and births: of those that have been away, or were to."""
    for entry in entries:
        if entry.born == HOME and all(happening.what == ENDED for happening in entry.history.recent):
            continue
        yield {"pid": entry.pid, **asdict(Happening(process.born_at(entry.starttime), BORN, entry.born, entry.born, ""))}
        for happening in entry.history.recent:
            yield {"pid": entry.pid, **asdict(happening)}
