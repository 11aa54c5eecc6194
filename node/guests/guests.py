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
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from balancer.lending.policy import LendingPolicy, LendingState
from kernel_helpers.common.errors import sentence
from node.cluster.front.connections import BUSY, PeerRefused
from node.cluster.front.peer_server import Caller
from node.common.config import Config
from node.common.paths import Paths, write_atomically
from node.common.tasks import Tasks
from node.guests.admission import ARRIVALS, Admission
from node.guests.cgroups import GuestGroups
from node.guests.guest import Guest, Surroundings, amount, recorded, requested, shown
from node.guests.guest_freezing import GuestFreezing
from node.guests.guest_shares import GuestShares
from node.guests.guest_usage import GuestUsage
from node.guests.remote_options import remote_options
from node.guests.resting import Resting
from node.programs.programs import Program, ProgramError, Programs
from wire import steps
from wire.channel import SECRET
from wire.frames import Message

LISTEN_TIMEOUT = 15.0
STALE_TIMEOUT = 8.0
"""Seconds that a new guest waits for the one with the same key, which has just left, to be cleared away."""
EXPEL_TIMEOUT, MOST_EXPEL_TIMEOUT = 10.0, 3600.0

log = logging.getLogger("mosd.guests")


class Guests:
    """All guests of this node."""

    def __init__(
        self, paths: Paths, config: Callable[[], Config], policy: Callable[[], LendingPolicy], programs: Programs,
        surroundings: Callable[[], Surroundings], accepted: Callable[[Guest], None],
        recheck: Callable[[float, Guest, int], str | None], cluster: Callable[[], str] = str,
        left: Callable[[Guest], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """accepted is called for guests that get a place now; recheck says why a guest, by the
        slowdown of where it is, would be no better off here, and is called with the bytes that are on their way already. cluster: the name
        of the one that all peers are in. left is called for guests that have gone, while their control groups are still there."""
        self._paths = paths
        self._config = config
        self._policy = policy
        self._programs = programs
        self._surroundings = surroundings
        self._left = left
        self._accepted = accepted
        self._recheck = recheck
        self._blocked = (paths.run / "blocked").exists()
        self._guests: dict[str, Guest] = {}
        self._remotes: dict[str, Program] = {}
        self._arriving: set[str] = set()
        self._expelling: set[str] = set()
        self._leaving: set[str] = set()
        self._tasks = Tasks()
        self.groups = GuestGroups()
        self.shares = GuestShares(paths, self.groups, cluster)
        self.freezing = GuestFreezing(self.groups)
        self.usage = GuestUsage(config, self._guests, self._remotes, self.groups, self.freezing)
        self._admission = Admission(
            lambda: config().name, policy, self._guests, self.shares, self.freezing, self.lending_state,
            self.expel,
        )  # fmt: skip
        self.resting = Resting(self.groups, lambda: {key: remote.pid for key, remote in self._remotes.items()})

    @property
    def blocked(self) -> bool:
        """Whether the owner has blocked the node; kept until it is unblocked or the node goes down."""
        return self._blocked

    def block(self, blocked: bool) -> None:
        """Takes no guests any more, or takes them again. Errors: OSError."""
        path = self._paths.run / "blocked"
        if blocked:
            path.touch()
        else:
            path.unlink(missing_ok=True)
        self._blocked = blocked

    def remotes(self) -> dict[int, str]:
        """Process id of each remote, and the key of its guest."""
        return {remote.pid: key for key, remote in self._remotes.items()}

    def all(self) -> list[Guest]:
        """Every guest, those that are on their way too."""
        return list(self._guests.values())

    def lending_state(self) -> LendingState:
        """Return how the node is now, for the owner's policy."""
        return self.shares.lending_state(self._guests, self._policy(), self._surroundings(), self.blocked)

    def lends(self) -> str | None:
        """Return why no guest would be taken now, None if some would."""
        return self._policy().lends(self.lending_state())

    def denied(self) -> dict[str, str]:
        """Keys of those to whom the policy, which may have changed, does not lend, and why."""
        policy, state = self._policy(), self.lending_state()
        reasons = {key: policy.denies(self.shares.borrower(guest), state) for key, guest in self._guests.items()}
        return {key: reason for key, reason in reasons.items() if reason is not None}

    async def reserve(self, caller: Caller, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return a place for one guest: where its home may connect to, and the secret. Errors: PeerRefused with the reason."""
        guest, kind = requested(caller, parameters), "refused"
        refusal = await self._admission.why_not(guest)
        if refusal is None and parameters.get("slowdown") is not None:
            kind, refusal = BUSY, self._recheck(amount(parameters, "slowdown", 1e9), guest, self._admission.coming())
        if refusal is None and (len(self._arriving) >= ARRIVALS or self._admission.is_crowded(guest)):
            kind, refusal = BUSY, "too many guests are on their way to it"
        if refusal:
            raise PeerRefused(kind, refusal)
        if guest.key in self._arriving:
            raise PeerRefused("refused", "it is on its way here already")
        self._arriving.add(guest.key)
        try:
            await self._clear_stale(guest.key)
            secret = secrets.token_bytes(SECRET)
            port = await self._make_place(guest, secret)
        except (OSError, ProgramError) as error:
            log.error("no remote for guest %s: %s", guest.key, error)
            raise PeerRefused("failed", f"the node could not make a place for it: {sentence(error)}") from None
        finally:
            self._arriving.discard(guest.key)
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

    async def _make_place(self, guest: Guest, secret: bytes) -> int:
        """The guest counts while its place is made, which takes a while, and from then on. As _start_remote()."""
        self._guests[guest.key] = guest
        self._accepted(guest)
        self.freezing.comes(guest)
        try:
            return await self._start_remote(guest, secret)
        except BaseException:
            self._gone(guest.key)
            raise

    async def _start_remote(self, guest: Guest, secret: bytes) -> int:
        """The port that the guest's remote listens on. Errors: ProgramError, OSError."""
        config, paths, key = self._config(), self._paths, guest.key
        listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        cgroup = self.groups.create(key)
        self.usage.begins(key)
        self.groups.put_first(key, True)
        policy = self._policy()
        self.groups.bound_memory(key, self.shares.kind(guest, policy).max_memory)
        self.groups.bound_tasks(key, policy.max_tasks)
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            os.write(write_end, secret)
            os.close(write_end)
            path = paths.remotes / f"{key}.sock"
            argv = [*self._programs.remote, *remote_options(guest, config, paths, policy, path, read_end, cgroup)]
            argv += ["--ids", "none" if self._admission.why_no_ids() else "{}-{}".format(*policy.ids or ())]
            argv += ["--lent-disk", str(self.shares.lent_disk(policy))]

            def on_event(message: Message) -> None:
                if message.get("event") == "listening" and not listening.done():
                    listening.set_result(int(message["port"]))
                self._on_event(key, message)

            self._remotes[key] = await Program.start(
                argv, path, paths.logs / f"remote-{key}.log", f"remote of {key}", on_event, lambda one: self._gone(key, one), (read_end,)
            )
            async with asyncio.timeout(LISTEN_TIMEOUT):
                port = await listening
        except TimeoutError:
            raise ProgramError("its remote does not listen") from None
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
            self.freezing.runs(key)
            self.resting.runs(key)
            self.groups.put_first(key, False)
        elif event == "moving":
            self.on_its_way(key, message.get("moving") is True)
        elif event == "cut":
            self._cut(key, message.get("cut") is True)
        elif event == "born" and key in self._guests:
            self.usage.shares(self._guests[key].group)
            self._tasks.spawn(self._take_child(self._guests[key], int(message["pid"])))

    def _cut(self, key: str, is_cut: bool) -> None:
        """The home of a guest is not heard, or is again."""
        if (guest := self._guests.get(key)) is not None:
            log.warning("guest %s: its home is %s", key, "not heard: it stands still" if is_cut else "heard again")
            self.freezing.cut(guest, is_cut, [one for one in self._guests.values() if one.group == guest.group])

    async def _take_child(self, parent: Guest, pid: int) -> None:
        """A guest's child was born here; its remote is a part of its parent's."""
        guest = replace(parent, pid=pid, since=time.time(), memory=0)
        if guest.key in self._guests:  # it has left, and come again as any other
            return
        try:
            program = await self._attach(self._paths.remotes / f"{guest.key}.sock", guest.key)
        except ProgramError:
            return  # it was short
        self._guests[guest.key], self._remotes[guest.key] = guest, program
        self.freezing.runs(guest.key)
        self.resting.runs(guest.key)
        self._save(guest)
        self._accepted(guest)

    async def _attach(self, path: Path, key: str) -> Program:
        """Errors: ProgramError."""
        return await Program.attach(
            path, f"remote of {key}", lambda message: self._on_event(key, message), lambda one: self._gone(key, one)
        )

    def _gone(self, key: str, program: Program | None = None) -> None:
        """A guest's place is over; or (program) a remote has ended, perhaps one of a name that another has by now."""
        if program is not None and self._remotes.get(key) is not program:
            return
        guest = self._guests.get(key)
        self._paths.remove_images(key)
        self._forget(key)
        if guest is not None:  # else it had never been accepted
            self._left(guest)

    def _forget(self, key: str) -> None:
        guest = self._guests.pop(key, None)
        program = self._remotes.pop(key, None)
        self.usage.shares(key)
        self.freezing.forget(key)
        self.resting.forget(key)
        self.groups.put_first(guest.group if guest is not None else key, False)  # others may have been born in it
        if program is not None:
            program.kill() if not program.gone.is_set() else None
        for left in {key, guest.group if guest is not None else key}:
            if left not in self._guests:
                self._leaving.add(left)
                self._tasks.spawn(self._remove_group(left))

    async def _remove_group(self, key: str) -> None:
        """Removes the guest's group once the kernel has let go of its last process; then its file, by which a later daemon would."""
        for looks, pause in ((100, 0.05), (600, 1.0)):
            for _ in range(looks):
                if self._clear(key):
                    return
                await asyncio.sleep(pause)
            log.warning("the cgroup of guest %s is not empty", key)

    def bound_memory(self) -> None:
        """Bounds each guest by its class, of a policy that may be another one."""
        for guest in self._guests.values():
            if guest.group == guest.key:
                self.groups.bound_memory(guest.key, self.shares.kind(guest, self._policy()).max_memory)
                self.groups.bound_tasks(guest.key, self._policy().max_tasks)

    def here(self) -> list[str]:
        """Keys of all guests that have a remote."""
        return list(self._remotes)

    def stand_still(self, still: bool) -> None:
        """Has all guests stand still that run here and are not on their way; or all go on."""
        self.freezing.hold(self._guests.values() if still else ())

    def on_its_way(self, key: str, moving: bool) -> None:
        """A guest is about to be moved, or to end, and must run for that; or it is not any more."""
        if (guest := self._guests.get(key)) is not None:
            self.freezing.on_its_way(guest, moving)
            (self.resting.moves if moving else self.resting.runs)(key)
            self.groups.put_first(guest.group, moving)

    async def end(self, key: str) -> None:
        """Kills a guest: its process ends at home as by SIGKILL. Errors: ProgramError."""
        log.warning("guest %s is killed: the policy says so", key)
        if (program := self._remotes.get(key)) is not None:
            self.on_its_way(key, True)
            await program.request("kill")
            await program.wait_gone(EXPEL_TIMEOUT)

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
        if ended:
            self.on_its_way(key, True)
        await program.request("kill" if ended else "cancel")

    async def expel(self, key: str | None, reason: str, within: float = EXPEL_TIMEOUT) -> dict[str, str]:
        """Sends one guest home, or all at once; returns those that have not gone within so many seconds, and why."""
        keys = [key] if key is not None else list(self._remotes)
        left = await asyncio.gather(*(self._expel(k, reason, within) for k in keys))
        return {k: why for k, why in zip(keys, left, strict=True) if why}

    def in_excess(self) -> tuple[str, str] | None:
        """Return who goes first if guests use more memory than the owner lends them, and which class of them does, or nothing; else
        None."""
        if self._expelling:
            return None  # who goes already may be enough
        return self.shares.in_excess({key: self._guests[key] for key in self._remotes if key in self._guests}, self._policy())

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
                self._tasks.spawn(self._remove_group(path.stem))

    async def _restore_one(self, path: Path, key: str) -> None:
        try:
            program = await self._attach(path, key)
        except ProgramError:
            path.unlink(missing_ok=True)
            return
        try:
            guest = recorded(json.loads((self._paths.guests / f"{key}.json").read_bytes()))
        except (OSError, ValueError, TypeError, KeyError):
            home, _, pid = key.rpartition("-")
            guest = Guest(home, int(pid) if pid.isdigit() else 0, -1, "?", 0, time.time(), group=key)
        self._guests[key] = guest
        self._remotes[key] = program
        self.freezing.runs(key)
        self.resting.runs(key)
        self.groups.put_first(guest.group, False)
        self.groups.freeze(guest.group, False)  # a daemon that was killed could not
        log.info("guest %s is still here", key)

    async def rows(self) -> list[dict[str, Any]]:
        """Return what `mosps --guests` shows."""
        policy = self._policy()
        return [shown(g, self.shares.memory(g), self.shares.kind(g, policy).name, self.freezing.is_held(g)) for g in self.all()]

    def close(self) -> None:
        """Lets go of the remotes, which go on."""
        self.resting.close()
        for program in self._remotes.values():
            program.detach()
        self._tasks.cancel()
        for key in list(self._leaving):
            self._clear(key)
