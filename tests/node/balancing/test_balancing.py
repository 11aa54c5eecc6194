"""The daemon's side of decisions: the next node asked after a refusal, counts meanwhile, and reads and writes of processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from balancer.load.view import Entry, View
from kernel_helpers.common.errors import MoveRefused
from node.balancing import traffic
from node.balancing.balancing import BEGUN_AT_ONCE, PLACED_AT_ONCE
from node.balancing.traffic import Traffic
from node.common import process
from node.common.config import load
from node.common.paths import Paths
from node.daemon import Daemon
from node.guests.guest import Guest
from node.moves.home_process import HOME, HomeProcess
from node.moves.move import Manner, MoveFailed, MoveReport
from tests.balancer.vectors import node

READS = "import os\nwhile True: os.pread(0, 1000, 0)"


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    """A daemon that does nothing by itself; this very process is a home process that wants the best node, and n1 is busy."""
    (tmp_path / "node.toml").write_text('name = "n1"\naddress = "127.0.0.1"\nspeed = 1.0\n')
    paths = Paths(run=tmp_path / "run", state=tmp_path / "state", config=tmp_path / "node.toml")
    paths.make_run_directories()
    made = Daemon(paths, load(tmp_path / "node.toml"))
    add(made, os.getpid(), wanted="best")
    own = made.parts.processors.own.digest
    vectors = [node("n1", 8), *(node(name, processor=own) for name in ("n2", "n3", "n4", "n5"))]
    made.parts.cluster.view = lambda: View("n1", {vector.name: Entry(vector, 0.5) for vector in vectors})  # type: ignore[method-assign]
    yield made
    made.parts.balancer.close()
    made.parts.registry.close()


def add(daemon: Daemon, pid: int, wanted: str = "") -> HomeProcess:
    stat = process.read_stat(pid)
    assert stat is not None
    daemon.parts.registry.add(HomeProcess(pid, stat.starttime, os.getuid(), since=time.time(), wanted=wanted))
    entry = daemon.parts.registry.get(pid)
    assert entry is not None
    return entry


async def asleep(pid: int) -> None:
    """Waits until that process, which has just started, sleeps. Errors: TimeoutError."""
    async with asyncio.timeout(10):
        while (stat := process.read_stat(pid)) is None or stat.state != "S":
            await asyncio.sleep(0.01)


async def asked_of(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, answers: list[MoveRefused | None], asked: int) -> list[str]:
    """The targets that are tried when moves end so, one after the other; how many there are to be."""
    targets: list[str] = []
    done = asyncio.Event()

    async def move(pid: int, target: str, reason: str, slowdown: float | None, manner: Manner) -> MoveReport:
        assert reason == "balance"
        assert slowdown is not None
        targets.append(target)
        if len(targets) == asked:
            done.set()
        if (refusal := answers.pop(0)) is not None:
            raise refusal
        return MoveReport(pid, target, 1.0, 2.0, 3, "test")

    monkeypatch.setattr(daemon.parts.mover, "move", move)
    daemon.parts.balancer.decide()
    await asyncio.wait_for(done.wait(), 10)
    for _ in range(20):
        await asyncio.sleep(0)
    return targets


def no_place() -> MoveFailed:
    return MoveFailed(os.getpid(), "it is busy", HOME, no_place=True)


async def test_process_to_be_placed_is_offered_to_the_next_node_where_one_refuses(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    targets = await asked_of(daemon, monkeypatch, [no_place(), None, None], 2)
    assert len(targets) == len(set(targets)) == 2
    outcomes = [note.outcome for note in daemon.parts.balancer.journal.of_process(os.getpid())]
    assert ["it is busy" in outcomes[0], outcomes[1]] == [True, "made"]


async def test_process_that_three_nodes_have_refused_stays_at_home(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(set(await asked_of(daemon, monkeypatch, [no_place(), no_place(), no_place(), None], 3))) == 3


async def test_process_that_cannot_move_is_not_offered_to_others(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    cannot = MoveFailed(os.getpid(), "it holds something that cannot move", HOME)
    assert len(await asked_of(daemon, monkeypatch, [cannot, None], 1)) == 1


async def test_processes_to_be_placed_leave_a_few_at_a_time_and_count_as_gone_meanwhile(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    under_way: list[int] = []
    go_on = asyncio.Event()

    async def move(pid: int, target: str, reason: str, slowdown: float | None, manner: Manner) -> MoveReport:
        under_way.append(pid)
        await go_on.wait()
        return MoveReport(pid, target, 1.0, 2.0, 3, "test")

    async def settle() -> float:
        for _ in range(20):
            await asyncio.sleep(0)
        own = daemon.parts.balancer.view_ahead().own
        return own.runnable if own is not None else -1.0

    monkeypatch.setattr(daemon.parts.mover, "move", move)
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    try:
        for child in children:
            await asleep(child.pid)  # else it may count as one that runs now, and as one that sleeps below
            add(daemon, child.pid, wanted="best")
        daemon.parts.balancer.decide()
        ahead = await settle()
        assert len(under_way) == PLACED_AT_ONCE
        leaving = [entry.runnable() for entry in daemon.parts.registry if entry.pid in under_way]
        assert ahead == pytest.approx(8 - sum(leaving))
        assert sum(leaving) > 0
        go_on.set()
        assert await settle() == pytest.approx(8)
        assert len(under_way) == 4
    finally:
        for child in children:
            child.kill()
            child.wait()


async def test_programs_that_want_the_best_node_begin_when_their_targets_are_ready(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    placed: list[int] = []
    ready, go_on = asyncio.Event(), asyncio.Event()

    async def move(pid: int, target: str, reason: str, slowdown: float | None, manner: Manner) -> MoveReport:
        placed.append(pid)
        await ready.wait()
        assert manner.begins is not None
        manner.begins()
        await go_on.wait()
        return MoveReport(pid, target, 1.0, 2.0, 3, "test")

    monkeypatch.setattr(daemon.parts.mover, "move", move)
    monkeypatch.setattr("node.balancing.balancing.TURN_WITHIN", 30.0)
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(BEGUN_AT_ONCE + 2)]
    try:
        turns = [asyncio.create_task(daemon.parts.balancer.turn(add(daemon, child.pid, wanted="best"))) for child in children]
        done, _ = await asyncio.wait(turns, timeout=0.3)
        assert (len(done), len(placed)) == (0, BEGUN_AT_ONCE)
        ready.set()
        done, _ = await asyncio.wait(turns, timeout=0.3)
        begun = [child.pid for child, turn in zip(children, turns, strict=True) if turn in done]
        assert sorted(placed) == sorted(begun)
        go_on.set()
        await asyncio.wait(turns, timeout=10)
        assert all(turn.done() for turn in turns)
    finally:
        for child in children:
            child.kill()
            child.wait()


async def test_a_program_that_cannot_be_placed_begins_all_the_same(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    async def move(pid: int, target: str, reason: str, slowdown: float | None, manner: Manner) -> MoveReport:
        raise MoveFailed(pid, f"{target} is on fire", HOME)

    monkeypatch.setattr(daemon.parts.mover, "move", move)
    monkeypatch.setattr("node.balancing.balancing.TURN_WITHIN", 30.0)
    with subprocess.Popen(["sleep", "60"]) as child:
        await asyncio.wait_for(daemon.parts.balancer.turn(add(daemon, child.pid, wanted="best")), 5)
        child.kill()


async def test_a_process_that_waits_too_long_for_its_turn_begins_at_home_and_is_placed_later(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    placed: dict[int, Manner] = {}
    go_on = asyncio.Event()

    async def move(pid: int, target: str, reason: str, slowdown: float | None, manner: Manner) -> MoveReport:
        placed[pid] = manner
        await go_on.wait()
        return MoveReport(pid, target, 1.0, 2.0, 3, "test")

    monkeypatch.setattr(daemon.parts.mover, "move", move)
    monkeypatch.setattr("node.balancing.balancing.TURN_WITHIN", 0.1)
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(BEGUN_AT_ONCE + 1)]
    try:
        *silent, last = [add(daemon, child.pid, wanted="best") for child in children]
        for entry in (*silent, last):  # the targets of the first ones are never ready
            await asyncio.wait_for(daemon.parts.balancer.turn(entry), 5)
        daemon.parts.balancer.started(last.pid)
        assert sorted(placed) == sorted(entry.pid for entry in silent)
        go_on.set()
        async with asyncio.timeout(5):
            while last.pid not in placed:
                await asyncio.sleep(0.01)
        assert placed[last.pid].begins is None
    finally:
        for child in children:
            child.kill()
            child.wait()


async def test_of_very_many_programs_most_begin_at_once(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    async def move(pid: int, target: str, reason: str, slowdown: float | None, manner: Manner) -> MoveReport:
        await asyncio.sleep(60)
        return MoveReport(pid, target, 1.0, 2.0, 3, "test")

    monkeypatch.setattr(daemon.parts.mover, "move", move)
    monkeypatch.setattr("node.balancing.balancing.TURN_WITHIN", 30.0)
    monkeypatch.setattr("node.balancing.balancing.MOST_WAITING", BEGUN_AT_ONCE + 1)
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(BEGUN_AT_ONCE + 3)]
    try:
        turns = [asyncio.create_task(daemon.parts.balancer.turn(add(daemon, child.pid, wanted="best"))) for child in children]
        _, waiting = await asyncio.wait(turns, timeout=0.3)
        assert len(waiting) == BEGUN_AT_ONCE + 1
    finally:
        for child in children:
            child.kill()
            child.wait()
        for turn in turns:
            turn.cancel()


async def test_a_staying_process_begins_after_the_others_have_left(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    moves, go_on, load = asyncio.Event(), asyncio.Event(), 8.0
    own = daemon.parts.processors.own.digest
    monkeypatch.setattr(
        daemon.parts.cluster,
        "view",
        lambda: View("n1", {one.name: Entry(one, 0.5) for one in (node("n1", load), node("n2", 2, processor=own))}),
    )

    async def move(pid: int, target: str, reason: str, slowdown: float | None, manner: Manner) -> MoveReport:
        moves.set()
        assert manner.begins is not None
        manner.begins()
        await go_on.wait()
        return MoveReport(pid, target, 1.0, 2.0, 3, "test")

    monkeypatch.setattr(daemon.parts.mover, "move", move)
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    try:
        goes, stays = [add(daemon, child.pid, wanted="best") for child in children]
        await asyncio.wait_for(daemon.parts.balancer.turn(goes), 1)
        daemon.parts.balancer.started(goes.pid)
        await asyncio.wait_for(moves.wait(), 5)
        load = 0.0
        turn = asyncio.create_task(daemon.parts.balancer.turn(stays))
        done, _ = await asyncio.wait([turn], timeout=0.3)
        assert not done
        assert sum(daemon.parts.balancer._staying.values()) > 0
        daemon.parts.balancer.started(stays.pid)  # it has waited too long: it counts as what it is now, and only once
        assert not daemon.parts.balancer._staying
        go_on.set()
        await asyncio.wait_for(turn, 1)
        assert not daemon.parts.balancer._staying
    finally:
        for child in children:
            child.kill()
            child.wait()


async def test_starting_arriving_and_leaving_processes_count_at_once(daemon: Daemon) -> None:
    balancer, cluster = daemon.parts.balancer, daemon.parts.cluster
    cluster.estimator.sample(0, 1 << 33, 1 << 34)
    balancer.started(7)
    assert cluster.estimator.runnable == pytest.approx(1, abs=0.1)
    cluster.process_moved(7, HOME, "n2", 1.0)
    assert cluster.estimator.runnable < 0.1
    guest = Guest("n2", 9, 0, "root", 1 << 30, time.time(), runnable=2.0)
    cluster.guest_accepted(guest)
    assert cluster.estimator.runnable == pytest.approx(2, abs=0.1)
    cluster.guest_left(guest)
    assert cluster.estimator.runnable < 0.1


async def test_reads_of_a_process_at_home_are_those_that_the_kernel_counts(daemon: Daemon) -> None:
    with open("/proc/self/exe", "rb") as source, subprocess.Popen([sys.executable, "-c", READS], stdin=source) as reader:
        try:
            entry, meter, end = add(daemon, reader.pid), daemon.parts.balancer.traffic, time.monotonic() + 20
            while meter.of(entry).calls < 2000 and time.monotonic() < end:
                await meter.poll()
                await asyncio.sleep(0.1)
            rates = meter.of(entry)
            assert rates.calls >= 2000
            assert rates.moved > 500 * rates.calls
            own = daemon.parts.registry.get(os.getpid())
            assert own is not None
            assert meter.of(own).calls < rates.calls
        finally:
            reader.kill()


async def test_processes_watched_for_a_while_are_sampled_less_often(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, meter = add(daemon, os.getpid()), daemon.parts.balancer.traffic
    monkeypatch.setattr(traffic, "LATER", 1e9)
    for _ in range(3):
        await meter.poll()
    known = meter.of(entry).known
    await meter.poll()
    assert meter.of(entry).known != known  # it is new
    monkeypatch.setattr(traffic, "NEW", 0.0)
    known = meter.of(entry).known
    await meter.poll()
    assert meter.of(entry).known == known
    monkeypatch.setattr(traffic, "LATER", 0.0)
    await meter.poll()
    assert meter.of(entry).known != known


def test_traffic_of_other_nodes_files_is_counted_for_those_nodes() -> None:
    stay = (HOME, 1.0)
    first = Traffic(stay, 100, 10_000, {(5, "n2/a"): 1000, (6, "n3/b"): 0}, 0)
    then = first.followed_by(Traffic(stay, 200, 30_000, {(5, "n2/a"): 6000, (6, "n3/b"): 10_000, (7, "n3/c"): 4000}, 0))
    assert (then.moved, dict(then.far), then.calls) == (5000, {"n2": 5000, "n3": 10_000}, 25)
    away = then.followed_by(Traffic(("n2", 9.0), 0, 0, {(5, "n2/a"): 6000}, 0))
    assert (away.moved, away.far, away.calls) == (then.moved, then.far, then.calls)
    reads = away.followed_by(Traffic(("n2", 9.0), 10, 100, {(5, "n2/a"): 6000}, 70_000))
    assert (reads.moved, dict(reads.far), reads.calls) == (5100, {"n2": 75_000, "n3": 10_000}, 35)


def test_repeated_reads_count_more_than_the_file_position_shows() -> None:
    first = Traffic((HOME, 1.0), 0, 0, {(5, "n2/a"): 9000, (6, "n3/b"): 0}, 0)
    then = first.followed_by(Traffic((HOME, 1.0), 100, 100_000, {(5, "n2/a"): 1000, (6, "n3/b"): 10_000}, 0))
    assert (then.moved, dict(then.far)) == (0, {"n2": 90_000, "n3": 10_000})
    again = then.followed_by(Traffic((HOME, 1.0), 200, 200_000, {(5, "n2/a"): 2000}, 0))
    assert again.far["n2"] == 190_000


async def test_a_process_at_home_that_reads_another_nodes_file_is_known_to(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # fmt: skip
    (tmp_path / "n2").mkdir()
    (tmp_path / "n2" / "data").write_bytes(bytes(1 << 20))
    monkeypatch.setattr(daemon.parts.balancer.traffic, "_tree", lambda: str(tmp_path))
    script = "import os\nwhile True:\n    while os.read(0, 1000): pass\n    os.lseek(0, 0, os.SEEK_SET)"
    with open(tmp_path / "n2" / "data", "rb") as source, subprocess.Popen([sys.executable, "-c", script], stdin=source) as reader:
        try:
            entry, meter, end = add(daemon, reader.pid), daemon.parts.balancer.traffic, time.monotonic() + 20
            while meter.of(entry).files.get("n2", 0) < 1e5 and time.monotonic() < end:
                await meter.poll()
                await asyncio.sleep(0.1)
            assert meter.of(entry).files["n2"] >= 1e5
        finally:
            reader.kill()
