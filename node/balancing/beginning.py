"""Programs that mosrun is to begin on a node that is named (mosrun -r NODE): they leave before their first instruction, or their user is
informed why not. Those that want the best node are the balancer's (balancing.py)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from balancer.decisions.journal import Journal
from balancer.decisions.process import Decision
from kernel_helpers.common.errors import MoveRefused, sentence
from node.moves.home_process import HOME, HomeProcess
from node.moves.move import Manner
from node.moves.moves import Mover
from node.moves.registry import Registry

BEGUN_AT_ONCE = 12
"""Programs for which targets make a place; the others wait for their turn."""
MOST_WAITING = 64
"""Programs that wait, each with a connection to the daemon."""
WITHIN = 30.0
"""Seconds within which a place is made; mosrun itself waits for 40."""

log = logging.getLogger("mosd.beginning")


class DoesNotBegin(MoveRefused):
    """it does not begin on {target}: {reason}"""

    def __init__(self, pid: int, target: str, reason: str) -> None:
        super().__init__(pid, reason)
        self.target = target

    def __str__(self) -> str:
        return f"it does not begin on {self.target}: {self.reason}"


class Beginnings:
    """Has programs begin elsewhere that have not begun yet."""

    def __init__(self, registry: Registry, mover: Mover, journal: Journal, spawn: Callable[..., object]) -> None:
        """spawn: starts work in the background."""
        self._registry = registry
        self._mover = mover
        self._journal = journal
        self._spawn = spawn
        self._places = asyncio.Semaphore(BEGUN_AT_ONCE)
        self._waiting = 0

    async def begin(self, entry: HomeProcess) -> None:
        """Returns when the program may be executed, its target being ready. What the target could not take runs at home, and the balancer
        goes on asking for it. Errors: DoesNotBegin."""
        pid, target = entry.pid, entry.wanted
        self._registry.update(pid, wanted="")  # the balancer is not to send it meanwhile
        if self._waiting >= MOST_WAITING:
            self._ask_later(pid, target)
            raise DoesNotBegin(pid, target, f"{MOST_WAITING} other programs are about to leave")
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting += 1
        try:
            self._spawn(self._send(pid, target, outcome))
            async with asyncio.timeout(WITHIN):
                await asyncio.shield(outcome)
        except TimeoutError:
            raise DoesNotBegin(pid, target, f"{target} has not made a place within {WITHIN:.0f} s") from None
        finally:
            self._waiting -= 1
            if not outcome.done():
                outcome.cancel()

    def _ask_later(self, pid: int, target: str) -> None:
        if self._registry.get(pid) is not None:
            self._registry.update(pid, wanted=target)

    async def _send(self, pid: int, target: str, outcome: asyncio.Future[None]) -> None:
        """Moves it. outcome: whether it may begin; an error if it is not to begin there."""

        def begins() -> None:
            if not outcome.done():
                outcome.set_result(None)

        self._journal.record(time.time(), Decision(pid, target, f"it is to begin on {target} (mosrun -r)"), HOME)
        try:
            async with self._places:
                await self._mover.move(pid, target, manner=Manner(begins=begins, says=True))
        except MoveRefused as refusal:
            self._journal.concluded(pid, target, str(refusal))
            self._ask_later(pid, target)
            if not outcome.done():
                outcome.set_exception(DoesNotBegin(pid, target, refusal.reason))
        except Exception as error:
            log.exception("process %d does not begin on %s", pid, target)
            self._ask_later(pid, target)
            if not outcome.done():
                outcome.set_exception(DoesNotBegin(pid, target, sentence(error)))
        else:
            self._journal.concluded(pid, target, "made")
            begins()
