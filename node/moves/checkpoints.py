"""Checkpoints of this node's processes, and restarts from them: programs of their own do it (checkpoint/), one for each.

A process that is away comes home for its checkpoint, and goes back to where it was.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernel_helpers.common.errors import FarhomeError, MoveRefused
from node.common import process
from node.common.paths import Paths
from node.moves.home_process import HOME, HomeProcess
from node.moves.move import Manner
from node.moves.moves import Mover
from node.moves.registry import Registry
from node.programs import programs

PERIOD = 0.5
"""Seconds between two checks for processes whose checkpoint is due."""
TIMEOUT = 600.0
SLOWEST = 5e6
"""Bytes of memory a second that a checkpoint is allowed to be as slow as, beyond TIMEOUT."""
AT_ONCE = 2
"""Checkpoints and restarts, of each; the others wait for their turn."""
NOTES_MOST = 30_000
"""Characters of what a restart has to say."""
REASON = "checkpoint"
"""Of the moves that a checkpoint takes."""
WHOLE = Manner(memory="precopy")
"""How a process comes home for it: nothing of its memory is to follow."""

log = logging.getLogger("mosd.checkpoints")


class CheckpointError(FarhomeError):
    """What a checkpoint or a restart was refused with, or failed with."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.exit_code = code


def _plain(value: Any) -> Any:
    """A text that fits into a line of a log, whatever a user has called his files; what is no text as it is."""
    return "".join(c if c.isprintable() else "?" for c in value) if isinstance(value, str) else value


class Checkpoints:
    """See the module."""

    def __init__(self, paths: Paths, registry: Registry, mover: Mover, spawn: Callable[[Any], object]) -> None:
        self._paths = paths
        self._registry = registry
        self._mover = mover
        self._spawn = spawn
        self._under_way: set[int] = set()
        self._turns = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE)

    async def take(self, entry: HomeProcess, asker: int, directory: Path, back: bool = True, why: str = "") -> dict[str, Any]:
        """Return what is said of it: frozen_ms (moves included), bytes, where, why (why it is not back where it was). asker: a user.
        back: whether it is to go where it was; why: what is shown of it when it is home. Errors: FarhomeError: the checkpoint that was in
        `directory` is there still."""
        pid, begun = entry.pid, time.time()
        async with self._mover.holding(pid), self._turns[0]:
            entry = self._registry.get(pid) or entry
            if entry.state == "starting":
                raise MoveRefused(pid, "it is only just being started")
            where, why_not_back, frozen_ms = entry.where, "", 0.0
            if where != HOME:
                frozen_ms = (await self._mover.move_held(pid, HOME, REASON, manner=replace(WHOLE, why=why))).frozen_ms
            try:
                await self._mover.deputies.await_whole(pid)
                answer = await self._checkpoint(entry, asker, directory)
            except FarhomeError as error:
                self._registry.update(pid, checkpoint_why=str(error))
                log.info("%s", error)
                raise
            finally:
                if where != HOME and back:
                    back_ms, why_not_back = await self._back(pid, where)
                    frozen_ms += back_ms
        answer["frozen_ms"] = round(answer["frozen_ms"] + frozen_ms, 2)
        self._registry.update(
            pid, checkpoint_at=begun, checkpoint_why="", checkpoint_ms=float(answer["frozen_ms"]), checkpoint_directory=str(directory)
        )
        where_to = _plain(str(directory))
        log.info("process %d is checkpointed to %s, frozen %.1f ms, %d bytes", pid, where_to, answer["frozen_ms"], answer["bytes"])
        current = self._registry.get(pid)
        return {**answer, "pid": pid, "where": current.where if current is not None else HOME, "why": why_not_back}

    async def take_home(self, entry: HomeProcess, reason: str) -> bool:
        """Return the node that a process is on cannot keep it: takes it home for good, with a checkpoint, in the directory of `mosrun -A`
        or in one that is the user's alone. False if no checkpoint could be made; the process is at home all the same, if it could be
        had."""
        directory = Path(entry.checkpoint_directory) if entry.checkpoint_directory else self._directory_of(entry)
        try:
            await self.take(entry, entry.uid, directory, back=False, why=reason)
        except FarhomeError:
            return False  # logged, and kept in the registry
        return True

    def _directory_of(self, entry: HomeProcess) -> Path:
        """Errors: OSError."""
        of_user = self._paths.state / "checkpoints" / str(entry.uid)
        of_user.mkdir(mode=0o700, parents=True, exist_ok=True)
        of_user.parent.chmod(0o755)
        os.chown(of_user, entry.uid, -1)
        return of_user / str(entry.pid)

    async def _back(self, pid: int, where: str) -> tuple[float, str]:
        """To where it was; for how many milliseconds it stood still, and why it is not there, or nothing."""
        try:
            return (await self._mover.move_held(pid, where, REASON)).frozen_ms, ""
        except MoveRefused as error:
            return 0.0, error.reason

    async def _checkpoint(self, entry: HomeProcess, asker: int, directory: Path) -> dict[str, Any]:
        images = self._paths.run / "images" / f"checkpoint-{entry.pid}"
        words = ["--pid", str(entry.pid), "--asker", str(asker), "--directory", str(directory), "--images", str(images)]
        words += ["--journal", str(self._mover.deputies.mender.journal(entry.pid))]
        stat = process.read_stat(entry.pid)
        try:
            return await self._run("checkpoint.take", words, entry.pid, TIMEOUT + (stat.resident if stat is not None else 0) / SLOWEST)
        finally:
            self._mover.deputies.mender.start(entry.pid)

    async def restart(self, parent: int, started: int, uid: int, directory: Path) -> dict[str, Any]:
        """Return what is said of it: pid, command, notes. The parent waits for our answer. Errors: FarhomeError: there is no such
        process."""
        words = ["--parent", str(parent), "--started", str(started), "--uid", str(uid), "--directory", str(directory)]
        async with self._turns[1]:
            answer = await self._run("checkpoint.restart", words, parent, TIMEOUT)
        log.info("process %d is restarted from %s: %s", answer["pid"], _plain(str(directory)), answer["command"])
        return answer

    async def _run(self, module: str, words: list[str], pid: int, timeout: float) -> dict[str, Any]:
        """The answer of a program. Errors: CheckpointError."""
        with open(self._paths.logs / f"{module.partition('.')[2]}-{pid}.log", "ab") as output:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-s", "-m", module, *words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output,
                start_new_session=True, cwd="/", env=programs.environment(), limit=1 << 20,
            )  # fmt: skip
        try:
            async with asyncio.timeout(timeout):
                said, _ = await child.communicate()
        except TimeoutError:
            raise CheckpointError(f"it took longer than {timeout:.0f} s", 75) from None
        finally:
            with suppress(ProcessLookupError):
                if child.returncode is None:
                    child.kill()
        try:
            answer = json.loads(said)
            if answer["ok"] is not True:
                raise CheckpointError(_plain(answer["error"]), int(answer["code"]))
            return {key: [_plain(line) for line in value] if isinstance(value, list) else _plain(value) for key, value in answer.items()}
        except (ValueError, KeyError, TypeError):
            raise CheckpointError(f"the program for it ended with status {child.returncode}", 70) from None

    # -- by the clock ---------------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Begins the checkpoints that are due: the first so long after the process was started, or found by this daemon."""
        now = time.time()
        for entry in self._registry:
            if not entry.checkpoint_every or entry.pid in self._under_way or entry.state not in ("home", "away"):
                continue
            if now - max(entry.checkpoint_at, entry.checkpoint_tried, entry.checkpoint_since) >= entry.checkpoint_every * 60:
                self._under_way.add(entry.pid)
                self._spawn(self._quietly(entry))

    async def _quietly(self, entry: HomeProcess) -> None:
        self._registry.update(entry.pid, checkpoint_tried=time.time())
        try:
            await self.take(entry, entry.uid, Path(entry.checkpoint_directory))
        except FarhomeError as error:
            self._registry.update(entry.pid, checkpoint_why=str(error))
        finally:
            self._under_way.discard(entry.pid)
