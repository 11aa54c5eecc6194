"""Nodes that are stopped, starved or cut off for minutes, as farhome is shipped: no process is lost, and all go on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from lab import cgroups
from tests.faults.running import HOME, Running, log_lines
from tests.moves.cluster import Cluster, until

pytestmark = [pytest.mark.timeout(570)]
LINES, DELAY_US = 3000, 15_000
MANY = 11_000
"""Lines that two minutes and more take."""


@contextmanager
def lab(configuration: str = "") -> Iterator[Cluster]:
    cluster = Cluster(3, configuration=f"{configuration}[balance]\nenabled = false\n")
    try:
        yield cluster
    finally:
        cluster.down()


def started(cluster: Cluster, where: str, lines: int = LINES) -> Running:
    running = Running(cluster, "appender", f"lines {lines} {DELAY_US}")
    running.works(30)
    if where != HOME:
        running.moved(where)
        running.works(30)
    return running


def shown(running: Running) -> str:
    row = running.shown()
    return str(row["state"]) if row is not None else "none"


def lose_nothing(trouble: Callable[[Cluster, Running], None], lines: int = LINES) -> None:
    """Two processes that are away, on two nodes, live through it, do each call once, and come home."""
    with lab() as cluster, started(cluster, "n2", lines) as one, started(cluster, "n3", lines) as other:
        trouble(cluster, one)
        for running in (one, other):
            running.works(120)
        until("it is shown as whole again", lambda: shown(one) == "away", seconds=60)
        one.moved(HOME)
        for running in (one, other):
            assert running.end(300) == f"appended {lines}\nstatus 0\n"
            assert running.lines() == [str(number) for number in range(lines)]
        for name in cluster.names:
            assert not log_lines(cluster, name, "is lost")
            assert not log_lines(cluster, name, "Traceback")


def send_all(cluster: Cluster, number: signal.Signals) -> None:
    for pid in cgroups.processes(cluster.lab.name):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.soak
def test_nodes_that_are_stopped_for_a_minute() -> None:
    def stop(cluster: Cluster, _: Running) -> None:
        send_all(cluster, signal.SIGSTOP)
        time.sleep(60)
        send_all(cluster, signal.SIGCONT)

    lose_nothing(stop)


@pytest.mark.soak
def test_nodes_that_are_cut_off_for_two_minutes() -> None:
    def cut(cluster: Cluster, one: Running) -> None:
        cluster.lab.cut(HOME, "n2", 120)
        cluster.lab.cut(HOME, "n3", 120)
        time.sleep(115)
        assert shown(one) == "cut off"

    lose_nothing(cut)


@pytest.mark.soak
def test_a_node_that_is_starved_for_two_minutes() -> None:
    def starve(cluster: Cluster, _: Running) -> None:
        cgroups.create(cluster.lab.name, "n2", 0.02)
        time.sleep(120)
        cgroups.create(cluster.lab.name, "n2", 1.0)

    lose_nothing(starve, MANY)


def test_a_process_whose_node_is_not_heard_is_shown_and_stands_still_and_goes_on() -> None:
    """Its node, which by itself would wait for one second, waits for as long as its home does."""
    with lab() as cluster:
        file = cluster.place("n2").root / "etc/farhome/node.toml"
        file.write_text("link_timeout = 1\n" + file.read_text())
        cluster.lab.node("n2").ask_mosd("reload")
        with started(cluster, "n2") as running:
            cluster.lab.cut(HOME, "n2")
            until("it is shown", lambda: shown(running) == "cut off", seconds=30)
            row = running.shown()
            assert row is not None and row["where"] == "n2" and "not heard since" in row["why"]
            until("its node has it stand still", lambda: log_lines(cluster, "n2", "its home is not heard"), seconds=40)
            cluster.lab.heal(HOME, "n2")
            running.works(30)
            until("it is shown as whole", lambda: shown(running) == "away", seconds=20)
            row = running.shown()
            assert row is not None and row["why"] == ""
            running.moved(HOME)


def test_a_process_is_lost_loudly_and_by_the_word_of_its_home() -> None:
    with lab("link_timeout = 3\n") as cluster, started(cluster, "n2") as running:
        cluster.lab.cut(HOME, "n2")
        assert "is lost" in running.end(60) or running.said.endswith("status 137\n")
        until("it is said", lambda: log_lines(cluster, HOME, "CRITICAL", "is lost"), seconds=10)
        until("nothing of it is left there", lambda: not running.host_pids(), seconds=40)
