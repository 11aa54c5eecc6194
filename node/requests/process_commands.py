"""What commands ask of processes: which there are, where each is to go and why it is where it is, what keeps it at home."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kernel_helpers.common.errors import MoveRefused
from node.common import process
from node.common.config import ENGINES, MEMORY
from node.moves.home_process import HOME, HomeProcess
from node.moves.move import Manner, MoveReport
from node.programs.programs import ProgramError
from node.requests import adoption
from node.requests.adoption import NoSuchProcess
from node.requests.control import BadRequest, Client, NotPermitted
from node.requests.parts import Parts

JUST_BEGUN = 1.5
"""Seconds within which a process that has begun is mosrun, if it is going to be."""
REGISTERS_WITHIN = 8.0
"""Seconds within which mosrun has registered its process, or runs it without us."""
MOST_PROCESSES = 1 << 22
STATUS_TIMEOUT = 2.0
PATH_MOST = 4096

log = logging.getLogger("mosd.commands")


class ProcessCommands:
    """Answers those of Commands' operations that are about processes."""

    def __init__(self, parts: Parts) -> None:
        self._node = parts

    def operations(self) -> dict[str, Callable[[Client, dict[str, Any]], Awaitable[dict[str, Any]]]]:
        """By their names."""
        return {
            "ps": self._ps, "migrate": self._migrate, "bring": self._bring, "why": self._why, "check": self._check,
            "checkpoint": self._checkpoint,
        }  # fmt: skip

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
        elif target not in (HOME, self._node.config.name) and target not in self._node.cluster.gossip.known.peers():
            raise BadRequest(f"no node {target} is known")
        is_new = self._node.registry.get(entry.pid) is None
        if is_new and target in (HOME, self._node.config.name):
            return _stays(entry, "it has never left")
        self._take(entry, wish)
        if request.get("async"):
            self._node.tasks.spawn(self._move_quietly(entry.pid, target, manner))
            return {"pid": entry.pid, "where": entry.where, "target": target, "started": True}
        try:
            report = await self._node.mover.move(entry.pid, target, manner=manner)
            self._node.balancer.journal.concluded(entry.pid, target, "made")
            return _reported(report)
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
            self._node.mover.ended(current)

    async def _move_quietly(self, pid: int, target: str, manner: Manner) -> None:
        try:
            await self._node.mover.move(pid, target, manner=manner)
        except MoveRefused:
            pass  # the registry's why has it

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

    async def _checkpoint(self, client: Client, request: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint of a process that the client may have moved."""
        await self._let_register(request.get("pid"))
        entry = self._home_process(client, request.get("pid"))
        return await self._node.checkpoints.take(entry, client.uid, checkpoint_path(request.get("directory")))

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
        rates = self._node.balancer.traffic.of(entry)
        none_yet = "nothing has been decided yet" if self._node.config.balance else "balancing is off"
        return {
            **entry.row(time.time()),
            **entry.history.row(),
            "cpu_seconds": self._node.registry.cpu_seconds(entry, time.time()),
            "decision": decision.reason if decision else none_yet,
            "target": decision.target if decision else None,
            "calls_rate": rates.calls, "bytes_rate": rates.moved, "files_rate": rates.far, "decisions": self._decisions(entry.pid),
            **await self._trips(entry),
        }  # fmt: skip

    async def _trips(self, entry: HomeProcess) -> dict[str, int]:
        """how many calls home has made for it and its children while they were away; nothing if it is at home, or nobody says."""
        if entry.where == HOME:
            return {}
        try:
            return {"trips": int((await self._node.mover.deputies.status(entry.pid, STATUS_TIMEOUT))["trips"])}
        except (ProgramError, KeyError, TypeError, ValueError):
            return {}

    def _decisions(self, pid: int) -> list[dict[str, Any]]:
        return [asdict(note) for note in self._node.balancer.journal.of_process(pid)]

    def _why_node(self, client: Client, name: object) -> dict[str, Any]:
        view, registry = self._node.cluster.view(), self._node.registry
        row = next((row for row in view.rows() if row["name"] == name), None)
        if row is None:
            raise BadRequest(f"nothing is known of a node {name!r}")
        notes = []
        for note in self._node.balancer.journal.of_node(str(name)):
            entry = registry.get(note.pid) or registry.ended.get(note.pid)
            if entry is not None and client.may_act_on(entry.uid):
                notes.append(asdict(note) | {"command": entry.command})
        return {"node": row, "decisions": notes}

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


def checkpoint_path(text: object) -> Path:
    """Return where a command wants a checkpoint to be. Errors: BadRequest."""
    if not isinstance(text, str) or not text.startswith("/") or "\0" in text or len(os.fsencode(text)) >= PATH_MOST:
        raise BadRequest("a checkpoint is in a directory that is named from the root")
    return Path(os.path.normpath(text))


def _manner(request: dict[str, Any]) -> Manner:
    """How a move is asked for. Errors: BadRequest."""
    manner = Manner(str(request.get("engine") or ""), str(request.get("memory") or ""))
    if manner.engine and manner.engine not in ENGINES:
        raise BadRequest(f"the engine must be one of {', '.join(ENGINES)}")
    if manner.memory and manner.memory not in MEMORY:
        raise BadRequest(f"memory must be one of {', '.join(MEMORY)}")
    return manner


def _stays(entry: HomeProcess, reason: str) -> dict[str, Any]:
    return {"pid": entry.pid, "where": entry.where, "frozen_ms": 0.0, "total_ms": 0.0, "moved": False, "reason": reason}


def _reported(report: MoveReport) -> dict[str, Any]:
    return {
        "pid": report.pid, "where": report.where, "frozen_ms": report.frozen_ms, "total_ms": report.total_ms, "bytes": report.size,
        "ahead_bytes": report.ahead, "ahead_ms": report.ahead_ms, "engine": report.engine, "moved": report.engine != "none",
        "follows_bytes": report.follows,
        "steps": [{"step": name, "ms": round(ms, 2), "frozen": frozen} for name, ms, frozen in report.steps],
    }  # fmt: skip
