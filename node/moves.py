"""The home's side of moves: a place on the target, a deputy for the process, and what became of it in the registry.

One move of a process at a time; a second request waits for the first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from balancer.admission import retry_after
from balancer.cost import MoveCost
from kernel_helpers.errors import MoveRefused
from node import process
from node.config import Config
from node.mending import Mender
from node.paths import Paths
from node.peers import BUSY, PeerError, PeerRefused, Peers
from node.priority import put_first
from node.programs import Program, ProgramError, Programs
from node.registry import HOME, KEPT_MOVES, HomeProcess, Registry
from node.tally import Tally
from wire import steps
from wire.frames import Message

QUEUE_TIMEOUT = 60.0
"""Seconds that a move waits for the one before it."""
MOVE_TIMEOUT = 120.0
SLOWEST = 1e6
"""Bytes of memory a second that a move is allowed to be as slow as, beyond MOVE_TIMEOUT: what is written while it goes ahead goes again."""
EXIT_TIMEOUT = 5.0
RESERVE_TIMEOUT = 35.0
RECALL_TIMEOUT = 3.0
RECALL_MARGIN = 5.0
"""Seconds beyond link_timeout in which a node ends a guest that has no home."""
RESUME_POLL = 0.2
NAME_MOST = 15
"""Bytes of a program's name, as the kernel shows it."""
MOST_GROUPS = 64
"""Of a user that a target is told of."""
ORPHAN_TIME = 1.0
"""Seconds after which a process is looked at whose deputy has gone without a word."""
UNSEEN = "while no mosd ran"
"""The reason of a move that no daemon has heard of."""

log = logging.getLogger("mosd.moves")


class MoveFailed(MoveRefused):
    """process {pid} stays where it is: {reason}"""

    def __init__(self, pid: int, reason: str, where: str, no_place: bool = False) -> None:
        super().__init__(pid, reason)
        self.where = where
        self.no_place = no_place
        """its target did not take it: another may"""

    def __str__(self) -> str:
        return f"process {self.pid} stays {'at home' if self.where == HOME else f'on {self.where}'}: {self.reason}"


class NoPlace(MoveRefused):
    """process {pid} stays at home: {reason}"""

    def __init__(self, pid: int, reason: str, passes: bool) -> None:
        super().__init__(pid, reason)
        self.passes = passes
        """the target is only busy just now"""


@dataclass(frozen=True)
class MoveReport:
    """What a move did; times in milliseconds, size in bytes, ahead: of these, those that were sent while the process ran, in ahead_ms."""

    pid: int
    where: str
    frozen_ms: float
    total_ms: float
    size: int
    engine: str
    ahead: int = 0
    ahead_ms: float = 0.0
    follows: int = 0
    """bytes that follow it, at most"""


@dataclass(frozen=True)
class Manner:
    """How a move is made, where that is not as the configuration says: config.ENGINES and config.MEMORY."""

    engine: str = ""
    memory: str = ""
    begins: Callable[[], None] | None = None
    """the process is mosrun, which is to execute its program when this is called, and leaves then: deputy/beginning.py"""

    def fields(self) -> dict[str, str]:
        """Of a request to a deputy."""
        return {name: value for name, value in (("engine", self.engine), ("memory", self.memory)) if value}


@dataclass(frozen=True)
class Progress:
    """How far a move has come whose memory goes ahead of the process: bytes sent, of `total` at the begin; in round `round`, which began
    with `left` bytes, at `at` (seconds since the epoch)."""

    sent: int
    total: int
    round: int
    left: int
    rate: float
    """bytes per second, of late"""
    at: float

    def row(self) -> dict[str, Any]:
        """As mosps --json shows it."""
        return {"sent": self.sent, "total": self.total, "round": self.round, "left": self.left, "rate": self.rate}


class Mover:
    """Moves this node's home processes, and keeps one deputy for each that is away."""

    def __init__(
        self, paths: Paths, config: Callable[[], Config], registry: Registry, peers: Peers, programs: Programs,
        moved: Callable[[int, str, str, float], None],
    ) -> None:  # fmt: skip
        self.progress: dict[int, Progress] = {}
        """of moves that are under way"""
        """moved is told of every move: of which process, from where, to where, and how many runnable threads that are."""
        self._paths = paths
        self._config = config
        self._registry = registry
        self._peers = peers
        self._programs = programs
        self._moved = moved
        self._deputies: dict[int, Program] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.mender = Mender(paths.deputies, self._recall)
        self._begins: dict[int, Callable[[], None]] = {}
        """Processes that begin as soon as their targets are ready."""
        self._told: set[int] = set()
        """Processes of whose end their deputy has told; a deputy that goes without a word has died."""
        self._rng = random.Random()
        self.cost = MoveCost()
        self.tally = Tally()

    def deputies(self) -> dict[int, int]:
        """Process id of each deputy, and of the process that it is for."""
        return {deputy.pid: pid for pid, deputy in self._deputies.items()}

    async def deputy_status(self, pid: int, timeout: float) -> Message:
        """What the deputy of a process says of it. Errors: ProgramError."""
        deputy = self._deputies.get(pid)
        if deputy is None:
            raise ProgramError(f"process {pid} has no deputy")
        return await deputy.request("status", timeout)

    def is_moving(self, pid: int) -> bool:
        """Whether a move of that process is under way."""
        lock = self._locks.get(pid)
        return lock is not None and lock.locked()

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
        lock = self._locks.setdefault(pid, asyncio.Lock())
        try:
            async with asyncio.timeout(QUEUE_TIMEOUT):
                await lock.acquire()
        except TimeoutError:
            raise MoveRefused(pid, "another move of it is under way") from None
        try:
            yield
        finally:
            lock.release()

    async def await_whole(self, pid: int) -> None:
        """Returns when nothing follows a process any more that has come home, and its deputy, if others of its tree do not keep that busy,
        has gone. Errors: MoveRefused."""
        deputy, entry = self._deputies.get(pid), self._registry.get(pid)
        size = entry.resident if entry is not None else 0
        if deputy is not None and not await deputy.wait_gone(EXIT_TIMEOUT + size / SLOWEST):
            raise MoveRefused(pid, "the deputy of its move before is still at work")

    async def move_held(
        self, pid: int, target: str, reason: str = "asked", slowdown: float | None = None, manner: Manner | None = None
    ) -> MoveReport:
        """As move(), for who is holding() it."""
        self._hurry(pid)
        manner = manner or Manner()
        if manner.begins is not None:
            self._begins[pid] = manner.begins
        try:
            return await self._move_locked(pid, target, reason, slowdown, manner)
        finally:
            self._begins.pop(pid, None)
            self.progress.pop(pid, None)
            self._hurry(pid, False)

    def _hurry(self, pid: int, first: bool = True) -> None:
        """Its deputy, if it has one, has a processor before others, or not any more."""
        if (deputy := self._deputies.get(pid)) is not None and not deputy.gone.is_set():
            put_first(deputy.pid, first)

    async def _move_locked(self, pid: int, target: str, reason: str, slowdown: float | None, manner: Manner) -> MoveReport:
        entry = self._registry.get(pid)
        if entry is None:
            raise MoveRefused(pid, "it has ended" if process.read_stat(pid) is None else "farhome has let go of it")
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
        begun, runnable = time.time(), entry.runnable()
        deputy = self._deputies.get(pid)
        try:
            if target == HOME:
                report = await self._bring_home(entry, reason, manner)
            else:
                report = await self._send(entry, target, runnable, slowdown, manner)
        except (PeerError, ProgramError, OSError, MoveRefused) as error:
            sentence = error.reason if isinstance(error, MoveRefused) else str(error)
            if deputy is not None and isinstance(error, ProgramError):
                await self._last_word(entry, deputy)
            left = self._registry.get(pid)
            if left is not None and left.where == HOME != entry.where:
                # It came home for a call before the deputy heard of this move, which is still wanted, from there.
                self._registry.update(pid, state="home")
                return await self._move_locked(pid, target, reason, slowdown, manner)
            self._failed(pid, target, sentence, isinstance(error, NoPlace) and error.passes)
            if left is not None and left.where != HOME and pid not in self._deputies:
                self._mourn(left, deputy)
            raise MoveFailed(pid, sentence, left.where if left is not None else HOME, isinstance(error, NoPlace)) from None
        self._arrived(entry, report, begun, reason)
        self._moved(pid, entry.where, report.where, runnable)
        deputy = self._deputies.get(pid)
        if target == HOME and deputy is not None and not report.follows:
            await deputy.wait_gone(EXIT_TIMEOUT)
        return report

    async def _send(self, entry: HomeProcess, target: str, runnable: float, slowdown: float | None, manner: Manner) -> MoveReport:
        """Out or hop. Errors: PeerError, ProgramError, OSError, MoveRefused."""
        stat = process.read_stat(entry.pid)
        if stat is None or stat.state in "ZX":
            raise MoveRefused(entry.pid, "it has ended")
        changes: dict[str, Any] = {"state": "hopping"}
        if entry.where == HOME:
            changes = {"state": "leaving", "resident": stat.resident}
        if (unfit := await self._why_unfit(target)) is not None:
            raise MoveRefused(entry.pid, unfit)
        entry = self._registry.update(entry.pid, **changes) or entry
        memory = max(entry.memory, entry.resident)
        # The target makes a place while the deputy starts here: both take as long as a Python interpreter does.
        place, deputy = await asyncio.gather(
            self._reserve(entry, target, memory, runnable, slowdown), self._deputy(entry), return_exceptions=True
        )
        if isinstance(place, BaseException):
            if isinstance(deputy, Program) and entry.where == HOME:
                await self._abort(deputy)
            raise place
        if isinstance(deputy, BaseException):
            await self._cancel(target, place)
            raise deputy
        try:
            host, port = place["address"]
            fields = {"to": target, "address": [str(host), int(port)], "secret": bytes(place["secret"]), "key": str(place["key"])}
            fields |= manner.fields()
            if manner.begins is not None:
                fields["begins"] = os.path.basename(entry.command.split(" ")[0])[:NAME_MOST] or "?"
            steps.reached("asked")
            answer = await deputy.request("move", MOVE_TIMEOUT + memory / SLOWEST, **fields)
            return _report(entry.pid, answer)
        except (KeyError, TypeError, ValueError):
            raise MoveRefused(entry.pid, f"{target} did not answer as it should") from None
        except BaseException as error:
            if isinstance(error, ProgramError) and not deputy.gone.is_set():
                await self._abort(deputy)
            # A deputy that was killed, and may have been so just after the commit: then the guest has no home any more.
            await self._cancel(target, place, ended=deputy.gone.is_set())
            raise

    async def _why_unfit(self, target: str) -> str | None:
        """Errors: PeerError."""
        try:
            async with asyncio.timeout(RESERVE_TIMEOUT):
                return await self._peers.why_unfit(target)
        except TimeoutError:
            raise PeerError(f"{target} did not answer within {RESERVE_TIMEOUT:g} s") from None

    async def _reserve(
        self, entry: HomeProcess, target: str, memory: int, runnable: float, slowdown: float | None
    ) -> dict[str, Any]:
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
        deputy = self._deputies.get(entry.pid)
        if deputy is None or deputy.gone.is_set():
            raise MoveRefused(entry.pid, "it has no deputy")
        self._registry.update(entry.pid, state="coming")
        steps.reached("asked")
        answer = await deputy.request("home", MOVE_TIMEOUT + entry.resident / SLOWEST, reason=reason, **manner.fields())
        return _report(entry.pid, answer)

    async def _abort(self, deputy: Program) -> None:
        try:
            await deputy.request("abort", 2.0)
        except ProgramError:
            pass

    async def _cancel(self, target: str, place: Any, ended: bool = False) -> None:
        """Calls a place off, and if the process has `ended`, a guest that is there already."""
        key = place.get("key") if isinstance(place, dict) else None
        try:
            await self._peers.call(target, "cancel", {"key": key, "ended": ended}, 3.0)
        except PeerError as error:
            log.info("the place on %s ends by itself: %s", target, error)

    async def _recall(self, pid: int, node: str) -> None:
        """A deputy was killed as it told a target that a process is the target's: whatever runs there is ended, and has not done anything
        yet, for it had no home. If the node does not answer, it does so itself after link_timeout."""
        end = time.monotonic() + self._config().link_timeout + RECALL_MARGIN
        while time.monotonic() < end:
            try:
                await self._peers.call(node, "cancel", {"key": f"{self._config().name}-{pid}", "ended": True}, RECALL_TIMEOUT)
                return
            except PeerRefused:
                return  # it has gone meanwhile
            except PeerError as error:
                log.info("process %d may run on %s: %s", pid, node, error)
                await asyncio.sleep(RESUME_POLL)

    async def _deputy(self, entry: HomeProcess) -> Program:
        """The deputy of a process, started if it has none. Errors: ProgramError, OSError, MoveRefused."""
        pid, config, paths = entry.pid, self._config(), self._paths
        known = self._deputies.get(pid)
        if known is not None:
            if entry.where != HOME:
                return known
            await self.await_whole(pid)
        await self.mender.wait(pid)
        path = paths.deputies / f"{pid}.sock"
        argv = [
            *self._programs.deputy, "--pid", str(pid), "--socket", str(path), "--node", config.name,
            "--link-timeout", str(config.link_timeout), "--engine", config.engine, "--memory", config.memory,
            "--images", str(paths.images), f"--trace={entry.trace}",
            *(["--files-port", str(config.mfs.port), "--deposits", str(paths.run / "mfs/direct")] if config.mfs.is_direct else []),
        ]  # fmt: skip
        deputy = await Program.start(
            argv, path, paths.logs / f"deputy-{pid}.log", f"deputy of {pid}",
            lambda message: self._on_event(pid, message), lambda: self._gone(pid),
        )  # fmt: skip
        self._deputies[pid] = deputy
        self._hurry(pid)
        return deputy

    def _arrived(self, before: HomeProcess, report: MoveReport, begun: float, reason: str) -> None:
        pid, entry = before.pid, self._registry.get(before.pid)
        if entry is None:
            return
        now = time.time()
        self._registry.update(
            pid, state="home" if report.where == HOME else "away", where=report.where, since=now, moves=entry.moves + 1,
            frozen_ms=report.frozen_ms, total_ms=report.total_ms, why="", not_before=0.0, recent=(*entry.recent, now)[-KEPT_MOVES:],
            cpu_away=before.cpu_away + self._registry.cpu_of_stay(before, now),
            history=entry.history.moved(now, before.where, report.where, reason),
        )  # fmt: skip
        self.cost = self.cost.learn(report.frozen_ms / 1e3, now - begun, report.size)
        self.tally.made(before.where, report.where, report.frozen_ms, report.size)
        log.info(
            "process %d: %s -> %s, frozen %.1f ms, total %.1f ms, %d bytes (%s)",
            pid, before.where, report.where, report.frozen_ms, report.total_ms, report.size, report.engine,
        )  # fmt: skip

    def _failed(self, pid: int, target: str, sentence: str, passes: bool) -> None:
        entry = self._registry.get(pid)
        if entry is None:
            return
        log.info("process %d does not move to %s: %s", pid, target, sentence)
        self.tally.not_made()
        now = time.time()
        self._registry.update(
            pid, state="home" if entry.where == HOME else "away", why=sentence,
            not_before=now + retry_after(passes, self._rng),
            history=entry.history.not_moved(now, entry.where, target, sentence),
        )  # fmt: skip

    def _on_event(self, pid: int, message: Message) -> None:
        """What a deputy says unasked."""
        event, entry = message.get("event"), self._registry.get(pid)
        if event in ("lost", "exit"):
            self._told.add(pid)
        if event == "lost":
            # The process may have ended already: its end and this message come by different ways.
            sentence = str(message.get("sentence") or f"{message.get('node')}: {message.get('reason')}")
            self._registry.update(pid, why=sentence, state="lost")
            log.error("process %d is lost: %s", pid, sentence)
        elif event == "born":
            parent = entry or self._registry.ended.get(pid)
            if parent is not None:
                self._spawn(self._take_child(parent, int(message["pid"]), str(message["where"])))
        elif entry is None:
            return
        elif event == "progress":
            self._progressed(pid, message)
        elif event == "begins":
            self._begins.pop(pid, lambda: None)()
        elif event == "state":
            where, reason = str(message.get("where")), str(message.get("reason"))
            # A move that we asked for has been answered before it is told of: where it is then is nothing new.
            if where != entry.where:
                self._moved_by_itself(entry, where, reason, message.get("frozen_ms", 0.0))
        elif event == "executed":
            self._executed(entry, str(message.get("where")))
        elif event == "exit":
            log.info("process %d ended on %s: %s", pid, entry.where, message.get("status"))

    def _progressed(self, pid: int, message: Message) -> None:
        sent, total, number, left = (int(message.get(key, 0)) for key in ("sent", "total", "round", "left"))
        now, before = time.time(), self.progress.get(pid)
        rate = (sent - before.sent) / max(now - before.at, 0.001) if before is not None else 0.0
        self.progress[pid] = Progress(sent, total, number, left, max(0.0, rate), now)

    async def _take_child(self, parent: HomeProcess, pid: int, where: str) -> None:
        """A child of a process that is away was born there; its deputy is a part of its parent's."""
        if pid in self._deputies:                               # it has come home, and left again with another
            return
        path = self._paths.deputies / f"{pid}.sock"
        try:
            deputy = await self._attach(path, pid)
        except ProgramError:
            return                                              # it was short
        entry = self._registry.take_child(parent, pid, state="away", where=where, command=parent.command)
        if entry is None:
            deputy.detach()
            return
        self._deputies[pid] = deputy

    async def _attach(self, path: Path, pid: int) -> Program:
        """Errors: ProgramError."""
        return await Program.attach(path, f"deputy of {pid}", lambda message: self._on_event(pid, message), lambda: self._gone(pid))

    def _moved_by_itself(self, entry: HomeProcess, where: str, reason: str, frozen: object) -> None:
        """A process went home for a call, or was sent there; or a daemon before this one had asked for a move."""
        now = time.time()
        self._registry.update(
            entry.pid, where=where, state="home" if where == HOME else "away", since=now, why=reason if where == HOME else "",
            moves=entry.moves + 1, recent=(*entry.recent, now)[-KEPT_MOVES:],
            cpu_away=entry.cpu_away + self._registry.cpu_of_stay(entry, now),
            frozen_ms=float(frozen) if isinstance(frozen, (int, float)) else 0.0,
            history=entry.history.moved(now, entry.where, where, reason if where == HOME else "asked"),
        )  # fmt: skip
        self.tally.made(entry.where, where, float(frozen) if isinstance(frozen, (int, float)) else 0.0, 0)
        log.info("process %d: %s -> %s (%s)", entry.pid, entry.where, where, reason)
        self._moved(entry.pid, entry.where, where, 1.0)

    def _executed(self, entry: HomeProcess, where: str) -> None:
        """A process that is away has executed another program, and is where it was."""
        command = process.command_line(entry.pid) or entry.command
        self._registry.update(entry.pid, command=command, history=entry.history.executed(time.time(), where, command))
        log.info("process %d executes %s on %s", entry.pid, command, where)

    def _gone(self, pid: int) -> None:
        """A deputy went away; in order only if its process is home or has ended."""
        deputy = self._deputies.pop(pid, None)
        self._paths.remove_images(str(pid))
        self.mender.start(pid)
        if pid in self._told:
            self._told.discard(pid)
            return
        # The kernel ends a stub with its tracer, and either end may be noticed first.
        entry = self._registry.get(pid) or self._registry.ended.get(pid)
        if entry is not None and (entry.where != HOME or self.is_moving(pid)):
            self._mourn(entry, deputy)

    async def _last_word(self, entry: HomeProcess, deputy: Program) -> None:
        """Learns where a process is whose deputy has left without our having heard that it came home: its word is lost when the connection
        breaks because we write to it at that moment, or when it is killed. A deputy that goes on for other processes, or that a daemon
        before us has started, has no status to tell by; but the kernel ends a stub with its tracer: who lives untraced is home."""
        status = await deputy.status(ORPHAN_TIME)
        if status:
            await asyncio.sleep(ORPHAN_TIME)                        # the kernel has begun to end it, if it is a stub
        known = self._registry.get(entry.pid)
        if known is None or known.where == HOME or not known.is_as_it_was(entry):
            return
        if (status == 0 or not process.is_traced(entry.pid)) and process.is_alive(entry.pid, entry.starttime):
            self._found(entry.pid, HOME)

    def _mourn(self, entry: HomeProcess, deputy: Program | None) -> None:
        self._spawn(self._end_orphan(entry, deputy))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end_orphan(self, entry: HomeProcess, deputy: Program | None) -> None:
        """Ends a stub whose deputy died, if the kernel has not: nothing can bring its memory back, and it must not wait for ever. A
        process that was on its way out may have been a stub already, and then the kernel has ended it."""
        if await self.mender.wait(entry.pid) and entry.where == HOME:
            return                                                  # it went on there, and its end is its own affair
        await asyncio.sleep(ORPHAN_TIME)
        if deputy is not None:
            await self._last_word(entry, deputy)
        known = self._registry.get(entry.pid) or self._registry.ended.get(entry.pid)
        if known is None or known.state == "lost" or not known.is_as_it_was(entry):
            return
        if entry.pid in self._deputies or not await self._died_with_it(known, entry, deputy):
            log.info("process %d is not lost: it has come home, or has ended", entry.pid)
            return
        sentence = f"its deputy died while it {'left' if known.where == HOME else f'was on {known.where}'}"
        self._registry.update(entry.pid, state="lost", why=sentence)
        log.error("process %d is lost: %s; ended %s", entry.pid, sentence, time.strftime("%Y-%m-%d %H:%M:%S"))
        if process.is_alive(entry.pid, entry.starttime):
            try:
                os.kill(entry.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    async def _died_with_it(self, known: HomeProcess, entry: HomeProcess, deputy: Program | None) -> bool:
        """Whether a process has ended, or must, since its deputy has died at work. known: what is known of it by now."""
        if process.is_alive(entry.pid, entry.starttime):
            return known.where != HOME
        status = None if deputy is None else await deputy.status(0.0)
        return status not in (0, None) if known.where == HOME else status != 0

    def ended(self, pid: int) -> None:
        """A home process has ended: what is kept for it can go."""
        lock = self._locks.get(pid)
        if lock is not None and not lock.locked():
            del self._locks[pid]

    async def restore(self) -> None:
        """Finds the deputies that a daemon before this one started. What they say is waited for beside all else: one that is
        in the midst of a move answers when that is over, and until then its process counts as moving."""
        for path in sorted(self._paths.deputies.glob("*.sock")):
            if path.stem.isdigit():
                await self._restore_one(int(path.stem))
        self.mender.start_all(but=set(self._deputies))
        for entry in self._registry:
            if entry.pid not in self._deputies and (entry.where != HOME or entry.state != "home"):
                # A deputy that is not there any more has brought its process home before it left.
                self._registry.update(entry.pid, where=HOME, state="home", since=time.time())

    async def _restore_one(self, pid: int) -> None:
        path = self._paths.deputies / f"{pid}.sock"
        try:
            deputy = await self._attach(path, pid)
        except ProgramError:
            path.unlink(missing_ok=True)
            return
        if self._registry.get(pid) is None:
            stat, uid = process.read_stat(pid), process.real_uid(pid)
            if stat is None or uid is None:
                deputy.detach()
                return
            self._registry.add(HomeProcess(pid, stat.starttime, uid, command=process.command_line(pid), since=time.time()))
        self._deputies[pid] = deputy
        lock = self._locks.setdefault(pid, asyncio.Lock())
        await lock.acquire()
        self._spawn(self._resume(pid, deputy, lock))

    async def _resume(self, pid: int, deputy: Program, lock: asyncio.Lock) -> None:
        """Brings the registry up to what a deputy says that worked while there was no daemon, or another."""
        try:
            where = await self._settled_place(pid, deputy)
            if where is not None:
                self._found(pid, where)
        finally:
            lock.release()

    async def _settled_place(self, pid: int, deputy: Program) -> str | None:
        """Where a deputy's process is when no move of it is under way any more, None if that cannot be known."""
        try:
            async with asyncio.timeout(2 * MOVE_TIMEOUT):
                while (status := await deputy.request("status", 2 * MOVE_TIMEOUT)).get("moving"):
                    await asyncio.sleep(RESUME_POLL)
            where = str(status.get("where", HOME))
            if where == HOME:                      # it was only about to begin, and the daemon that it began for is gone
                await self._abort(deputy)
                await deputy.wait_gone(EXIT_TIMEOUT)
        except (ProgramError, TimeoutError) as error:
            if not deputy.gone.is_set():
                log.error("process %d: its deputy does not say where it is: %s", pid, error)
                return None
            return HOME                            # what a deputy leaves behind alive is at home
        return where

    def _found(self, pid: int, where: str) -> None:
        entry = self._registry.get(pid)
        if entry is None:
            return
        now = time.time()
        changes: dict[str, Any] = {"where": where, "state": "home" if where == HOME else "away"}
        if where != entry.where:
            changes |= {
                "since": now, "moves": entry.moves + 1, "recent": (*entry.recent, now)[-KEPT_MOVES:], "why": "",
                "cpu_away": entry.cpu_away + self._registry.cpu_of_stay(entry, now),
                "history": entry.history.moved(now, entry.where, where, UNSEEN),
            }  # fmt: skip
        self._registry.update(pid, **changes)
        log.info("process %d is %s %s", pid, "still" if where == entry.where else "now", "at home" if where == HOME else f"on {where}")

    def close(self) -> None:
        """Lets go of the deputies, which go on."""
        self.mender.close()
        for deputy in self._deputies.values():
            deputy.detach()
        for task in self._tasks:
            task.cancel()


def _report(pid: int, answer: Message) -> MoveReport:
    """What a deputy answered. Errors: MoveRefused with its sentence, ValueError."""
    if answer.get("ok") is not True:
        sentence = str(answer.get("error", "the deputy refused without a reason"))
        raise MoveRefused(pid, sentence.removeprefix(f"process {pid} stays at home: "))
    return MoveReport(
        pid, str(answer["where"]), float(answer.get("frozen_ms", 0.0)), float(answer.get("total_ms", 0.0)),
        int(answer.get("bytes", 0)), str(answer.get("engine", "")), int(answer.get("ahead", 0)),
        float(answer.get("ahead_ms", 0.0)), int(answer.get("follows", 0)),
    )  # fmt: skip
