"""The target's side: admission of guests by the owner's policy, one remote for each, and sending them away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from balancer.policy import LendingPolicy, LendingState
from node.cgroups import GuestGroups
from node.config import Config
from node.paths import Paths, write_atomically
from node.peer_server import Caller
from node.peers import PeerRefused
from node.programs import Program, ProgramError, Programs
from wire import steps
from wire.frames import Message

SECRET = 32
LISTEN_TIMEOUT = 15.0
STALE_TIMEOUT = 3.0
"""Seconds that a new guest waits for the one with the same key, which has just left, to be cleared away."""
ARRIVALS = 4
"""Guests that may be on their way here at once."""
EXPEL_TIMEOUT, MOST_EXPEL_TIMEOUT = 10.0, 3600.0
USAGE_TIMEOUT = 1.0
MOST_ASKED = 256

log = logging.getLogger("mosd.guests")


@dataclass(frozen=True)
class Guest:
    """A process of another node that is here or on its way. memory (bytes) is what was reserved for it, runnable how
    many threads it was expected to add to those that want to run."""

    home: str
    pid: int
    uid: int
    user: str
    memory: int
    since: float
    command: str = ""
    runnable: float = 1.0
    group: str = ""
    """The key of the guest whose control group it is in: of its own, or of the parent that it was born of here."""

    @property
    def key(self) -> str:
        return f"{self.home}-{self.pid}"


class Guests:
    """All guests of this node."""

    def __init__(
        self, paths: Paths, config: Callable[[], Config], policy: Callable[[], LendingPolicy], programs: Programs,
        memory_free: Callable[[], int], owner_idle: Callable[[], float | None], accepted: Callable[[float], None],
        recheck: Callable[[float, float], str | None],
    ) -> None:  # fmt: skip
        """accepted is told how many runnable threads come (or, negative, have gone); recheck says why a guest, by the slowdown
        of where it is and its runnable threads, would be no better off here."""
        self._paths = paths
        self._config = config
        self._policy = policy
        self._programs = programs
        self._memory_free = memory_free
        self._owner_idle = owner_idle
        self._accepted = accepted
        self._recheck = recheck
        self._guests: dict[str, Guest] = {}
        self._remotes: dict[str, Program] = {}
        self._arriving: set[str] = set()
        self._expelling: set[str] = set()
        self._leaving: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.groups = GuestGroups()

    @property
    def blocked(self) -> bool:
        """Whether the owner has blocked the node; kept until it is unblocked or the node goes down."""
        return (self._paths.run / "blocked").exists()

    def block(self, blocked: bool) -> None:
        """Takes no guests any more, or takes them again. Errors: OSError."""
        path = self._paths.run / "blocked"
        if blocked:
            path.touch()
        else:
            path.unlink(missing_ok=True)

    def remotes(self) -> dict[int, str]:
        """Process id of each remote, and the key of its guest."""
        return {remote.pid: key for key, remote in self._remotes.items()}

    def all(self) -> list[Guest]:
        """Every guest, those that are on their way too."""
        return list(self._guests.values())

    def memory(self, key: str) -> int:
        """Bytes that a guest has here: what was reserved or what it uses, whichever is more. What a child uses that was born here
        counts as its parent's."""
        guest = self._guests[key]
        return max(guest.memory, self.groups.memory(key)) if guest.group == key else 0

    def _memory_of_all(self) -> int:
        reserved: dict[str, int] = {}
        for guest in self._guests.values():
            reserved[guest.group] = reserved.get(guest.group, 0) + guest.memory
        return sum(max(memory, self.groups.memory(group)) for group, memory in reserved.items())

    def state(self) -> LendingState:
        """How the node is now, for the owner's policy."""
        clock = time.localtime()
        return LendingState(
            guests=len(self._guests),
            guest_memory=self._memory_of_all(),
            memory_free=self._memory_free(),
            minute=clock.tm_hour * 60 + clock.tm_min,
            owner_idle=self._owner_idle(),
            blocked=self.blocked,
        )

    def lends(self) -> str | None:
        """Why no guest would be taken now, None if some would."""
        return self._policy().lends(self.state())

    async def reserve(self, caller: Caller, parameters: dict[str, Any]) -> dict[str, Any]:
        """A place for one guest: where its home may connect to, and the secret. Errors: PeerRefused with the reason."""
        guest = _requested(caller, parameters)
        refusal = self._policy().admits(guest.user, guest.memory, self.state())
        if refusal is None and parameters.get("slowdown") is not None:
            refusal = self._recheck(_amount(parameters, "slowdown", 1e9), guest.runnable)
        if refusal is None and len(self._arriving) >= ARRIVALS:
            refusal = "too many guests are on their way to it"
        if refusal:
            raise PeerRefused("refused", refusal)
        if guest.key in self._arriving:
            raise PeerRefused("refused", "it is on its way here already")
        self._arriving.add(guest.key)
        try:
            await self._clear_stale(guest.key)
            secret = secrets.token_bytes(SECRET)
            port = await self._start_remote(guest, secret)
        except (OSError, ProgramError) as error:
            log.error("no remote for guest %s: %s", guest.key, error)
            raise PeerRefused("failed", f"the node could not make a place for it: {error}") from None
        finally:
            self._arriving.discard(guest.key)
        self._accepted(guest.runnable)
        steps.reached("reserved")
        return {"address": [self._config().address, port], "secret": secret, "key": guest.key}

    async def _clear_stale(self, key: str) -> None:
        old = self._remotes.get(key)
        if old is None:
            return
        # A home moves a process once at a time: a place that nobody has come to is one that it has forgotten.
        with contextlib.suppress(ProgramError):
            await old.request("cancel", STALE_TIMEOUT)
        if not await old.wait_gone(STALE_TIMEOUT):
            raise PeerRefused("refused", "a guest with the same name is still there")

    async def _start_remote(self, guest: Guest, secret: bytes) -> int:
        """The port that the guest's remote listens on. Errors: ProgramError, OSError."""
        config, paths, key = self._config(), self._paths, guest.key
        listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        cgroup = self.groups.create(key)
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            os.write(write_end, secret)
            os.close(write_end)
            path = paths.remotes / f"{key}.sock"
            argv = [
                *self._programs.remote, "--home", guest.home, "--pid", str(guest.pid), "--socket", str(path),
                "--secret-fd", str(read_end), "--address", config.address, "--node", config.name,
                "--link-timeout", str(config.link_timeout), "--interception", config.interception, "--cgroup", cgroup,
                "--images", str(paths.images), "--cache", str(paths.state / "cache"),
            ]  # fmt: skip
            self._guests[key] = guest

            def on_event(message: Message) -> None:
                if message.get("event") == "listening" and not listening.done():
                    listening.set_result(int(message["port"]))
                self._on_event(key, message)

            self._remotes[key] = await Program.start(
                argv, path, paths.logs / f"remote-{key}.log", f"remote of {key}", on_event, lambda: self._gone(key), (read_end,)
            )
            async with asyncio.timeout(LISTEN_TIMEOUT):
                port = await listening
        except TimeoutError:
            self._forget(key)
            raise ProgramError("its remote does not listen") from None
        except BaseException:
            self._forget(key)
            raise
        finally:
            os.close(read_end)
        self._save(guest)
        return port

    def _save(self, guest: Guest) -> None:
        write_atomically(self._paths.guests / f"{guest.key}.json", json.dumps(asdict(guest)).encode())

    def _on_event(self, key: str, message: Message) -> None:
        event = message.get("event")
        if event == "gone":
            log.info("guest %s is gone: %s", key, message.get("reason"))
        elif event == "running":
            log.info("guest %s runs here", key)
        elif event == "born" and key in self._guests:
            self._spawn(self._take_child(self._guests[key], int(message["pid"])))

    async def _take_child(self, parent: Guest, pid: int) -> None:
        """A guest's child was born here; its remote is a part of its parent's."""
        guest = replace(parent, pid=pid, since=time.time(), memory=0)
        if guest.key in self._guests:                           # it has left, and come again as any other
            return
        try:
            program = await self._attach(self._paths.remotes / f"{guest.key}.sock", guest.key)
        except ProgramError:
            return                                              # it was short
        self._guests[guest.key], self._remotes[guest.key] = guest, program
        self._save(guest)
        self._accepted(guest.runnable)

    async def _attach(self, path: Path, key: str) -> Program:
        """Errors: ProgramError."""
        return await Program.attach(path, f"remote of {key}", lambda message: self._on_event(key, message), lambda: self._gone(key))

    def _gone(self, key: str) -> None:
        guest = self._guests.get(key)
        self._paths.remove_images(key)
        self._forget(key)
        if guest is not None:                    # else it had never been accepted
            self._accepted(-guest.runnable)

    def _forget(self, key: str) -> None:
        guest = self._guests.pop(key, None)
        program = self._remotes.pop(key, None)
        if program is not None:
            program.kill() if not program.gone.is_set() else None
        for left in {key, guest.group if guest is not None else key}:
            if left not in self._guests:
                self._leaving.add(left)
                self._spawn(self._remove_group(left))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _remove_group(self, key: str) -> None:
        """Removes the guest's group once the kernel has let go of its last process; then its file, by which a daemon after
        this one would do the same."""
        for _ in range(100):
            if self._clear(key):
                return
            await asyncio.sleep(0.05)
        log.warning("the cgroup of guest %s is not empty", key)

    def _clear(self, key: str) -> bool:
        """Whether nothing is left to remove of a guest that has gone (or it has come again, or left children, the last of which has
        that done)."""
        if key not in self._guests and not any(guest.group == key for guest in self._guests.values()):
            if not self.groups.remove(key):
                return False
            (self._paths.guests / f"{key}.json").unlink(missing_ok=True)
        self._leaving.discard(key)
        return True

    async def cancel(self, caller: Caller, key: str, ended: bool = False) -> None:
        """Takes a reservation back, or (its process has ended) the guest as well; only its own home may."""
        guest = self._guests.get(key)
        program = self._remotes.get(key)
        if guest is None or program is None or guest.home != caller.name:
            return
        await program.request("kill" if ended else "cancel")

    async def usage(self, caller: Caller, pids: object) -> list[list[float]]:
        """[pid, seconds of cpu since it came] of the caller's guests among those pids that tell in time."""
        wanted = pids[:MOST_ASKED] if isinstance(pids, list) else []
        wanted = [pid for pid in wanted if isinstance(pid, int)]
        programs = {pid: self._remotes[f"{caller.name}-{pid}"] for pid in wanted if f"{caller.name}-{pid}" in self._remotes}
        answers = await asyncio.gather(
            *(program.request("status", USAGE_TIMEOUT) for program in programs.values()), return_exceptions=True
        )
        return [
            [pid, float(answer["cpu"])] for pid, answer in zip(programs, answers, strict=True)
            if not isinstance(answer, BaseException) and isinstance(answer.get("cpu"), (int, float)) and answer.get("running")
        ]  # fmt: skip

    async def expel(self, key: str | None, reason: str, within: float = EXPEL_TIMEOUT) -> dict[str, str]:
        """Sends one guest home, or all at once; returns those that have not gone within so many seconds, and why."""
        keys = [key] if key is not None else list(self._remotes)
        left = await asyncio.gather(*(self._expel(k, reason, within) for k in keys))
        return {k: why for k, why in zip(keys, left, strict=True) if why}

    def in_excess(self) -> str | None:
        """The greatest guest if all together use more memory than the owner lends, else None."""
        limit = self._policy().max_memory
        if limit is None or len(self._expelling) > 0:
            return None
        groups = {guest.group: self.groups.memory(guest.group) for guest in self._guests.values()}
        if sum(groups.values()) <= limit or not self._remotes:
            return None
        return max(self._remotes, key=lambda key: groups[self._guests[key].group])

    async def _expel(self, key: str, reason: str, within: float) -> str:
        """Why it has not gone, or nothing."""
        program = self._remotes.get(key)
        if program is None:
            return ""
        self._expelling.add(key)
        try:
            await program.request("expel", reason=reason)
            gone = await program.wait_gone(within)
            return "" if gone else f"its home has not taken it back within {within:g} s"
        except ProgramError as error:
            log.warning("guest %s: %s", key, error)
            return "" if program.gone.is_set() else str(error)
        finally:
            self._expelling.discard(key)

    async def restore(self) -> None:
        """Finds the remotes that a daemon before this one started."""
        for path in sorted(self._paths.remotes.glob("*.sock")):
            await self._restore_one(path, path.stem)
        for path in self._paths.guests.glob("*.json"):
            if path.stem not in self._guests:
                self._leaving.add(path.stem)
                self._spawn(self._remove_group(path.stem))

    async def _restore_one(self, path: Path, key: str) -> None:
        try:
            program = await self._attach(path, key)
        except ProgramError:
            path.unlink(missing_ok=True)
            return
        try:
            guest = _recorded(json.loads((self._paths.guests / f"{key}.json").read_bytes()))
        except (OSError, ValueError, TypeError, KeyError):
            home, _, pid = key.rpartition("-")
            guest = Guest(home, int(pid) if pid.isdigit() else 0, -1, "?", 0, time.time(), group=key)
        self._guests[key] = guest
        self._remotes[key] = program
        log.info("guest %s is still here", key)

    async def rows(self) -> list[dict[str, Any]]:
        """What `mosps --guests` shows."""
        now = time.time()
        return [
            {"home": g.home, "pid": g.pid, "user": g.user, "uid": g.uid, "since": g.since, "seconds": max(0.0, now - g.since),
             "memory": self.memory(g.key), "command": g.command, "key": g.key}
            for g in self.all()
        ]  # fmt: skip

    def close(self) -> None:
        """Lets go of the remotes, which go on."""
        for program in self._remotes.values():
            program.detach()
        for task in self._tasks:
            task.cancel()
        for key in list(self._leaving):
            self._clear(key)


def _requested(caller: Caller, parameters: dict[str, Any]) -> Guest:
    """The guest that a reservation is for. Errors: PeerRefused."""
    home, pid, uid, user, memory = (parameters.get(key) for key in ("home", "pid", "uid", "user", "memory"))
    if home != caller.name:
        raise PeerRefused("refused", "a node reserves places for its own processes only")
    if (
        not isinstance(pid, int) or not 0 < pid <= 1 << 22 or not isinstance(uid, int) or not 0 <= uid < 1 << 32
        or not isinstance(user, str) or not 0 < len(user) <= 64 or not isinstance(memory, int) or not 0 <= memory < 1 << 60
    ):  # fmt: skip
        raise PeerRefused("refused", "the request for a place is not complete")
    command, runnable = parameters.get("command", ""), _amount(parameters, "runnable", 1e4, 1.0)
    command = command[:200] if isinstance(command, str) else ""
    return Guest(caller.name, pid, uid, user, memory, time.time(), command, runnable, f"{caller.name}-{pid}")


def _amount(parameters: dict[str, Any], key: str, most: float, default: float | None = None) -> float:
    """A figure of a request. Errors: PeerRefused."""
    value = parameters.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise PeerRefused("refused", f"{key} in the request for a place makes no sense")
    return float(value)


def _recorded(record: dict[str, Any]) -> Guest:
    return Guest(
        str(record["home"]), int(record["pid"]), int(record["uid"]), str(record["user"]), int(record["memory"]),
        float(record["since"]), str(record.get("command", "")), float(record.get("runnable", 1.0)), str(record["group"]),
    )  # fmt: skip


