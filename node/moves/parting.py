"""What ends when a node is taken out of the cluster: its guests here go home or end, our processes there come home or end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

from kernel_helpers.common.errors import FarhomeError
from node.cluster.front.peer_server import Caller
from node.common import process
from node.guests.guests import Guests
from node.moves.home_process import HOME, HomeProcess
from node.moves.moves import Mover
from node.moves.registry import Registry

PATIENCE = 4.0
"""Seconds that a guest, or a process, has to go home."""

log = logging.getLogger("mosd.cluster")


async def part_from(name: str, guests: Guests, registry: Registry, mover: Mover) -> None:
    """Ends what this node has with that one."""
    reason = f"{name} was removed from the cluster"
    theirs = [guest.key for guest in guests.all() if guest.home == name]
    ours = [entry for entry in registry if entry.where == name]
    await asyncio.gather(
        *(guests.expel(key, reason, PATIENCE) for key in theirs), *(_bring_home(mover, entry, reason) for entry in ours),
        return_exceptions=True,
    )  # fmt: skip
    for guest in [guest for guest in guests.all() if guest.home == name]:
        log.warning("guest %s has not gone home and ends: %s", guest.key, reason)
        try:
            await guests.cancel(Caller(name, ""), guest.key, ended=True)
        except FarhomeError as error:
            log.warning("guest %s: %s", guest.key, error)
    for entry in ours:
        current = registry.get(entry.pid)
        stat = process.read_stat(entry.pid)
        if current is not None and current.where == name and stat is not None and stat.starttime == entry.starttime:
            log.warning("process %d has not come home from %s and ends: %s", entry.pid, name, reason)
            try:
                os.kill(entry.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


async def _bring_home(mover: Mover, entry: HomeProcess, reason: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            await mover.move(entry.pid, HOME, reason)
    except (FarhomeError, TimeoutError) as error:
        log.warning("process %d: %s", entry.pid, error)
