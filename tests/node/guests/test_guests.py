"""A target's answer to a request for a place: who may ask, and whether a balancer's guest would be better off here."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from balancer.lending.policy import LendingPolicy
from node.cluster.front.connections import PeerRefused
from node.cluster.front.peer_server import Caller
from node.common.config import Config
from node.common.paths import Paths
from node.guests.cgroups import GuestGroups
from node.guests.guest import Guest, Surroundings
from node.guests.guests import Guests
from node.programs.programs import Program, Programs

BUSY = "n2 is busier than was known"
REQUEST = {"pid": 7, "home": "n1", "uid": 0, "user": "root", "memory": 4096, "command": "test"}


@pytest.fixture(autouse=True)
def no_groups_left() -> Iterator[None]:
    yield
    GuestGroups().remove("n1-7")
    GuestGroups().remove_all()


def guests(tmp_path: Path, asked: list[tuple[float, float, int]], record: list[str] | None = None) -> Guests:
    events: list[str] = [] if record is None else record

    def recheck(slowdown: float, guest: Guest, coming: int) -> str:
        asked.append((slowdown, guest.runnable, coming))
        return BUSY

    paths = Paths(run=tmp_path, state=tmp_path, config=tmp_path / "node.toml")
    config = Config(name="n2", address="127.0.0.1")
    # No program can be started: a guest past admission gets that error.
    return Guests(
        paths, lambda: config, LendingPolicy, Programs(remote=("/nonexistent",)), lambda: Surroundings(1 << 40),
        lambda guest: events.append(f"{guest.key} has come"), recheck, left=lambda guest: events.append(f"{guest.key} has left"),
    )  # fmt: skip


def refused(of: Guests, **more: Any) -> PeerRefused:
    with pytest.raises(PeerRefused) as caught:
        asyncio.run(of.reserve(Caller("n1", "here"), REQUEST | more))
    return caught.value


def refusal(of: Guests, **more: Any) -> str:
    return str(refused(of, **more))


def test_a_balancers_guest_without_a_gain_is_refused_but_not_one_that_a_user_sends(tmp_path: Path) -> None:
    asked: list[tuple[float, float, int]] = []
    of = guests(tmp_path, asked)
    answer = refused(of, slowdown=1.5, runnable=0.5)
    assert (answer.kind, str(answer)) == ("busy", BUSY)
    assert asked == [(1.5, 0.5, 0)]
    assert "could not make a place" in refusal(of, runnable=0.5)
    assert len(asked) == 1


@pytest.mark.parametrize("wrong", [{"slowdown": "2"}, {"slowdown": -1}, {"runnable": float("nan")}, {"runnable": True}])
def test_figures_that_make_no_sense_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    assert "makes no sense" in refusal(guests(tmp_path, []), **wrong)


def test_a_guest_counts_while_its_place_is_made_and_no_more_if_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record: list[str] = []
    of = guests(tmp_path, [], record)

    async def starts(guest: Guest, secret: bytes) -> int:
        record.append(f"a place for {[one.key for one in of.all()]}")
        raise OSError("no place")

    monkeypatch.setattr(of, "_start_remote", starts)
    refused(of)
    assert record == ["n1-7 has come", "a place for ['n1-7']", "n1-7 has left"]
    assert not of.all()


def test_usage_of_a_guest_alone_in_its_control_group_is_that_of_the_group(tmp_path: Path) -> None:
    of, guest = guests(tmp_path, []), Guest("n1", 7, 0, "root", 0, time.time(), group="n1-7")
    of.groups.create("n1-7")
    burns = "import time\nwhile time.process_time() < 0.3: pass"
    with subprocess.Popen([sys.executable, "-c", f"input()\n{burns}"], stdin=subprocess.PIPE) as burner:
        for directory in of.groups.directories("farhome/guests/n1-7"):
            (directory / "cgroup.procs").write_text(str(burner.pid))
        of._guests["n1-7"], of.usage._alone["n1-7"] = guest, of.groups.cpu("n1-7") or 0.0
        of.freezing.runs("n1-7")
        burner.communicate(b"\n", timeout=20)
    (usage,) = asyncio.run(of.usage.seconds(Caller("n1", "here"), [7, 8, "x"], reads=True))
    assert usage[0] == 7
    assert 0.2 < usage[1] < 2
    assert usage[2] == 0
    assert not asyncio.run(of.usage.seconds(Caller("n9", "here"), [7], reads=True))


def test_a_guest_with_children_reports_its_own_usage(tmp_path: Path) -> None:
    """Even with a child that has ended before the node could attach to it: the control group no longer holds the guest alone."""
    of, guest = guests(tmp_path, []), Guest("n1", 7, 0, "root", 0, time.time(), group="n1-7")
    of.groups.create("n1-7")
    of._guests["n1-7"], of.usage._alone["n1-7"] = guest, of.groups.cpu("n1-7") or 0.0
    of.freezing.runs("n1-7")

    async def asks() -> tuple[int, int]:
        before = await of.usage.seconds(Caller("n1", "here"), [7], reads=False)
        of._on_event("n1-7", {"event": "born", "pid": 8})
        return len(before), len(await of.usage.seconds(Caller("n1", "here"), [7], reads=False))

    assert asyncio.run(asks()) == (1, 0)


def test_the_end_of_a_remote_is_not_that_of_another_one_of_its_name(tmp_path: Path) -> None:
    """A place that could not be made has been made once more before the first one's program has ended."""
    record: list[str] = []
    of, ended = guests(tmp_path, [], record), []

    async def ends() -> None:
        first, second = (Program(tmp_path / name, name, lambda _: None, lambda one: of._gone("n1-7", one)) for name in ("first", "second"))
        of._guests["n1-7"], of._remotes["n1-7"] = Guest("n1", 7, 0, "root", 0, time.time(), group="n1-7"), second
        first._finish()
        ended.append(of.here())
        second._finish()
        ended.append(of.here())

    asyncio.run(ends())
    assert ended == [["n1-7"], []]
    assert record == ["n1-7 has left"]
