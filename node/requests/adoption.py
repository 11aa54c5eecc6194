"""Processes that mosrun did not start: whose they are, whether they are ours to move, and what keeps them at home."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.leaving.peculiar import ask
from engine.leaving.permission import Owner, may_leave
from engine.leaving.refusal import is_kernels, only_poured, passes, reasons
from kernel_helpers.common.errors import FarhomeError, MoveRefused
from node.common import process
from node.moves.home_process import HomeProcess, to_record
from node.requests.control import Client, NotPermitted

EXAMINE_TIMEOUT = 8.0
"""Seconds that a look at a process may take; one of some hundred GiB has many pages to walk over."""
LOOKS = 8
"""At a time, for each user. One that hangs counts until it ends: a process can have the kernel wait (node/common/aside.py)."""
LOOK_AGAIN = 0.02
PASSING = 1.0
"""Seconds within which what passes in a moment, as a child that is about to execute its program, does not keep a process at home."""
GENERATIONS = 64


class NoSuchProcess(FarhomeError):
    """It has ended, or never was."""

    exit_code = 75


@dataclass(frozen=True)
class Identity:
    """Of /proc/PID/status: the group of threads it is in, its real, effective and saved users, whether it has memory of its own."""

    leader: int
    uids: tuple[int, int, int]
    has_memory: bool


def read_identity(pid: int) -> Identity | None:
    """None if there is no such process or thread."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as source:
            found = {name: value.split() for name, _, value in (line.partition(":") for line in source)}
    except OSError:
        return None
    real, effective, saved = (int(word) for word in found["Uid"][:3])
    return Identity(int(found["Tgid"][0]), (real, effective, saved), "VmSize" in found)


def candidate(pid: int, client: Client, supervisors: Mapping[int, str]) -> HomeProcess:
    """Return a process of this node as it would be in the registry: it moves on request, and not automatically.

    `supervisors`: farhome's own processes, by what they are; what hangs on them is farhome's too.
    Errors: NoSuchProcess, NotPermitted, MoveRefused: it is not ours to move.
    """
    stat, identity = process.read_stat(pid), read_identity(pid)
    if stat is None or identity is None:
        raise NoSuchProcess(f"there is no such process ({pid})")
    if identity.leader != pid:
        raise MoveRefused(pid, f"it is a thread of process {identity.leader}")
    # Who may trace it, not who may kill it: all that it holds goes to another machine.
    strangers = [uid for uid in identity.uids if not client.may_act_on(uid)]
    if strangers:
        raise NotPermitted(f"process {pid} belongs to {process.user_name(strangers[0])}")
    if stat.state in "ZX":
        raise MoveRefused(pid, "it has ended")
    if not identity.has_memory:
        try:
            raise MoveRefused(pid, "it is part of the kernel" if is_kernels(pid) else "it has ended")
        except (FileNotFoundError, ProcessLookupError):
            raise NoSuchProcess(f"there is no such process ({pid})") from None
    if pid == 1:
        raise MoveRefused(pid, "it is the first process of this node, on which all others hang")
    if pid == client.pid:
        raise MoveRefused(pid, "it is the command that asks")
    supervisor = _supervisor(pid, supervisors)
    if supervisor is not None:
        raise MoveRefused(pid, supervisor)
    if process.is_mosrun(pid):
        raise MoveRefused(pid, "it is only just being started")
    return HomeProcess(
        pid,
        stat.starttime,
        identity.uids[0],
        command=process.command_line(pid),
        locked=True,
        adopted=True,
        since=time.time(),
        owner=to_record(client.owner),
    )


def _supervisor(pid: int, supervisors: Mapping[int, str]) -> str | None:
    """What a process is to farhome if it, or one that it descends from, is farhome's own."""
    for _ in range(GENERATIONS):
        if pid in supervisors:
            return supervisors[pid]
        stat = process.read_stat(pid)
        if stat is None or stat.parent <= 1:
            return None
        pid = stat.parent
    return None


def own_processes(deputies: Mapping[int, int], remotes: Mapping[int, str]) -> dict[int, str]:
    """Return the supervisors of this node with the sentence for what hangs on each: this daemon, its deputies (each with the process
    that it is for) and remotes (each with its guest)."""
    return (
        {os.getpid(): "it is part of farhome"}
        | {deputy: f"it is the deputy of process {pid}" for deputy, pid in deputies.items()}
        | {remote: f"it belongs to guest {key}, which only its home moves" for remote, key in remotes.items()}
    )


@dataclass(frozen=True)
class Examination:
    """All that keeps a process at home, and what keeps it from nodes that have another kernel."""

    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


async def examine(entry: HomeProcess, engine: str, asker: Owner) -> Examination:
    """Return what keeps a process from moving by an engine (of the configuration) for the caller, itself untouched; nothing if it is away
    already.
    Errors: NoSuchProcess, MoveRefused."""
    if entry.state != "home":
        return Examination()
    try:
        async with asyncio.timeout(EXAMINE_TIMEOUT):
            while _looks[asker.uid] >= LOOKS:
                await asyncio.sleep(LOOK_AGAIN)
            found, against_images = await _run_in_thread(entry.pid, (entry.registered_by(), asker))
    except TimeoutError:
        raise MoveRefused(entry.pid, f"the kernel has not shown its memory within {EXAMINE_TIMEOUT:.0f} s") from None
    except ProcessLookupError:
        raise NoSuchProcess(f"there is no such process ({entry.pid})") from None
    held = ["it was started to stay at home (mosrun -h)"] if entry.home_only else []
    if engine == "criu":
        return Examination((*held, *found, *against_images))
    return Examination((*held, *found), tuple(f"it does not go to a node with another kernel: {one}" for one in against_images))


_looks: Counter[int] = Counter()
_looks_lock = threading.Lock()


def _count_look(uid: int, change: int) -> None:
    with _looks_lock:
        _looks[uid] += change


def _run_in_thread(pid: int, owners: Sequence[Owner]) -> asyncio.Future[tuple[list[str], list[str]]]:
    """In a thread, which waits alone for what the kernel does not report at once, and for which no end of the daemon waits."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[list[str], list[str]]] = loop.create_future()

    def settle(found: tuple[list[str], list[str]] | Exception) -> None:
        if future.done():
            return
        if isinstance(found, Exception):
            future.set_exception(found)
        else:
            future.set_result(found)

    def check() -> None:
        found: tuple[list[str], list[str]] | Exception
        try:
            found = _reasons(pid, owners), list(only_poured(pid))
        except Exception as error:  # handed over to the waiting request
            found = error
        finally:
            _count_look(asker, -1)
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, found)

    asker = owners[-1].uid
    _count_look(asker, 1)
    threading.Thread(target=check, daemon=True, name=f"check {pid}").start()
    return future


def _reasons(pid: int, owners: Sequence[Owner]) -> list[str]:
    beyond = may_leave(pid, owners)
    found, end = list(reasons(pid)), time.monotonic() + PASSING
    while any(passes(reason) for reason in found) and time.monotonic() < end:
        time.sleep(0.02)
        found = list(reasons(pid))
    found[:0] = [beyond] if beyond is not None else []
    if not found:
        try:
            asked = ask(pid)
        except MoveRefused as refusal:
            asked = refusal.reason
        found += [asked] if asked is not None else []
    return found
