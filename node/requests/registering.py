"""Programs that mosrun is about to become: what it asks for them, where they begin, and restarts from checkpoints."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kernel_helpers.common.errors import MoveRefused
from node.balancing.balancing import BEST
from node.common import process
from node.common.names import check_name
from node.moves.checkpoints import NOTES_MOST
from node.moves.home_process import HOME, HomeProcess, to_record
from node.moves.move import Manner
from node.requests import adoption
from node.requests.control import BadRequest, Client, NotPermitted
from node.requests.parts import Parts
from node.requests.process_commands import checkpoint_path

LONGEST_TRUST = 4096
"""Characters of the list of nodes that mosrun --trust names."""
LEAST_MINUTES, MOST_MINUTES = 0.01, 1e6
"""Between two checkpoints."""


class Registering:
    """Answers mosrun."""

    def __init__(self, parts: Parts) -> None:
        self._node = parts

    async def register(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """mosrun registers itself: the peer of this connection, which becomes the program when it closes it by exec. The answer comes
        when it may."""
        entry = self._wished(client, request)
        if self._is_away(entry):
            self._node.tasks.spawn(self._begins_away(client, entry))
            return {}
        self._node.registry.add(entry)
        self._node.tasks.spawn(self._started(client, entry))
        if entry.wanted == BEST:
            await self._node.balancer.turn(entry)
        elif entry.wanted and entry.wanted != self._node.config.name:
            await self._node.beginnings.begin(entry)
        return {}

    def _is_away(self, entry: HomeProcess) -> bool:
        """Whether mosrun was itself executed by a process that is away: so will its program be."""
        now = self._node.registry.get(entry.pid)
        return now is not None and now.starttime == entry.starttime and now.where != HOME

    async def _begins_away(self, client: Client, entry: HomeProcess) -> None:
        """What was asked for holds from when mosrun has become its program, where that is."""
        await client.closed.wait()
        wished = {key: getattr(entry, key) for key in ("job", "home_only", "locked", "memory", "wanted", "trust")}
        if self._is_away(entry):
            self._node.registry.update(entry.pid, **wished, command=process.command_line(entry.pid) or entry.command)
            if entry.home_only:
                with suppress(MoveRefused):  # the registry's why has it
                    await self._node.mover.move(entry.pid, HOME, manner=Manner())
            self._node.balancer.decide()

    async def _started(self, client: Client, entry: HomeProcess) -> None:
        """The connection is closed by exec (or by the end): from now on the process may move."""
        await client.closed.wait()
        current = self._node.registry.get(entry.pid)
        if current is None or current.starttime != entry.starttime:
            return
        begun = {"state": "home"} if current.state == "starting" else {}  # else it is leaving already
        self._node.registry.update(entry.pid, command=process.command_line(entry.pid) or entry.command, **begun)
        self._node.balancer.started(entry.pid)
        if entry.wanted:
            self._node.balancer.decide()

    async def restart_checkpoint(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """mosrun wants to have a process again that was checkpointed; it waits, and is its parent then."""
        wished = self._wished(client, request)
        directory = checkpoint_path(request.get("directory"))
        if request.get("checkpoint") == "" and wished.checkpoint_every:
            wished = replace(wished, checkpoint_directory=str(directory))
        answer = await self._node.checkpoints.restart(client.pid, wished.starttime, client.uid, directory)
        pid = int(answer["pid"])
        stat, uid = process.read_stat(pid), process.real_uid(pid)
        if stat is not None and uid is not None:
            command = process.command_line(pid) or str(answer["command"])
            entry = replace(wished, pid=pid, starttime=stat.starttime, uid=uid, command=command, state="home")
            self._node.registry.add(entry)
            if entry.wanted:
                self._node.balancer.decide()
        return {"pid": pid, "notes": "\n".join(answer["notes"])[:NOTES_MOST]}

    def _wished(self, client: Client, request: dict[str, Any]) -> HomeProcess:
        """What mosrun asks for the process that it is about to become. Errors: BadRequest."""
        stat = client.caller.read_stat() if client.caller is not None else None
        if stat is None:
            raise BadRequest(f"process {client.pid}, which has connected, has ended")
        identity = adoption.read_identity(client.pid)
        if identity is None or set(identity.uids) != {client.uid} or client.caller is None or client.caller.read_stat() is None:
            raise NotPermitted(f"process {client.pid} has other user ids than {process.user_name(client.uid)}, who has connected")
        job, wanted, memory = request.get("job", ""), request.get("node", ""), request.get("memory", 0)
        command, trace = request.get("command", ""), request.get("trace", "")
        if not isinstance(trace, str) or (trace not in ("", "-") and not trace.startswith("/")):
            raise BadRequest("a trace goes to standard error, or to a file that is named from the root")
        if not isinstance(job, str) or len(job) > 64 or not job.isprintable():
            raise BadRequest("a job's name has at most 64 printable characters")
        if not isinstance(wanted, str) or not isinstance(command, str):
            raise BadRequest("node and command must be texts")
        command = "".join(c if c.isprintable() else " " for c in command)
        if not isinstance(memory, int) or not 0 <= memory < 1 << 60:
            raise BadRequest("memory must be a number of bytes")
        if wanted and wanted not in (BEST, self._node.config.name) and wanted not in self._node.cluster.gossip.known.peers():
            raise BadRequest(f"no node {wanted} is known")
        entry = HomeProcess(
            client.pid, stat.starttime, client.uid, job=job, command=command[:200], home_only=bool(request.get("home_only")),
            locked=bool(request.get("locked")), memory=memory, wanted=wanted, state="starting", since=time.time(),
            trace=trace, owner=to_record(client.owner), trust=self._trust(client, request),
        )  # fmt: skip
        if wanted not in ("", BEST, self._node.config.name) and (why := entry.distrusts(wanted)) is not None:
            raise BadRequest(why)
        return replace(entry, **_checkpoints(request))

    def _trust(self, client: Client, request: dict[str, Any]) -> tuple[str, ...]:
        """The nodes that the process may be on: of those that the one may be on that it comes from those asked for. Errors: BadRequest."""
        asked = _trust(request)
        earlier = self._node.registry.get(client.pid) or self._node.registry.adopt(client.pid)
        inherited = earlier.trust if earlier is not None else ()
        if asked and inherited and not set(asked) & set(inherited):
            raise BadRequest(f"it may be on none of {', '.join(asked)}: what it comes from trusts {', '.join(inherited)} alone")
        return tuple(name for name in asked if not inherited or name in inherited) or inherited


def _trust(request: dict[str, Any]) -> tuple[str, ...]:
    """The nodes that a process may be on, all if there is none. Errors: BadRequest."""
    listed = request.get("trust", "")
    if not isinstance(listed, str) or len(listed) > LONGEST_TRUST:
        raise BadRequest(f"the names of trusted nodes are a text of at most {LONGEST_TRUST} characters, with commas between them")
    try:
        return tuple(sorted({check_name(name) for name in listed.split(",")})) if listed else ()
    except ValueError as error:
        raise BadRequest(f"--trust: {error}") from None


def _checkpoints(request: dict[str, Any]) -> dict[str, Any]:
    """What mosrun -A asks for. Errors: BadRequest."""
    every = request.get("every", "")
    if not every:
        return {}
    try:
        minutes = float(every)
    except (TypeError, ValueError):
        minutes = 0.0
    if not LEAST_MINUTES <= minutes <= MOST_MINUTES:
        raise BadRequest(f"-A needs a number of minutes, not {every!r}")
    directory = request.get("checkpoint", "")
    return {
        "checkpoint_every": minutes, "checkpoint_since": time.time(),
        "checkpoint_directory": str(checkpoint_path(directory)) if directory else "",
    }  # fmt: skip
