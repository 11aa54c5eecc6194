"""Processes whose deputies, or those who took checkpoints of them, were killed while they had them make calls: deputy/stub/mending.py sees
to it that they go on."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from kernel_helpers.process.journal import SUFFIX, Journal, NoJournal, read
from node.programs.programs import environment

TIMEOUT = 30.0
"""Seconds for one process."""

log = logging.getLogger("mosd.moves")


class Mender:
    """deputies: the directory of the journals. recall: sees to it that a process does not run on a node where it may run already."""

    def __init__(self, deputies: Path, recall: Callable[[int, str], Awaitable[None]]) -> None:
        self._deputies = deputies
        self._recall = recall
        self._under_way: dict[int, asyncio.Task[bool]] = {}

    def start(self, pid: int) -> None:
        """Its deputy, or who has taken a checkpoint of it, has gone. If that has left a journal, it is dealt with."""
        path = self.journal(pid)
        if pid in self._under_way:
            return
        with suppress(OSError):
            Journal(path).drop_unfinished()
        if path.exists():
            task = self._under_way[pid] = asyncio.get_running_loop().create_task(self._mend(pid, path))
            task.add_done_callback(lambda _: self._under_way.pop(pid))

    def start_all(self, but: set[int]) -> None:
        """Those whose deputies went while no daemon ran. but: processes that have one."""
        names = {path.name.removeprefix(".").removesuffix(SUFFIX) for path in self._deputies.glob(f"*{SUFFIX}")}
        for name in filter(str.isdigit, names):
            if int(name) not in but:
                self.start(int(name))

    async def wait(self, pid: int) -> bool:
        """Until it is done, if it is under way. Whether the process goes on by that."""
        if (task := self._under_way.get(pid)) is None:
            return False
        await asyncio.wait([task])
        return not task.cancelled() and task.exception() is None and task.result()

    def journal(self, pid: int) -> Path:
        """Return where it is kept what a process was, while it is made to make calls."""
        return self._deputies / f"{pid}{SUFFIX}"

    async def _mend(self, pid: int, path: Path) -> bool:
        with suppress(OSError, NoJournal):
            if towards := read(path).towards:
                await self._recall(pid, towards)
        try:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-s", "-m", "deputy.stub.mending", str(path), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, start_new_session=True, cwd="/", env=environment(),
            )  # fmt: skip
        except OSError as error:
            log.error("process %d may stand still, for its deputy was killed: %s", pid, error)
            return False
        try:
            async with asyncio.timeout(TIMEOUT):
                _, said = await child.communicate()
        except TimeoutError:
            child.kill()
            _, said = await child.communicate()
        words = said.decode(errors="replace").strip().splitlines() or ["it says nothing"]
        if child.returncode:
            log.error("process %d may stand still, for its deputy was killed: %s", pid, words[-1])
        else:
            log.info("process %d goes on without its deputy, which was killed", pid)
        return not child.returncode

    def close(self) -> None:
        """What is under way goes on by itself."""
        for task in list(self._under_way.values()):
            task.cancel()
