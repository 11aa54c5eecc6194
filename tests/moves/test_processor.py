"""A node whose processor lacks a feature that home has gets no process; a refused process has never been frozen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.leaving.processor import own_processor
from tests.faults.running import HOME, Running, log_lines
from tests.moves.cluster import Cluster, until
from tests.moves.outcome import kill_session

pytestmark = pytest.mark.timeout(120)
LACKING = ("cmov", "sse2")


@pytest.fixture(scope="module")
def older() -> Iterator[Cluster]:
    """A cluster whose n3 pretends to have an older processor."""
    cluster = Cluster()
    pretend_older(cluster)
    yield cluster
    cluster.down()


def pretend_older(cluster: Cluster) -> None:
    n3 = cluster.lab.node("n3")
    configuration = n3.root / "etc/farhome/node.toml"
    flags = " ".join(sorted(own_processor().flags - set(LACKING)))
    configuration.write_text(f'cpu_flags = "{flags}"\n{configuration.read_text()}')
    n3.stop_mosd()
    n3.start_mosd()
    until("n1 hears of n3", lambda: "n3" in cluster.home.run("mosctl", "nodes", "--json").stdout)


def test_out_and_hop_to_an_older_processor_are_refused_and_home_is_not(older: Cluster) -> None:
    sentence = "n3's processor lacks cmov, sse2"
    with Running(older, "counter", "lines 200 50 8") as counter:
        counter.works()
        refused = older.home.run("migrate", str(counter.pid), "n3")
        assert refused.returncode == 75
        assert sentence in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
        counter.works()
        shown = counter.shown()
        assert shown is not None
        assert (shown["where"], shown["state"], shown["why"]) == ("home", "home", sentence)
        assert not log_lines(older, "n3", "guest", str(counter.pid)), "n3 was asked for a place"
        counter.moved("n2")
        hop = counter.move("n3")
        assert not hop.done
        assert sentence in hop.said
        assert counter.where() == "n2"
        counter.works()
        counter.moved(HOME)
        counter.works()


def test_the_older_node_sends_its_own_processes_to_the_newer(older: Cluster) -> None:
    n3 = older.place("n3")
    child = n3.popen(["mosrun", "-L", "-J", "old", "sleep", "60"], "")
    try:
        pid = str(until("it is registered", lambda: one_of(n3.run("mosps", "-J", "old").stdout)))
        done = n3.run("migrate", pid, "n1")
        assert done.returncode == 0, done.stderr
        assert n3.run("migrate", pid, "home").returncode == 0
    finally:
        kill_session(child.pid)
        child.wait(10)


def one_of(table: str) -> int:
    """The first pid in what mosps shows, or 0."""
    return next((int(line.split()[0]) for line in table.splitlines() if line.split()[:1] and line.split()[0].isdigit()), 0)


def test_out_takes_the_newer_of_the_others(older: Cluster) -> None:
    """The balancer does not choose nodes that cannot take the process."""
    with Running(older, "counter", "lines 200 50 8") as counter:
        for _ in range(3):
            done = older.home.run("migrate", str(counter.pid), "out")
            assert done.returncode == 0, done.stderr
            assert counter.where() == "n2"
            counter.moved(HOME)
