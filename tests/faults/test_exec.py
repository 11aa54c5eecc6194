"""Links that break, nodes that die and signals that kill while programs are executed away: there is one copy, or none."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

import pytest

from tests.faults.conftest import LINK_TIMEOUT
from tests.faults.running import HOME, Running
from tests.faults.stops import Stop
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(240)
MANY = 100000


@pytest.fixture
def cluster(kept: Cluster) -> Cluster:
    return kept


def made_once(one: Running, steps: int) -> bool:
    """Returns whether each step was made exactly once."""
    lines = one.lines()
    return lines == [str(number) for number in range(steps, steps - len(lines), -1)]


@pytest.mark.parametrize("cuts", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_link_cut_again_and_again(cluster: Cluster, cuts: int) -> None:
    with Running(cluster, "executes.static", f"again {MANY}") as one:
        one.moved("n2")
        for _ in range(cuts):
            one.works(40)
            time.sleep(random.uniform(0, 0.1))
            cluster.lab.cut("n1", "n2", 1)
        one.works(40)
        one.works(40)
        assert made_once(one, MANY)
        assert cluster.home.run("sh", "-c", f"kill -9 {one.pid}").returncode == 0
        one.end()


def test_the_node_dies(breakable: Cluster) -> None:
    """The process is lost with it, or was between two programs, and goes on at home."""
    with Running(breakable, "executes.static", f"again {MANY}") as one:
        one.moved("n2")
        one.works()
        time.sleep(random.uniform(0, 0.1))
        breakable.lab.kill("n2")

        def over() -> bool:
            shown = one.shown()
            return one.process.poll() is not None or (shown is not None and shown["where"] == "home")

        until("it is lost, or at home", over, seconds=LINK_TIMEOUT + 30)
        if one.process.poll() is None:
            one.works()
            assert len(one.host_pids()) == 1
        else:
            assert "status 137" in one.said
            assert one.host_pids() == []
        assert made_once(one, MANY)


@pytest.mark.parametrize(
    ("node", "step"),
    [(HOME, "program: sent"), (HOME, "program: prepared"), (HOME, "commit said"), ("n2", "arrival: pour"), ("n2", "arrival: link")],
)
def test_a_deputy_or_remote_is_killed_while_a_program_comes(stoppable: Cluster, node: str, step: str) -> None:
    """It goes on at home; nothing is left anywhere. (Who has just said commit has a journal, by which its mosd knows of the copy.)"""
    with Running(stoppable, "executes.static", f"again {MANY}") as one:
        one.moved("n2")
        for _ in range(3):  # the first comes by a conversation
            one.works(20)
        with Stop(stoppable, node, step) as stop:
            stop.wait(lambda: None)
            stoppable.place(node).run("kill", "-KILL", str(stop.pid))
        until("it is at home", lambda: one.where() == HOME, seconds=30)
        one.works(20)
        until("one copy is left", lambda: len(one.host_pids()) == 1, seconds=20)
        assert stoppable.home.run("sh", "-c", f"kill -9 {one.pid}").returncode == 0
        assert "status 137" in one.end(20)
        until("no copy is left", lambda: one.host_pids() == [], seconds=20)
        assert made_once(one, MANY)


@pytest.mark.parametrize("rounds", [2, pytest.param(5, marks=pytest.mark.soak)])
def test_a_kill_during_executions_ends_the_process(cluster: Cluster, rounds: int) -> None:
    """Its shell sees 137, and nothing of it is left."""
    for _ in range(rounds):
        with Running(cluster, "executes.static", f"again {MANY}") as one:
            one.moved("n2")
            one.works()
            time.sleep(random.uniform(0, 0.1))
            assert cluster.home.run("sh", "-c", f"kill -9 {one.pid}").returncode == 0
            assert "status 137" in one.end(20)
            until("its guest has gone", lambda: one.host_pids() == [])
            assert made_once(one, MANY)
            runs = [cluster.place(name).root / "run" / "farhome" for name in ("n1", "n2")]
            left = [run / path for run in runs for path in (f"deputy/{one.pid}.sock", f"remote/n1-{one.pid}.sock")]
            until("no socket is left", partial(none_of, left))


def none_of(paths: list[Path]) -> bool:
    return not any(path.exists() for path in paths)
