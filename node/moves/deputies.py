"""The deputies of this node's home processes: started, heard, found again by another daemon, and what becomes of a process whose deputy has
gone without a word."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from kernel_helpers.common.errors import MoveRefused
from node.common import process
from node.common.config import Config
from node.common.paths import Paths
from node.common.tasks import Tasks
from node.moves.home_process import HOME, KEPT_MOVES, HomeProcess
from node.moves.mending import Mender
from node.moves.registry import Registry
from node.programs.priority import put_first
from node.programs.programs import Program, ProgramError, Programs
from wire.frames import Message

MOVE_TIMEOUT = 120.0
SLOWEST = 1e6
"""Bytes of memory a second that a move is allowed to be as slow as, beyond MOVE_TIMEOUT: what is written while it goes ahead goes again."""
EXIT_TIMEOUT = 5.0
RESUME_POLL = 0.2
ORPHAN_TIME = 1.0
"""Seconds after which a process is looked at whose deputy has gone without a word."""
KEPT_STATUSES = 64
UNSEEN = "while no mosd ran"
"""The reason of a move that no daemon has heard of."""

ENDED = "it has ended"
"""The reason why a process does not move that is not there any more."""

log = logging.getLogger("mosd.moves")


class Moves(Protocol):
    """What deputies have to know of moves, and report about them (moves.py)."""

    def is_moving(self, pid: int) -> bool:
        """Return whether a move of that process is under way."""

    def lock(self, pid: int) -> asyncio.Lock:
        """Return the lock that the mover of the process holds."""

    def progressed(self, pid: int, message: Message) -> None:
        """How far a move has come, as the deputy reports it."""

    def lost(self) -> None:
        """One more process is lost."""

    def begins(self, pid: int) -> None:
        """Its target is ready for a process that is to begin there."""

    def went(self, entry: HomeProcess, where: str, reason: str, frozen: object) -> None:
        """A process went home for a call, or was sent there; or a daemon before this one had asked for a move. entry: what it was before;
        frozen: milliseconds."""


class Deputies:
    """One for each process that is away, or about to leave."""

    def __init__(
        self, paths: Paths, config: Callable[[], Config], registry: Registry, programs: Programs, moves: Moves,
        recall: Callable[[int, str], Awaitable[None]],
    ) -> None:  # fmt: skip
        """recall: as Mender has it."""
        self._paths = paths
        self._config = config
        self._registry = registry
        self._programs = programs
        self._moves = moves
        self._deputies: dict[int, Program] = {}
        self._tasks = Tasks()
        self._ended_with: OrderedDict[int, int | None] = OrderedDict()
        """Status of programs that have ended, by process id: a child's deputy is its parent's, which alone is ours to wait for."""
        self._reported: set[int] = set()
        """Processes whose end their deputy has reported; a deputy that goes without a word has died."""
        self.ended_away: Callable[[int, float, int], None] = lambda pid, cpu, calls: None
        """Is called with what a process that has ended away had used there: seconds of cpu, and calls that home has answered."""
        self.mender = Mender(paths.deputies, recall)

    def get(self, pid: int) -> Program | None:
        """That of a process, if it has one."""
        return self._deputies.get(pid)

    def pids(self) -> dict[int, int]:
        """Process id of each deputy, and of the process that it is for."""
        return {deputy.pid: pid for pid, deputy in self._deputies.items()}

    async def status(self, pid: int, timeout: float) -> Message:
        """Return what the deputy of a process says of it. Errors: ProgramError."""
        deputy = self._deputies.get(pid)
        if deputy is None:
            raise ProgramError(f"process {pid} has no deputy")
        return await deputy.request("status", timeout)

    def hurry(self, pid: int, first: bool = True) -> None:
        """Its deputy, if it has one, has a processor before others, or not any more."""
        if (deputy := self._deputies.get(pid)) is not None and not deputy.gone.is_set():
            put_first(deputy.pid, first)

    async def await_whole(self, pid: int) -> None:
        """Returns when nothing follows a process any more that has come home, and its deputy, if others of its tree do not keep that busy,
        has gone. Errors: MoveRefused."""
        deputy, entry = self._deputies.get(pid), self._registry.get(pid)
        size = entry.resident if entry is not None else 0
        if deputy is not None and not await deputy.wait_gone(EXIT_TIMEOUT + size / SLOWEST):
            with suppress(ProgramError):  # it may just be going
                if (await deputy.request("status", EXIT_TIMEOUT)).get("writes") is True:
                    raise MoveRefused(pid, "it is in the middle of a write since its move before, and has to end that at home first")
            raise MoveRefused(pid, "the deputy of its move before is still at work")

    async def start(self, entry: HomeProcess) -> Program:
        """Return the deputy of a process, started if it has none. Errors: ProgramError, OSError, MoveRefused."""
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
            "--images", str(paths.images), f"--trace={entry.trace}", "--owner", entry.registered_by().to_word(),
            *(["--files-port", str(config.mfs.port), "--deposits", str(paths.run / "mfs/direct")] if config.mfs.is_direct else []),
            *([] if config.carry else ["--no-carry"]), *([] if config.remember else ["--no-remember"]),
            *([] if config.run_ahead else ["--no-run-ahead"]),
            *([] if config.encryption else ["--plain"]),
        ]  # fmt: skip
        try:
            deputy = await Program.start(
                argv, path, paths.logs / f"deputy-{pid}.log", f"deputy of {pid}",
                lambda message: self._on_event(pid, message), lambda _: self._gone(pid),
            )  # fmt: skip
        except ProgramError:
            if process.is_alive(pid, entry.starttime):
                raise
            raise MoveRefused(pid, ENDED) from None
        self._deputies[pid] = deputy
        self.hurry(pid)
        return deputy

    def _on_event(self, pid: int, message: Message) -> None:
        """What a deputy says unasked."""
        event, entry = message.get("event"), self._registry.get(pid)
        if event in ("lost", "exit"):
            self._reported.add(pid)
        if event == "exit" and pid in self._deputies:
            self._deputies[pid].farewell = ENDED
            if float(message.get("cpu", 0.0)) > 0:
                self.ended_away(pid, float(message["cpu"]), int(message.get("calls", 0)))
        if event == "lost":
            # The process may have ended already: its end and this message come by different ways.
            sentence = str(message.get("sentence") or f"{message.get('node')}: {message.get('reason')}")
            if self._registry.lose(pid, sentence):
                self._moves.lost()
            log.critical("process %d is lost: %s", pid, sentence)
        elif event == "born":
            parent = entry or self._registry.ended.get(pid)
            if parent is not None:
                self._tasks.spawn(self._take_child(parent, int(message["pid"]), str(message["where"])))
        elif entry is None:
            return
        elif event == "progress":
            self._moves.progressed(pid, message)
        elif event == "cut":
            self._cut(entry, float(message.get("cut", 0.0)))
        elif event == "begins":
            self._moves.begins(pid)
        elif event == "state":
            where, reason = str(message.get("where")), str(message.get("reason"))
            # A move that we asked for has been answered before it is reported: where it is then is nothing new.
            if where != entry.where:
                self._moves.went(entry, where, reason, message.get("frozen_ms", 0.0))
        elif event == "executed":
            self._executed(entry, str(message.get("where")))
        elif event == "exit":
            log.info("process %d ended on %s: %s", pid, entry.where, message.get("status"))

    def _cut(self, entry: HomeProcess, seconds: float) -> None:
        """The node of a process is not heard since so long, or (0) is again."""
        if seconds > 0:
            since = time.time() - seconds
            sentence = f"{entry.where} is not heard since {time.strftime('%H:%M:%S', time.localtime(since))}; it waits for {entry.where}"
            self._registry.update(entry.pid, cut=since, why=sentence)
            log.warning("process %d: %s", entry.pid, sentence)
        elif entry.cut:
            self._registry.update(entry.pid, cut=0.0, why="")
            log.info("process %d: %s is heard again", entry.pid, entry.where)

    async def _take_child(self, parent: HomeProcess, pid: int, where: str) -> None:
        """A child of a process that is away was born there; its deputy is a part of its parent's."""
        if pid in self._deputies:  # it has come home, and left again with another
            return
        path = self._paths.deputies / f"{pid}.sock"
        try:
            deputy = await self._attach(path, pid)
        except ProgramError:  # it was short, or has come home before we heard of it
            if process.is_traced(pid):
                await asyncio.sleep(ORPHAN_TIME)
            if self._registry.get(pid) is None:
                self._registry.take_child(parent, pid, born=where)
            return
        entry = self._registry.take_child(parent, pid, state="away", where=where, born=where, command=parent.command)
        if entry is None:
            deputy.detach()
            return
        self._deputies[pid] = deputy

    async def _attach(self, path: Path, pid: int) -> Program:
        """Errors: ProgramError."""
        return await Program.attach(path, f"deputy of {pid}", lambda message: self._on_event(pid, message), lambda _: self._gone(pid))

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
        if deputy is not None:
            self._tasks.spawn(self._note_end(deputy))
        if pid in self._reported:
            self._reported.discard(pid)
            return
        # The kernel ends a stub with its tracer, and either end may be noticed first.
        entry = self._registry.get(pid) or self._registry.ended.get(pid)
        if entry is not None and (entry.where != HOME or self._moves.is_moving(pid)):
            self.mourn(entry, deputy)

    async def last_word(self, entry: HomeProcess, deputy: Program) -> None:
        """Learns where a process is whose deputy has left without our having heard that it came home: its word is lost when the connection
        breaks because we write to it at that moment, or when it is killed. A deputy that goes on for other processes, or that a daemon
        before us has started, has no status that could show it; but the kernel ends a stub with its tracer: who lives untraced is home."""
        status = await deputy.status(ORPHAN_TIME)
        if status:
            await asyncio.sleep(ORPHAN_TIME)  # the kernel has begun to end it, if it is a stub
        known = self._registry.get(entry.pid)
        if known is None or known.where == HOME or not known.is_as_it_was(entry):
            return
        if (status == 0 or not process.is_traced(entry.pid)) and process.is_alive(entry.pid, entry.starttime):
            self._found(entry.pid, HOME)

    def mourn(self, entry: HomeProcess, deputy: Program | None) -> None:
        """Sees to it that a process whose deputy has gone without a word is no orphan."""
        self._tasks.spawn(self._end_orphan(entry, deputy))

    async def _end_orphan(self, entry: HomeProcess, deputy: Program | None) -> None:
        """Ends a stub whose deputy died, if the kernel has not: nothing can bring its memory back, and it must not wait for ever. A
        process that was on its way out may have been a stub already, and then the kernel has ended it."""
        if await self.mender.wait(entry.pid) and entry.where == HOME:
            return  # it went on there, and its end is its own affair
        await asyncio.sleep(ORPHAN_TIME)
        if deputy is not None:
            await self.last_word(entry, deputy)
        known = self._registry.get(entry.pid) or self._registry.ended.get(entry.pid)
        if known is None or known.state == "lost" or not known.is_as_it_was(entry):
            return
        if entry.pid in self._deputies or not await self._died_with_it(known, entry, deputy):
            log.info("process %d is not lost: it has come home, or has ended", entry.pid)
            return
        sentence = f"its deputy died while it {'left' if known.where == HOME else f'was on {known.where}'}"
        if self._registry.lose(entry.pid, sentence):
            self._moves.lost()
        log.critical("process %d is lost: %s; ended %s", entry.pid, sentence, time.strftime("%Y-%m-%d %H:%M:%S"))
        if process.is_alive(entry.pid, entry.starttime):
            try:
                os.kill(entry.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    async def _note_end(self, deputy: Program) -> None:
        """For the processes of its tree that have no deputy of their own."""
        status = await deputy.status(ORPHAN_TIME)
        if status is not None:
            self._ended_with[deputy.pid] = status
            while len(self._ended_with) > KEPT_STATUSES:
                self._ended_with.popitem(last=False)

    async def _died_with_it(self, known: HomeProcess, entry: HomeProcess, deputy: Program | None) -> bool:
        """Whether a process has ended, or must, since its deputy has died at work. known: what is known of it by now."""
        if process.is_alive(entry.pid, entry.starttime):
            return known.where != HOME
        status = None if deputy is None else await deputy.status(0.0)
        if status is None and deputy is not None:
            stat = process.read_stat(deputy.pid)
            if stat is not None and stat.state not in "ZX":
                return False  # it goes on, for others of its tree
            status = self._ended_with.get(deputy.pid)
        return status not in (0, None) if known.where == HOME else status != 0

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
        lock = self._moves.lock(pid)
        await lock.acquire()
        self._tasks.spawn(self._resume(pid, deputy, lock))

    async def _resume(self, pid: int, deputy: Program, lock: asyncio.Lock) -> None:
        """Brings the registry up to what a deputy says that worked while there was no daemon, or another."""
        try:
            where, cut = await self._settled_place(pid, deputy)
            if where is not None:
                self._found(pid, where)
            if (entry := self._registry.get(pid)) is not None:
                self._cut(entry, cut)
        finally:
            lock.release()

    async def _settled_place(self, pid: int, deputy: Program) -> tuple[str | None, float]:
        """Where a deputy's process is when no move of it is under way any more, None if that cannot be known; and since how many seconds
        that node is not heard."""
        try:
            async with asyncio.timeout(2 * MOVE_TIMEOUT):
                while (status := await deputy.request("status", 2 * MOVE_TIMEOUT)).get("moving"):
                    await asyncio.sleep(RESUME_POLL)
            where = str(status.get("where", HOME))
            if where == HOME:  # it was only about to begin, and the daemon that it began for is gone
                await abort(deputy)
                await deputy.wait_gone(EXIT_TIMEOUT)
        except (ProgramError, TimeoutError) as error:
            if not deputy.gone.is_set():
                log.error("process %d: its deputy does not say where it is: %s", pid, error)
                return None, 0.0
            return HOME, 0.0  # what a deputy leaves behind alive is at home
        return where, float(status.get("cut", 0.0))

    def _found(self, pid: int, where: str) -> None:
        entry = self._registry.get(pid)
        if entry is None:
            return
        now = time.time()
        changes: dict[str, Any] = {"where": where, "state": "home" if where == HOME else "away"}
        if where == entry.towards:  # else the place there is still to be called off
            changes["towards"] = ""
        if where != entry.where:
            changes |= {
                "since": now, "moves": entry.moves + 1, "recent": (*entry.recent, now)[-KEPT_MOVES:], "why": "",
                "cpu_away": entry.cpu_away + self._registry.cpu_of_stay(entry, now),
                "history": entry.history.moved(now, entry.where, where, UNSEEN),
            }  # fmt: skip
        self._registry.update(pid, **changes)
        log.info("process %d is %s %s", pid, "still" if where == entry.where else "now", "at home" if where == HOME else f"on {where}")

    def close(self) -> None:
        """Lets go of all, which go on."""
        self.mender.close()
        for deputy in self._deputies.values():
            deputy.detach()
        self._tasks.cancel()


async def abort(deputy: Program) -> None:
    """It gives up what it was asked for, and its process."""
    try:
        await deputy.request("abort", 2.0)
    except ProgramError:
        pass
