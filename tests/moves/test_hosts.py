"""Processes whose deputies and remotes share programs (`own_programs`) move, end and are found again as others do."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(240)

TOGETHER, FOLLOWING = (5, 6) if os.environ.get("FARHOME_LONG_TESTS") else (3, 4)
"""Processes that share a program, at once and one after the other."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    cluster = Cluster(2, configuration="own_programs = 0\n")
    yield cluster
    cluster.down()


def hosts(cluster: Cluster, node: str) -> list[Path]:
    """The directories in /proc of programs that several share."""
    found = []
    for process in (cluster.place(node).root / "proc").glob("[0-9]*"):
        try:
            if b".host\0" in (process / "cmdline").read_bytes():
                found.append(process)
        except OSError:
            continue
    return found


def holdings(cluster: Cluster) -> dict[str, Counter[str]]:
    """Descriptors and threads of each such program, by kind."""
    found = {}
    for node in cluster.names:
        for process in hosts(cluster, node):
            found[f"threads of {process}"] = Counter(_read(task / "comm") for task in (process / "task").iterdir())
            found[f"descriptors of {process}"] = Counter(_link(link) for link in (process / "fd").iterdir())
            del found[f"descriptors of {process}"]["anon_inode:bpf-prog"]  # opened once for all, when it is needed first
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return "gone"


def _link(path: Path) -> str:
    try:
        return os.readlink(path).split(":[")[0]
    except OSError:
        return "gone"


def test_several_processes_move_by_one_program_on_each_side(shared: Cluster) -> None:
    with ExitStack() as stack:
        counters = [stack.enter_context(Running(shared, "counter", "lines 100000 50 8")) for _ in range(TOGETHER)]
        for target in ("n2", HOME, "n2"):
            for counter in counters:
                counter.moved(target)
        for counter in counters:
            counter.works()
        assert [len(hosts(shared, node)) for node in shared.names] == [1, 1]
        for counter in counters:
            shared.home.run("kill", "-TERM", str(counter.pid))
        for counter in counters:
            assert "status 143" in counter.end(), counter.said
    until("the shared programs go with the last of them", lambda: not hosts(shared, HOME) and not hosts(shared, "n2"))


def test_nothing_is_left_in_a_program_of_those_that_have_gone(shared: Cluster) -> None:
    with Running(shared, "counter", "lines 100000 50 8") as first:
        first.moved("n2")
        first.works()
        before = holdings(shared)
        assert len(before) == 4
        for round in range(FOLLOWING):
            with Running(shared, "counter", "lines 100000 50 8") as counter:
                counter.moved("n2")
                counter.works()
                if round % 2:
                    counter.moved(HOME)
                shared.home.run("kill", "-TERM", str(counter.pid))
                assert "status 143" in counter.end(), counter.said
        with suppress(TimeoutError):
            until("they have what they had", lambda: holdings(shared) == before, seconds=20)
        assert holdings(shared) == before
        first.works()
        first.moved(HOME)


@pytest.mark.parametrize("node", [HOME, "n2"])
def test_a_new_daemon_finds_those_that_share_a_program(shared: Cluster, node: str) -> None:
    with Running(shared, "counter", "lines 100000 50 8") as one, Running(shared, "counter", "lines 100000 50 8") as other:
        one.moved("n2")
        other.moved("n2")
        shared.lab.node(node).stop_mosd()
        shared.lab.node(node).start_mosd()
        for counter in (one, other):
            until("it can be moved again", lambda c=counter: c.move(HOME).done, seconds=30, every=0.5)  # type: ignore[misc]
            counter.works()
        one.moved("n2")
        assert len(hosts(shared, "n2")) == 1
    until("nothing of it is left", lambda: not hosts(shared, HOME) and not hosts(shared, "n2"), seconds=20)


def test_killing_a_shared_program_kills_the_processes_in_it_and_no_other(shared: Cluster) -> None:
    with Running(shared, "counter", "lines 100000 50 8") as lost, Running(shared, "counter", "lines 100000 50 8") as stayed:
        lost.moved("n2")
        (host,) = hosts(shared, HOME)
        shared.home.run("kill", "-KILL", host.name)
        assert "status 137" in lost.end(30), lost.said
        # Until mosd has heard of it, a deputy is begun in what has ended, and the move is refused for now (exit 75).
        until("it moves", lambda: stayed.move("n2").done)
        stayed.works()
        stayed.moved(HOME)
    until("nothing of it is left", lambda: not hosts(shared, HOME) and not hosts(shared, "n2"), seconds=40)
