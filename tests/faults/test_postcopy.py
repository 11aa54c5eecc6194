"""While memory follows a process, two nodes have parts of it: a broken connection is made again; without the one or the other the process
ends, and never finds anything else where its memory was."""

from __future__ import annotations

import pytest

from tests.faults.running import HOME, Running, log_lines
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(240)

SOAK = [pytest.param(way, *nodes, marks=pytest.mark.soak) for way, nodes in ((["n2"], (HOME, "n2")), (["n2", "n3"], ("n2", "n3")))]
BIG = 160
"""Megabytes that the program writes and checks all the time."""


@pytest.fixture(scope="module")
def bandwidth() -> str:
    """More than three seconds for as much."""
    return "400mbit"


@pytest.fixture
def cluster(kept: Cluster) -> Cluster:
    return kept


def follows(writer: Running, target: str) -> None:
    """It runs on the target, and most of its memory is elsewhere still."""
    assert writer.moved(target, memory="postcopy").follows > BIG * 9 // 10 << 20


def works_for_long(writer: Running) -> None:
    for _ in range(3):
        writer.works(60)


def is_over(writer: Running, status: int) -> str:
    """It has ended with that status, and nothing of it is left on any node."""
    said = writer.end(60)
    assert said.endswith(f"status {status}\n"), said
    until("nothing of it is left", lambda: not writer.host_pids(), seconds=60)
    return said


@pytest.mark.parametrize(("way", "first", "second"), [*SOAK, (["n2", HOME], HOME, "n2")])
def test_a_connection_that_breaks_is_made_again(cluster: Cluster, way: list[str], first: str, second: str) -> None:
    with Running(cluster, "writer", str(BIG)) as writer:
        writer.works(60)
        for stop in way[:-1]:
            writer.moved(stop)
            writer.works(60)
        follows(writer, way[-1])
        cluster.lab.cut(first, second, 4)
        works_for_long(writer)
        cluster.home.run("kill", "-TERM", str(writer.pid))
        assert is_over(writer, 0).startswith("intact")


@pytest.mark.soak
def test_the_node_that_it_has_left_for_another_dies(breakable: Cluster) -> None:
    with Running(breakable, "writer", str(BIG)) as writer:
        writer.works(60)
        writer.moved("n2")
        follows(writer, "n3")
        breakable.lab.kill("n2")
        is_over(writer, 137)
        assert log_lines(breakable, HOME, "is lost")


def test_the_node_that_it_has_left_for_home_dies(breakable: Cluster) -> None:
    with Running(breakable, "writer", str(BIG)) as writer:
        writer.works(60)
        writer.moved("n2")
        follows(writer, HOME)
        breakable.lab.kill("n2")
        is_over(writer, 137)
        assert log_lines(breakable, HOME, "is lost", "of its memory have not come")


def test_the_deputy_dies_that_takes_its_memory_home(cluster: Cluster) -> None:
    """It runs natively then, and without the deputy it would find zeros."""
    with Running(cluster, "writer", str(BIG)) as writer:
        writer.works(60)
        writer.moved("n2")
        follows(writer, HOME)
        assert cluster.home.run("pkill", "-KILL", "-f", f"deputy --pid {writer.pid} ").returncode == 0
        is_over(writer, 137)
        until("its keeper has gone", lambda: cluster.home.run("pgrep", "-x", "uffd_guard").returncode == 1)
    remotes = ["pgrep", "-f", "remote --home"]
    until("n2 has let go of it", lambda: cluster.place("n2").run(*remotes).returncode == 1, seconds=60)


@pytest.mark.soak
def test_the_supervisor_of_the_copy_that_is_left_dies(cluster: Cluster) -> None:
    with Running(cluster, "writer", str(BIG)) as writer:
        writer.works(60)
        writer.moved("n2")
        follows(writer, HOME)
        cluster.place("n2").run("pkill", "-KILL", "-f", "remote --home")
        is_over(writer, 137)


@pytest.mark.parametrize("way", [*(pytest.param(way, marks=pytest.mark.soak) for way in (["n2"], ["n2", "n3"])), ["n2", HOME]])
def test_a_process_that_ends_leaves_nothing(cluster: Cluster, way: list[str]) -> None:
    with Running(cluster, "writer", str(BIG)) as writer:
        writer.works(60)
        for stop in way[:-1]:
            writer.moved(stop)
        follows(writer, way[-1])
        cluster.home.run("kill", "-KILL", str(writer.pid))
        is_over(writer, 137)
        search = ["pgrep", "-f", "remote --home|uffd_guard|deputy --pid"]
        for place in map(cluster.place, (HOME, "n2", "n3")):
            until("nothing is left there", lambda place=place: place.run(*search).returncode == 1, seconds=60)
