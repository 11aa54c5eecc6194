"""The home's side of moves: a place on the target, a deputy for the process, and what became of it in the registry.

One move of a process at a time; a second request waits for the first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from balancer.decisions.admission import retry_after
from balancer.decisions.cost import MoveCost
from kernel_helpers.common.errors import MoveRefused
from kernel_helpers.common.errors import sentence as sentence_of
from node.cluster.front.connections import BUSY, PeerError, PeerRefused
from node.cluster.peers import Peers
from node.common import process
from node.common.config import Config
from node.common.paths import Paths
from node.common.tasks import Tasks
from node.moves.deputies import ENDED, EXIT_TIMEOUT, MOVE_TIMEOUT, ORPHAN_TIME, SLOWEST, Deputies, abort
from node.moves.home_process import HOME, KEPT_MOVES, HomeProcess
from node.moves.move import Manner, MoveFailed, MoveReport, NoPlace, Progress, report_of
from node.moves.move_counts import MoveCounts
from node.moves.registry import Registry
from node.programs.programs import Program, ProgramError, Programs
from wire import steps
from wire.frames import Message
from wire.patience import longer

QUEUE_TIMEOUT = 60.0
"""Seconds that a move waits for the one before it."""
RESERVE_TIMEOUT = 35.0
RECALL_TIMEOUT = 3.0
RECALL_MARGIN = 5.0
"""Seconds beyond link_timeout in which a node ends a guest that has no home."""
RECALL_POLL = 0.2
RECALL_LONGEST_POLL = 5.0
"""Seconds between two attempts, at first and at last."""
END_PATIENCE = 0.5
"""Seconds for a deputy to report the end of its process to the node where that is."""
NAME_MOST = 15
"""Bytes of a program's name, as the kernel shows it."""
MOST_GROUPS = 64
"""Of a user that are reported to a target."""

log = logging.getLogger("mosd.moves")


class Mover:
    """Moves this node's home processes, with the deputies that it has for those that are away."""

    def __init__(
        self, paths: Paths, config: Callable[[], Config], registry: Registry, peers: Peers, programs: Programs,
        moved: Callable[[int, str, str, float], None],
    ) -> None:  # fmt: skip
        """moved is called for every move: for which process, from where, to where, and how many runnable threads that are."""
        self._progress: dict[int, Progress] = {}
        """of moves that are under way"""
        self._config = config
        self._registry = registry
        self._peers = peers
        self._moved = moved
        self._locks: dict[int, asyncio.Lock] = {}
        self._tasks = Tasks()
        self.deputies = Deputies(paths, config, registry, programs, self, self._recall)
        self._begins: dict[int, Callable[[], None]] = {}
        """Processes that begin as soon as their targets are ready."""
        self._rng = random.Random()
        self.cost = MoveCost()
        self.counts = MoveCounts()

    def is_moving(self, pid: int) -> bool:
        """Return whether a move of that process is under way."""
        lock = self._locks.get(pid)
        return lock is not None and lock.locked()

    def is_over(self, pid: int) -> bool:
        """Return whether no process of that number can be away: what is away is a stub here, and its deputy traces it."""
        return not self.is_moving(pid) and not process.is_traced(pid)

    def lock(self, pid: int) -> asyncio.Lock:
        """Return the lock that the mover of the process holds."""
        return self._locks.setdefault(pid, asyncio.Lock())

    async def move(
        self, pid: int, target: str, reason: str = "asked", slowdown: float | None = None, manner: Manner | None = None
    ) -> MoveReport:
        """Moves a process to a node or home. slowdown: that of where it is, if the target is to judge for itself whether the
        move is worth it. manner: another than the configuration's. Errors: MoveRefused; the process is then where the registry says."""
        async with self.holding(pid):
            return await self.move_held(pid, target, reason, slowdown, manner)

    @asynccontextmanager
    async def holding(self, pid: int) -> AsyncIterator[None]:
        """Nobody else moves the process inside. Errors: MoveRefused."""
        lock = self.lock(pid)
        try:
            async with asyncio.timeout(QUEUE_TIMEOUT):
                await lock.acquire()
        except TimeoutError:
            raise MoveRefused(pid, "another move of it is under way") from None
        try:
            yield
        finally:
            lock.release()

    async def move_held(
        self, pid: int, target: str, reason: str = "asked", slowdown: float | None = None, manner: Manner | None = None
    ) -> MoveReport:
        """As move(), for who is holding() it."""
        self.deputies.hurry(pid)
        manner = manner or Manner()
        if manner.begins is not None:
            self._begins[pid] = manner.begins
        try:
            return await self._move_locked(pid, target, reason, slowdown, manner)
        finally:
            self._begins.pop(pid, None)
            self._progress.pop(pid, None)
            self.deputies.hurry(pid, False)

    async def _move_locked(self, pid: int, target: str, reason: str, slowdown: float | None, manner: Manner) -> MoveReport:
        entry = self._registry.get(pid)
        if entry is None:
            raise MoveRefused(pid, ENDED if process.read_stat(pid) is None else "farhome has let go of it")
        if target == self._config().name:
            target = HOME
        if entry.where == target:
            return MoveReport(pid, target, 0.0, 0.0, 0, "none")
        if entry.state == "starting" and manner.begins is None:
            raise MoveRefused(pid, "it is only just being started")
        if manner.engine == "criu" and target == HOME:
            raise MoveRefused(pid, "processes come home by pouring alone")
        if entry.home_only and target != HOME:
            raise MoveRefused(pid, "it was started to stay at home (mosrun -h)")
        if target != HOME and (why := entry.distrusts(target)) is not None:
            raise MoveRefused(pid, why)
        begun, runnable = time.time(), entry.runnable()
        deputy = self.deputies.get(pid)
        try:
            if target == HOME:
                report = await self._bring_home(entry, reason, manner)
            else:
                report = await self._send(entry, target, runnable, slowdown, manner)
        except (PeerError, ProgramError, OSError, MoveRefused) as error:
            sentence = error.reason if isinstance(error, MoveRefused) else sentence_of(error)
            if deputy is not None and isinstance(error, ProgramError):
                await self.deputies.last_word(entry, deputy)
            left = self._registry.get(pid)
            if left is None and isinstance(error, ProgramError) and await self._has_ended_at_home(pid, deputy):
                sentence = ENDED
            if left is not None and left.where == HOME != entry.where:
                # It came home for a call before the deputy heard of this move, which is still wanted, from there.
                self._registry.update(pid, state="home")
                return await self._move_locked(pid, target, reason, slowdown, manner)
            self._failed(pid, target, sentence, isinstance(error, NoPlace) and error.passes)
            if left is not None and left.where != HOME and self.deputies.get(pid) is None:
                self.deputies.mourn(left, deputy)
            raise MoveFailed(pid, sentence, left.where if left is not None else HOME, isinstance(error, NoPlace)) from None
        self._arrived(entry, report, begun, reason, manner.why)
        self._moved(pid, entry.where, report.where, runnable)
        deputy = self.deputies.get(pid)
        if target == HOME and deputy is not None and not report.follows:
            await deputy.wait_gone(EXIT_TIMEOUT)
        return report

    async def _has_ended_at_home(self, pid: int, deputy: Program | None) -> bool:
        """Whether a process that has ended had come home before its deputy went, as is in order."""
        last = self._registry.ended.get(pid)
        if last is not None and last.where == HOME:
            return True
        return deputy is not None and deputy.gone.is_set() and await deputy.status(ORPHAN_TIME) == 0

    async def _send(self, entry: HomeProcess, target: str, runnable: float, slowdown: float | None, manner: Manner) -> MoveReport:
        """Out or hop. Errors: PeerError, ProgramError, OSError, MoveRefused."""
        begun, stat = time.monotonic(), process.read_stat(entry.pid)
        if stat is None or stat.state in "ZX":
            raise MoveRefused(entry.pid, ENDED)
        changes: dict[str, Any] = {"state": "hopping", "towards": target}
        if entry.where == HOME:
            changes |= {"state": "leaving", "resident": stat.resident}
        if (unfit := await self._why_unfit(target)) is not None:
            raise MoveRefused(entry.pid, unfit)
        entry = self._registry.update(entry.pid, **changes) or entry
        memory = max(entry.memory, entry.resident)
        # The target makes a place while the deputy starts here: both take as long as a Python interpreter does.
        place, deputy = await asyncio.gather(
            self._reserve(entry, target, memory, runnable, slowdown), self.deputies.start(entry), return_exceptions=True
        )
        if isinstance(place, BaseException):
            if isinstance(deputy, Program) and entry.where == HOME:
                await abort(deputy)
            raise place
        if isinstance(deputy, BaseException):
            await self._cancel(entry.pid, target, place)
            raise deputy
        try:
            host, port = place["address"]
            address: list[object] = [str(host), int(port)]
            fields: dict[str, object] = {"to": target, "address": address, "secret": bytes(place["secret"]), "key": str(place["key"])}
            fields |= manner.fields()
            if manner.asker is not None:
                fields["asker"] = manner.asker.to_word()
            if manner.begins is not None:
                fields |= {"begins": os.path.basename(entry.command.split(" ")[0])[:NAME_MOST] or "?", "says": manner.says}
            steps.reached("asked")
            reserved = (time.monotonic() - begun) * 1e3
            answer = await deputy.request("move", MOVE_TIMEOUT + memory / SLOWEST, **fields)
            return report_of(entry.pid, answer, reserved)
        except (KeyError, TypeError, ValueError):
            raise MoveRefused(entry.pid, f"{target} did not answer as it should") from None
        except BaseException as error:
            if isinstance(error, ProgramError) and not deputy.gone.is_set():
                await abort(deputy)
            # A deputy that was killed, and may have been so just after the commit: then the guest has no home any more.
            await self._cancel(entry.pid, target, place, ended=deputy.gone.is_set())
            raise

    async def _why_unfit(self, target: str) -> str | None:
        """Errors: PeerError."""
        try:
            async with asyncio.timeout(RESERVE_TIMEOUT):
                return await self._peers.why_unfit(target)
        except TimeoutError:
            raise PeerError(f"{target} did not answer within {RESERVE_TIMEOUT:g} s") from None

    async def _reserve(self, entry: HomeProcess, target: str, memory: int, runnable: float, slowdown: float | None) -> dict[str, Any]:
        """A place on the target. Errors: PeerError, MoveRefused with the target's reason."""
        request = {
            "pid": entry.pid, "home": self._config().name, "user": process.user_name(entry.uid), "uid": entry.uid,
            "memory": memory, "from": entry.where, "command": entry.command,
            "runnable": runnable, "groups": process.group_names(entry.uid)[:MOST_GROUPS],
        }  # fmt: skip
        if slowdown is not None:
            request["slowdown"] = slowdown
        try:
            place = await self._peers.call(target, "reserve", request, RESERVE_TIMEOUT)
        except PeerRefused as refusal:
            raise NoPlace(entry.pid, f"{target} refuses it: {refusal}", refusal.kind == BUSY) from None
        if not isinstance(place, dict):
            raise MoveRefused(entry.pid, f"{target} did not answer as it should")
        return place

    async def _bring_home(self, entry: HomeProcess, reason: str, manner: Manner) -> MoveReport:
        deputy = self.deputies.get(entry.pid)
        if deputy is None or deputy.gone.is_set():
            raise MoveRefused(entry.pid, "it has no deputy")
        self._registry.update(entry.pid, state="coming")
        steps.reached("asked")
        answer = await deputy.request("home", MOVE_TIMEOUT + entry.resident / SLOWEST, reason=reason, **manner.fields())
        return report_of(entry.pid, answer)

    async def _cancel(self, pid: int, target: str, place: Any, ended: bool = False) -> None:
        """Calls a place off, and if the process has `ended`, a guest that is there already."""
        key = place.get("key") if isinstance(place, dict) else None
        try:
            await self._peers.call(target, "cancel", {"key": key, "ended": ended}, 3.0)
        except PeerError as error:
            log.info("the place on %s ends by itself: %s", target, error)
            if ended and not isinstance(error, PeerRefused):
                self._tasks.spawn(self._end_guest(pid, target))

    async def _end_guest(self, pid: int, node: str) -> None:
        """Ends the guest of a process that has ended while it was on that node. Its deputy has done so, as a rule; if that was killed, the
        guest would wait for its home until link_timeout."""
        await asyncio.sleep(END_PATIENCE)
        await self._recall(pid, node, unless=lambda: self._registry.get(pid) is not None)  # another process has its pid

    async def _forget_target(self, pid: int, node: str) -> None:
        """Ends what may be ready on a node for a process that was about to go there when the daemon of that time died, and has not: that
        node does not know whether it is to run."""

        def has_moved() -> bool:
            entry = self._registry.get(pid)
            return entry is None or entry.towards != node

        await self._recall(pid, node, unless=has_moved, lock=self.lock(pid))
        if not has_moved():
            self._registry.update(pid, towards="")

    async def _recall(
        self, pid: int, node: str, unless: Callable[[], bool] = lambda: False, lock: AbstractAsyncContextManager[object] | None = None
    ) -> None:
        """Ends whatever runs on a node for a process that has no deputy any more. A deputy that was killed as it informed a target that a
        process is the target's may have a guest there which has not done anything yet, for it had no home. If the node does not answer,
        it does so itself after link_timeout. lock: held at each attempt."""
        end, pause = time.monotonic() + longer(self._config().link_timeout) + RECALL_MARGIN, RECALL_POLL
        while time.monotonic() < end:
            try:
                async with lock or nullcontext():
                    if not unless():
                        await self._peers.call(node, "cancel", {"key": f"{self._config().name}-{pid}", "ended": True}, RECALL_TIMEOUT)
                return
            except PeerRefused:
                return  # it has gone meanwhile
            except PeerError as error:
                log.info("process %d may run on %s: %s", pid, node, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, RECALL_LONGEST_POLL)

    def _arrived(self, before: HomeProcess, report: MoveReport, begun: float, reason: str, why: str) -> None:
        pid, entry = before.pid, self._registry.get(before.pid)
        state = {"state": "home" if report.where == HOME else "away"} if entry is not None else {}
        if entry is None and report.where != HOME:  # a short program has ended there before we hear that it has come
            self._tasks.spawn(self._end_guest(pid, report.where))
        entry = entry or self._registry.ended.get(pid)
        if entry is None or entry.starttime != before.starttime:
            return
        now = time.time()
        self._registry.update(
            pid, **state, where=report.where, towards="", cut=0.0, since=now, moves=entry.moves + 1,
            frozen_ms=report.frozen_ms, total_ms=report.total_ms, why=why, not_before=0.0, recent=(*entry.recent, now)[-KEPT_MOVES:],
            cpu_away=before.cpu_away + self._registry.cpu_of_stay(before, now),
            history=entry.history.moved(now, before.where, report.where, reason),
        )  # fmt: skip
        self.cost = self.cost.learn(report.frozen_ms / 1e3, now - begun, report.size)
        self.counts.made(before.where, report.where, report.frozen_ms, report.size)
        log.info(
            "process %d: %s -> %s, frozen %.1f ms, total %.1f ms, %d bytes (%s)",
            pid, before.where, report.where, report.frozen_ms, report.total_ms, report.size, report.engine,
        )  # fmt: skip

    def _failed(self, pid: int, target: str, sentence: str, passes: bool) -> None:
        entry = self._registry.get(pid)
        state = {"state": "home" if entry.where == HOME else "away"} if entry is not None else {}
        entry = entry or self._registry.ended.get(pid)
        if entry is None:
            return
        log.info("process %d does not move to %s: %s", pid, target, sentence)
        self.counts.not_made()
        now = time.time()
        self._registry.update(
            pid, **state, towards="", why=sentence,
            not_before=now + retry_after(passes, self._rng),
            history=entry.history.not_moved(now, entry.where, target, sentence),
        )  # fmt: skip

    def begins(self, pid: int) -> None:
        """Its target is ready for a process that is to begin there."""
        self._begins.pop(pid, lambda: None)()

    def lost(self) -> None:
        """One more process is lost."""
        self.counts.lost += 1

    def progress_of(self, pid: int) -> Progress | None:
        """Return how far the move of a process has come; None: none is under way, or nothing goes ahead."""
        return self._progress.get(pid) if self.is_moving(pid) else None

    def progressed(self, pid: int, message: Message) -> None:
        """How far a move has come, as the deputy reports it; it may report late."""
        if not self.is_moving(pid):
            return
        sent, total, number, left = (int(message.get(key, 0)) for key in ("sent", "total", "round", "left"))
        now, before = time.time(), self._progress.get(pid)
        rate = (sent - before.sent) / max(now - before.at, 0.001) if before is not None else 0.0
        self._progress[pid] = Progress(sent, total, number, left, max(0.0, rate), now)

    def went(self, entry: HomeProcess, where: str, reason: str, frozen: object) -> None:
        """A process went home for a call, or was sent there; or a daemon before this one had asked for a move. entry: what it was before;
        frozen: milliseconds."""
        now = time.time()
        self._registry.update(
            entry.pid, where=where, state="home" if where == HOME else "away", cut=0.0, since=now, why=reason if where == HOME else "",
            moves=entry.moves + 1, recent=(*entry.recent, now)[-KEPT_MOVES:],
            cpu_away=entry.cpu_away + self._registry.cpu_of_stay(entry, now),
            frozen_ms=float(frozen) if isinstance(frozen, (int, float)) else 0.0,
            history=entry.history.moved(now, entry.where, where, reason if where == HOME else "asked"),
        )  # fmt: skip
        self.counts.made(entry.where, where, float(frozen) if isinstance(frozen, (int, float)) else 0.0, 0)
        log.info("process %d: %s -> %s (%s)", entry.pid, entry.where, where, reason)
        self._moved(entry.pid, entry.where, where, 1.0)

    def ended(self, entry: HomeProcess) -> None:
        """A home process has ended: what is kept for it can go, and where it was, or was about to be, its guest ends."""
        pid = entry.pid
        lock = self._locks.get(pid)
        for node in {entry.where, entry.towards} - {HOME, ""}:
            self._tasks.spawn(self._end_guest(pid, node))
        if lock is not None and not lock.locked():
            del self._locks[pid]

    async def restore(self) -> None:
        """Finds the deputies of a daemon before this one, and ends what was made ready elsewhere for processes that have not gone there."""
        await self.deputies.restore()
        for entry in self._registry:
            if entry.towards:
                self._tasks.spawn(self._forget_target(entry.pid, entry.towards))

    def close(self) -> None:
        """Lets go of all deputies, which go on."""
        self.deputies.close()
        self._tasks.cancel()
