"""What the commands ask of the node daemon: one method for each operation of the control socket."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_helpers.errors import MoveRefused
from node.balancing.balancing import BEST
from node.cluster.front.connections import PROTOCOL_VERSION
from node.common import process
from node.common.config import ENGINES, MEMORY
from node.common.names import check_name
from node.guests.guests import EXPEL_TIMEOUT, MOST_EXPEL_TIMEOUT
from node.moves.checkpoints import NOTES_MOST
from node.moves.moves import Manner, MoveReport
from node.moves.registry import HOME, HomeProcess, to_record
from node.requests import adoption
from node.requests.adoption import NoSuchProcess
from node.requests.control import BadRequest, Client, NotPermitted
from node.requests.owner_commands import OwnerCommands
from node.requests.watching import Watching

if TYPE_CHECKING:
    from node.daemon import Daemon

JUST_BEGUN = 1.5
"""Seconds within which a process that has begun is mosrun, if it is going to be."""
REGISTERS_WITHIN = 8.0
"""Seconds within which mosrun has registered its process, or runs it without us."""
MOST_PROCESSES = 1 << 22
PATH_MOST = 4096
LONGEST_TRUST = 4096
"""Characters of the list of nodes that mosrun --trust names."""
LEAST_MINUTES, MOST_MINUTES = 0.01, 1e6
"""Between two checkpoints."""

log = logging.getLogger("mosd.commands")

Command = Callable[[Client, dict[str, Any]], Awaitable[dict[str, Any]]]


class Commands:
    """Answers clients of the control socket; who may do what is decided here."""

    def __init__(self, node: Daemon) -> None:
        self._node = node
        watching = Watching(node)
        self._commands: dict[str, Command] = {
            "register": self._register, "ps": self._ps, "migrate": self._migrate, "status": self._status, "nodes": self._nodes,
            "reload": self._reload, "block": self._block, "unblock": self._unblock, "expel": self._expel, "bring": self._bring,
            "why": self._why, "check": self._check, "checkpoint": self._checkpoint, "restart": self._restart,
            "cluster": node.clustering.command, "watch": watching.answer, "processes": watching.of_node, "mfs": self._mfs,
            **OwnerCommands(node).operations(),
        }  # fmt: skip

    async def handle(self, client: Client, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request. Errors: FarhomeError with the sentence and exit code for the client."""
        command = self._commands.get(operation)
        if command is None:
            raise BadRequest(f"unknown operation {operation!r}")
        return await command(client, request)

    async def _mfs(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """The cluster file tree here."""
        return self._node.files.row()

    async def _register(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """mosrun tells of itself: the peer of this connection, which becomes the program when it closes it by exec. The answer comes
        when it may."""
        entry = self._wished(client, request)
        if self._is_away(entry):
            self._node.spawn(self._begins_away(client, entry))
            return {}
        self._node.registry.add(entry)
        self._node.spawn(self._started(client, entry))
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
                await self._move_quietly(entry.pid, HOME, Manner())
            self._node.balancer.decide()

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
        if wanted and wanted not in (BEST, self._node.config.name) and wanted not in self._node.balancer.gossip.peers():
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

    def _visible(self, client: Client, everybody: bool) -> list[HomeProcess]:
        return [entry for entry in self._node.registry if everybody or client.may_act_on(entry.uid)]

    def _home_process(self, client: Client, pid: object) -> HomeProcess:
        """The process that a command names; one that is not registered as it would be. Errors: NoSuchProcess, NotPermitted,
        MoveRefused: it is not ours to move."""
        if not isinstance(pid, int) or not 0 < pid <= MOST_PROCESSES:
            raise BadRequest("pid must be a process id")
        entry = self._node.registry.get(pid) or self._node.registry.adopt(pid)
        if entry is None:
            own = adoption.own_processes(self._node.mover.deputies.pids(), self._node.guests.remotes())
            return adoption.candidate(pid, client, own)
        if not client.may_act_on(entry.uid):
            raise NotPermitted(f"process {pid} belongs to {process.user_name(entry.uid)}")
        return entry

    def _registered(self, client: Client, pid: object) -> HomeProcess:
        """The home process that a command names. Errors: as _home_process, and MoveRefused: it is none."""
        entry = self._home_process(client, pid)
        if self._node.registry.get(entry.pid) is None:
            raise MoveRefused(entry.pid, "it was not started by mosrun, nor moved by hand")
        return entry

    async def _ps(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("guests"):
            return {"guests": await self._node.guests.rows()}
        self._node.registry.adopt_children()
        self._node.registry.refresh_commands()
        now, job = time.time(), request.get("job")
        verbose = bool(request.get("verbose"))
        rows = [
            entry.row(now) | (entry.history.row(happenings=False) if verbose else {}) | self._progress(entry.pid)
            for entry in self._visible(client, bool(request.get("all"))) if job is None or entry.job == job
        ]  # fmt: skip
        return {"processes": sorted(rows, key=lambda row: row["pid"])}

    def _progress(self, pid: int) -> dict[str, Any]:
        progress = self._node.mover.progress_of(pid)
        return {"progress": progress.row()} if progress is not None else {}

    async def _let_register(self, pid: object) -> None:
        """`mosrun prog & migrate $!`: a process that has only just begun may be mosrun itself, about to register."""
        loop, stat = asyncio.get_running_loop(), process.read_stat(pid) if isinstance(pid, int) else None
        if not isinstance(pid, int) or stat is None or (process.age(stat) > JUST_BEGUN and not process.is_mosrun(pid)):
            return
        begun = loop.time()
        while process.is_alive(pid, stat.starttime):
            entry, waited = self._node.registry.get(pid), loop.time() - begun
            if (entry is not None and entry.state != "starting") or waited > REGISTERS_WITHIN:
                return
            if entry is None and waited > JUST_BEGUN and not process.is_mosrun(pid):
                return
            await asyncio.sleep(0.02)

    async def _migrate(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        await self._let_register(request.get("pid"))
        entry, target = self._home_process(client, request.get("pid")), request.get("target")
        if not isinstance(target, str) or not target:
            raise BadRequest("target must be home, out, balance or a node")
        manner = replace(_manner(request), asker=client.owner)
        wish = target
        if target in ("out", "balance"):
            decision = self._node.balancer.place(entry, away=target == "out")
            if decision.target is None:
                if target == "out":
                    raise MoveRefused(entry.pid, decision.reason)
                self._take(entry, wish)
                return _stays(entry, decision.reason)
            target = decision.target
        elif target not in (HOME, self._node.config.name) and target not in self._node.balancer.gossip.peers():
            raise BadRequest(f"no node {target} is known")
        is_new = self._node.registry.get(entry.pid) is None
        if is_new and target in (HOME, self._node.config.name):
            return _stays(entry, "it has never left")
        self._take(entry, wish)
        if request.get("async"):
            self._node.spawn(self._move_quietly(entry.pid, target, manner))
            return {"pid": entry.pid, "where": entry.where, "target": target, "started": True}
        try:
            report = await self._node.mover.move(entry.pid, target, manner=manner)
            self._node.balancer.journal.concluded(entry.pid, target, "made")
            return _told(report)
        except MoveRefused as refusal:
            self._node.balancer.journal.concluded(entry.pid, target, str(refusal))
            if is_new and wish != "balance":
                self._let_go(entry)
            raise

    def _take(self, entry: HomeProcess, wish: str) -> None:
        """Before a move by hand: from now on it is a home process. Errors: NoSuchProcess, OSError."""
        registry = self._node.registry
        if registry.get(entry.pid) is None:
            registry.add(entry)
            if registry.get(entry.pid) is None:
                raise NoSuchProcess(f"there is no such process any more ({entry.pid})")
            log.info("process %d is adopted: %s", entry.pid, entry.command)
        # What is asked by hand takes the place of an earlier wish.
        changes = {"locked": False} if entry.adopted and wish == "balance" else {}
        registry.update(entry.pid, wanted="", **changes)

    def _let_go(self, entry: HomeProcess) -> None:
        """After the first move of an adopted process was not made: it is again what it was."""
        current = self._node.registry.get(entry.pid)
        if current is not None and current.starttime == entry.starttime and current.state == "home" and not current.moves:
            self._node.registry.forget(entry.pid)
            self._node.mover.ended(entry.pid)

    async def _move_quietly(self, pid: int, target: str, manner: Manner) -> None:
        try:
            await self._node.mover.move(pid, target, manner=manner)
        except MoveRefused:
            pass  # the registry's why tells

    async def _checkpoint(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint of a process that the client may have moved."""
        await self._let_register(request.get("pid"))
        entry = self._home_process(client, request.get("pid"))
        return await self._node.checkpoints.take(entry, client.uid, _path(request.get("directory")))

    async def _restart(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """mosrun wants to have a process again that was checkpointed; it waits, and is its parent then."""
        wished = self._wished(client, request)
        directory = _path(request.get("directory"))
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

    async def _check(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """What keeps a process at home, and where it would go; nothing is changed."""
        await self._let_register(request.get("pid"))
        try:
            entry = self._home_process(client, request.get("pid"))
        except MoveRefused as refusal:
            command = process.command_line(refusal.pid)
            return {"pid": refusal.pid, "command": command, "reasons": [refusal.reason], "notes": [], "registered": False}
        found = await adoption.examine(entry, self._node.config.engine, client.owner)
        best = self._node.balancer.place(entry, away=True)
        return {
            "pid": entry.pid, "command": entry.command, "where": entry.where, "reasons": found.reasons, "notes": found.notes,
            "registered": self._node.registry.get(entry.pid) is not None, "target": best.target, "decision": best.reason,
        }  # fmt: skip

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
            "peers": sorted(node.balancer.gossip.peers()), "connected": sorted(node.peers.connected()),
            "no_datagrams": node.balancer.gossip.membership.deaf(), "dropped_datagrams": dict(node.balancer.gossiping.dropped),
        }  # fmt: skip

    async def _nodes(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        return {"nodes": self._node.balancer.view().rows()}

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

    async def _bring(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """Brings the client's processes home (root: everybody's), all or those of a job."""
        job = request.get("job")
        entries = [e for e in self._visible(client, False) if e.where != HOME and (job is None or e.job == job)]
        outcomes = await asyncio.gather(*(self._node.mover.move(entry.pid, HOME) for entry in entries), return_exceptions=True)
        home = [entry.pid for entry, outcome in zip(entries, outcomes, strict=True) if not isinstance(outcome, BaseException)]
        failed = {str(e.pid): str(o) for e, o in zip(entries, outcomes, strict=True) if isinstance(o, BaseException)}
        return {"home": home, "failed": failed}

    async def _why(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """What is known of why a process is where it is, also of one that has ended; or what was decided lately that has to do with a
        node."""
        if (node := request.get("node")) is not None:
            return self._why_node(client, node)
        pid = request.get("pid")
        if isinstance(pid, int) and self._node.registry.get(pid) is None and pid in self._node.registry.ended:
            ended = self._node.registry.ended[pid]
            if not client.may_act_on(ended.uid):
                raise NotPermitted(f"process {pid} belongs to {process.user_name(ended.uid)}")
            state = "ended" if ended.state != "lost" else "lost"
            decided = {"decision": "it has ended", "decisions": self._decisions(pid)}
            return {**ended.row(time.time()), **ended.history.row(), "state": state} | decided
        entry = self._registered(client, pid)
        decision = self._node.balancer.decisions.get(entry.pid)
        habit = self._node.balancer.habits.of(entry)
        none_yet = "nothing has been decided yet" if self._node.config.balance else "balancing is off"
        return {
            **entry.row(time.time()),
            **entry.history.row(),
            "cpu_seconds": self._node.registry.cpu_seconds(entry, time.time()),
            "decision": decision.reason if decision else none_yet,
            "target": decision.target if decision else None,
            "calls_rate": habit.calls, "bytes_rate": habit.moved, "files_rate": habit.far, "decisions": self._decisions(entry.pid),
        }  # fmt: skip

    def _decisions(self, pid: int) -> list[dict[str, Any]]:
        return [asdict(note) for note in self._node.balancer.journal.of_process(pid)]

    def _why_node(self, client: Client, name: object) -> dict[str, Any]:
        view, registry = self._node.balancer.view(), self._node.registry
        row = next((row for row in view.rows() if row["name"] == name), None)
        if row is None:
            raise BadRequest(f"nothing is known of a node {name!r}")
        notes = []
        for note in self._node.balancer.journal.of_node(str(name)):
            entry = registry.get(note.pid) or registry.ended.get(note.pid)
            if entry is not None and client.may_act_on(entry.uid):
                notes.append(asdict(note) | {"command": entry.command})
        return {"node": row, "decisions": notes}


def _trust(request: dict[str, Any]) -> tuple[str, ...]:
    """The nodes that a process may be on, all if there is none. Errors: BadRequest."""
    listed = request.get("trust", "")
    if not isinstance(listed, str) or len(listed) > LONGEST_TRUST:
        raise BadRequest(f"the names of trusted nodes are a text of at most {LONGEST_TRUST} characters, with commas between them")
    try:
        return tuple(sorted({check_name(name) for name in listed.split(",")})) if listed else ()
    except ValueError as error:
        raise BadRequest(f"--trust: {error}") from None


def _manner(request: dict[str, Any]) -> Manner:
    """How a move is asked for. Errors: BadRequest."""
    manner = Manner(str(request.get("engine") or ""), str(request.get("memory") or ""))
    if manner.engine and manner.engine not in ENGINES:
        raise BadRequest(f"the engine must be one of {', '.join(ENGINES)}")
    if manner.memory and manner.memory not in MEMORY:
        raise BadRequest(f"memory must be one of {', '.join(MEMORY)}")
    return manner


def _path(text: object) -> Path:
    """Errors: BadRequest."""
    if not isinstance(text, str) or not text.startswith("/") or "\0" in text or len(os.fsencode(text)) >= PATH_MOST:
        raise BadRequest("a checkpoint is in a directory that is named from the root")
    return Path(os.path.normpath(text))


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
        "checkpoint_every": minutes, "checkpoint_directory": str(_path(directory)) if directory else "", "checkpoint_since": time.time()
    }  # fmt: skip


def _stays(entry: HomeProcess, reason: str) -> dict[str, Any]:
    return {"pid": entry.pid, "where": entry.where, "frozen_ms": 0.0, "total_ms": 0.0, "moved": False, "reason": reason}


def _told(report: MoveReport) -> dict[str, Any]:
    return {
        "pid": report.pid, "where": report.where, "frozen_ms": report.frozen_ms, "total_ms": report.total_ms, "bytes": report.size,
        "ahead_bytes": report.ahead, "ahead_ms": report.ahead_ms, "engine": report.engine, "moved": report.engine != "none",
        "follows_bytes": report.follows,
    }  # fmt: skip
