"""Seccomp filters of a program's own judge its calls wherever it is, and away as at home."""

from __future__ import annotations

import re
import time

import pytest

from tests.faults.running import Running
from tests.moves.cluster import HOME, Cluster, until

pytestmark = pytest.mark.timeout(150)
MOVES = {"natively": (), "away": ("n2",), "moved": ("n2", "n3", HOME, "n2")}


def said_by(cluster: Cluster, how: str, manner: str) -> str:
    """Returns the output of the program and its shell; it is moved as `manner` says before it makes the forbidden calls."""
    with Running(cluster, "filtered", how, mosrun="ulimit -c 0; mosrun -L") as one:
        until("it is ready", lambda: "ready" in one.said)
        for target in MOVES[manner]:
            one.moved(target)
        (one.directory / "go").touch()
        if how == "threads":
            until("it has done half", lambda: "a new one" in one.said)
            (one.directory / "on").touch()
        return re.sub(r"line \d+: +\d+ ", "line: PID ", one.end()).replace(one.name, "NAME")


def is_the_same(cluster: Cluster, how: str, words: str, manners: tuple[str, ...] = ("away", "moved")) -> None:
    natively = said_by(cluster, how, "natively")
    assert words in natively, natively
    for manner in manners:
        assert said_by(cluster, how, manner) == natively, manner


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("many", "a program that it executes: -1 29"),
        ("threads", "they had 0 0"),
        ("kill", "status 159"),
        ("thread", "status 159"),
        ("trap", "status 159"),
        ("blocked", "status 159"),
    ],
)
def test_filters_judge_calls_away_as_at_home(cluster: Cluster, how: str, words: str) -> None:
    is_the_same(cluster, how, words)


def test_a_sleep_continues_although_its_filter_forbids_restarting_it(cluster: Cluster) -> None:
    with Running(cluster, "filtered", "white") as one:
        until("it is ready", lambda: "ready" in one.said)
        (one.directory / "go").touch()
        begun = time.monotonic()
        while one.process.poll() is None and time.monotonic() - begun < 60:
            for target in ("n2", "n3", HOME):  # it may end meanwhile
                one.cluster.migrate(one.pid, HOME, target)
        said = one.end()
    assert said == "ready\nslept for as long as it wanted\ngetppid: -1 55\nopen: -1 55\nstatus 0\n"


def test_a_filter_set_away_is_set_at_home_and_goes_along(cluster: Cluster) -> None:
    with Running(cluster, "filtered", "many late") as one:
        until("it is ready", lambda: "ready" in one.said)
        one.moved("n2")
        (one.directory / "go").touch()
        until("its filters are set, at home", lambda: "set" in one.said and one.where() == HOME, seconds=30)
        one.moved("n3")
        (one.directory / "on").touch()
        assert "a child: -1 29" in one.end()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("notify", "asks another process about calls"),
        ("trace", "asks a tracer about calls"),
        ("log", "writes calls to the log of its home"),
        ("logs", "writes to the log of its home"),
    ],
)
def test_a_filter_that_notifies_another_process_keeps_it_at_home(cluster: Cluster, how: str, words: str) -> None:
    with Running(cluster, "filtered", how, mosrun="ulimit -c 0; mosrun -L") as one:
        until("it is ready", lambda: "ready" in one.said)
        said = cluster.home.run("moscheck", str(one.pid)).stdout
        assert words in said, said
        move = one.move("n2")
        assert not move.done and words in move.said
        (one.directory / "go").touch()
        assert one.end().endswith("status 0\n")
