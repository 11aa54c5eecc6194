"""The owner comes back to a node with a guest, by each of the ways: what is done to the guest's processes, by the real kernel.

The guest is a program that computes in a guest's control group; no process supervises it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from balancer.lending.owner import Stage
from balancer.lending.policy import LendingPolicy
from kernel_helpers.calls.numbers import NUMBERS
from kernel_helpers.process import seizing
from node.common.config import Config
from node.common.paths import Paths
from node.guests.cgroups import BASE, GuestGroups, hierarchies
from node.guests.guest import Guest
from node.guests.guests import Guests
from node.owner import lending
from node.owner.lending import Lending
from node.programs.programs import Programs
from tests.node.nodes import wait_for

KEY = "test-4194303"
BURN = ["nice", "-n", "19", "sh", "-c", "while :; do :; done"]


class Node:
    """The parts of a node that lending needs."""

    def __init__(self, directory: Path, burner: subprocess.Popen[bytes], **owner: object) -> None:
        self.input = directory / "input"
        self.policy = LendingPolicy.from_table(
            {"idle_after": 60, "owner": {"input": [str(self.input)], "logins": False, "freeze_after": 0.02, "on_return": "freeze", **owner}}
        )
        self.use(3600.0)
        paths = Paths(run=directory, state=directory, config=directory / "node.toml")
        config = Config(name="n2", address="127.0.0.1")
        self.guests = Guests(
            paths, lambda: config, lambda: self.policy, Programs(), lambda: self.lending.surroundings((1 << 30, 1 << 30), 0.0),
            lambda _: None, lambda slowdown, runnable: None,
        )  # fmt: skip
        self.lending = Lending(paths, lambda: self.policy, self.guests, lambda: (), lambda key, reason: None, lambda: None)
        self.guests.groups.prepare()
        self.guests.groups.create(KEY)
        for group in self.guests.groups.directories(f"{BASE}/{KEY}"):
            (group / "cgroup.procs").write_text(str(burner.pid))

    def use(self, ago: float) -> None:
        """The owner has used the node so many seconds ago."""
        self.input.touch()
        os.utime(self.input, (time.time() - ago,) * 2)

    @asynccontextmanager
    async def lends(self) -> AsyncIterator[None]:
        """Lends with one guest that has been here for long."""
        self.guests._guests[KEY] = Guest("test", 4194303, 0, "root", 0, 0.0, group=KEY)
        self.guests.freezing.runs(KEY)
        self.lending.start()
        try:
            yield
        finally:
            self.lending.close()

    async def until(self, what: Callable[[], bool], message: str) -> None:
        """Errors: AssertionError."""
        try:
            async with asyncio.timeout(15):
                while not what():
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"{message}; it is {self.lending.row()}") from None

    def is_still(self) -> bool:
        return self.guests.groups.stands_still(KEY)


@pytest.fixture
def burner(own_groups: dict[str, Path]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(BURN)
    yield process
    process.kill()
    GuestGroups().freeze(KEY, False)
    process.wait(10)
    wait_for(lambda: GuestGroups().remove(KEY), message="the group is empty")
    GuestGroups().remove_all()


def test_while_all_is_calm_a_glance_is_enough(tmp_path: Path, burner: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "CLOSED_PERIOD", 1e9)

    async def scene() -> None:
        node = Node(tmp_path, burner)
        node.guests._guests[KEY] = Guest("test", 4194303, 0, "root", 0, 0.0, group=KEY)
        node.lending.apply_policy()
        node.lending.poll()
        seen, used = node.lending.sight, os.stat(node.input).st_mtime
        node.lending._look_again()
        assert node.lending.sight.idle == seen.idle
        os.utime(node.input, (used + 1, used + 1))
        node.lending._look_again()
        assert node.lending.sight.idle != seen.idle
        assert node.lending.state.stage is Stage.LENDING
        node.use(0.0)
        node.lending._look_again()
        assert node.lending.state.stage is Stage.THROTTLED
        node.lending.close()

    asyncio.run(scene())


def test_input_has_guests_stand_still_and_another_policy_lets_them_go_on(
    tmp_path: Path, burner: subprocess.Popen[bytes], own_groups: dict[str, Path]
) -> None:
    async def scene() -> None:
        node = Node(tmp_path, burner)
        async with node.lends():
            assert node.lending.state.stage is Stage.LENDING
            assert node.guests.lends() is None
            node.use(0.0)
            await node.until(node.is_still, "the guest stands still")
            assert node.guests.groups.is_held_back() or "cpu" not in own_groups
            assert "the owner used the node" in str(node.guests.lends())
            node.policy = replace(node.policy, idle_after=0.0)
            node.lending.apply_policy()
            await node.until(lambda: node.lending.state.stage is Stage.LENDING and not node.is_still(), "the guest goes on")
            assert node.guests.lends() is None

    asyncio.run(scene())


def test_the_owner_says_by_hand_that_he_is_back_and_away(tmp_path: Path, burner: subprocess.Popen[bytes]) -> None:
    async def scene() -> None:
        node = Node(tmp_path, burner)
        async with node.lends():
            node.lending.call(True)
            assert node.lending.state.stage is Stage.THROTTLED
            await node.until(node.is_still, "the guest stands still")
            node.lending.call(False)
            await node.until(lambda: not node.is_still(), "the guest goes on")

    asyncio.run(scene())


def test_a_frozen_guest_runs_now_and_then_and_is_thawed_for_its_home(tmp_path: Path, burner: subprocess.Popen[bytes]) -> None:
    async def scene() -> None:
        node = Node(tmp_path, burner)
        async with node.lends():
            node.lending.call(True)
            await node.until(node.is_still, "the guest stands still")
            await node.until(lambda: not node.is_still(), "it breathes")
            await node.until(node.is_still, "it stands still again")
            node.guests.on_its_way(KEY, True)
            assert not node.guests.freezing.is_held(node.guests.all()[0])
            await node.until(lambda: not node.is_still(), "it is let go for its home")
            node.guests.on_its_way(KEY, False)
            await node.until(node.is_still, "it stands still again when its home has done with it")

    asyncio.run(scene())


@pytest.mark.skipif("unified" not in hierarchies(), reason="what version 1 has frozen cannot be traced")
def test_a_supervisors_call_in_a_frozen_guest_is_done_when_it_runs_for_a_moment(tmp_path: Path, burner: subprocess.Popen[bytes]) -> None:
    def make_a_call() -> int:
        frozen = seizing.seize(burner.pid)
        number = frozen.leader.call(NUMBERS["getpid"])
        frozen.restore()
        frozen.detach()
        return number

    async def scene() -> None:
        node = Node(tmp_path, burner)
        async with node.lends():
            node.lending.call(True)
            await node.until(node.is_still, "the guest stands still")
            assert await asyncio.to_thread(make_a_call) == burner.pid
            await node.until(node.is_still, "the guest stands still again")

    asyncio.run(scene())


def test_a_daemon_that_ends_lets_all_go(tmp_path: Path, burner: subprocess.Popen[bytes]) -> None:
    async def scene() -> Node:
        node = Node(tmp_path, burner)
        async with node.lends():
            node.lending.call(True)
            await node.until(node.is_still, "the guest stands still")
        return node

    node = asyncio.run(scene())
    wait_for(lambda: not node.is_still(), message="the guest goes on")
