"""A death while memory is sent ahead of a process does not affect the process: it runs, and has all of its memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, Move, until

pytestmark = pytest.mark.timeout(240)

BIG = "lines 100000 50 240"
"""The counter checks a sixteenth of its 240 MB at each line."""


@pytest.fixture(scope="module")
def bandwidth() -> str:
    """Bandwidth with which the memory sent ahead takes five seconds, for any amount of computing beside it."""
    return "400mbit"


@pytest.fixture
def cluster(kept: Cluster) -> Cluster:
    return kept


def is_on_its_way(counter: Running) -> bool:
    """Some of its memory has gone ahead, and it has not."""
    return bool((counter.shown() or {}).get("progress", {}).get("sent"))


def not_moved(counter: Running, pool: ThreadPoolExecutor, target: str, what: str, *command: str) -> Move:
    """A move during which something dies: by that command at home, or a node."""
    move = pool.submit(counter.move, target)
    until("memory goes ahead", lambda: is_on_its_way(counter), every=0.01, seconds=30)
    if command:
        counter.cluster.home.run(*command)
    else:
        counter.cluster.lab.kill(what)
    done = move.result(90)
    assert not done.done, done
    return done


def checks_all_of_its_memory(counter: Running) -> None:
    for _ in range(17):
        counter.works(30)


@pytest.mark.soak
def test_the_target_dies(breakable: Cluster) -> None:
    with Running(breakable, "counter", BIG) as counter, ThreadPoolExecutor(1) as pool:
        counter.works(60)
        not_moved(counter, pool, "n2", "n2")
        assert counter.where() == HOME
        checks_all_of_its_memory(counter)
        counter.moved("n3")
        checks_all_of_its_memory(counter)


def test_the_deputy_is_killed_before_the_process_has_left(cluster: Cluster) -> None:
    """It does not trace the process while memory goes ahead: the process does not even notice."""
    with Running(cluster, "counter", BIG) as counter, ThreadPoolExecutor(1) as pool:
        counter.works(60)
        not_moved(counter, pool, "n2", "", "pkill", "-KILL", "-f", f"deputy --pid {counter.pid} ")
        assert counter.where() == HOME
        checks_all_of_its_memory(counter)
        until("it can be moved", lambda: counter.move("n2").done, seconds=30, every=0.5)
        checks_all_of_its_memory(counter)


@pytest.mark.soak
def test_the_node_that_it_would_hop_to_dies(breakable: Cluster) -> None:
    with Running(breakable, "counter", BIG) as counter, ThreadPoolExecutor(1) as pool:
        counter.works(60)
        counter.moved("n2")
        not_moved(counter, pool, "n3", "n3")
        assert counter.where() == "n2"
        checks_all_of_its_memory(counter)
        counter.moved(HOME)
        checks_all_of_its_memory(counter)


def test_the_link_is_cut_for_a_moment_on_the_way_home(cluster: Cluster) -> None:
    with Running(cluster, "counter", BIG) as counter, ThreadPoolExecutor(1) as pool:
        counter.works(60)
        counter.moved("n2")
        move = pool.submit(counter.move, HOME)
        until("memory comes ahead", lambda: is_on_its_way(counter), every=0.01, seconds=30)
        cluster.lab.cut(HOME, "n2", 3)
        move.result(120)
        checks_all_of_its_memory(counter)
        if counter.where() != HOME:
            until("it can come home", lambda: counter.move(HOME).done, seconds=60, every=0.5)
        checks_all_of_its_memory(counter)
