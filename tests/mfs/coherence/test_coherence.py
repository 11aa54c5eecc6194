"""No actor sees old data, sizes, modes or names: two other nodes and home, ordered by pipes, memory and signals; also during failures."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from lab import Lab
from tests.mfs.coherence.contests import SHARED, WON_BY_ONE, contest
from tests.mfs.coherence.controller import Coherence, Place, Report
from tests.mfs.coherence.faults import during
from tests.mfs.exports import EXPORTS, running, until_mounted

pytestmark = pytest.mark.timeout(120)
SOAK = pytest.mark.soak
ROUNDS = [pytest.param(100), pytest.param(10_000, marks=[SOAK, pytest.mark.timeout(900)])]
SAMPLE = ("append", "count")
EPISODES = [pytest.param(1), pytest.param(20, marks=[SOAK, pytest.mark.timeout(900)])]


@contextlib.contextmanager
def actors(lab: Lab, user: str | None = None) -> Iterator[Coherence]:
    """Programs at home and on both other nodes, on a directory of their own."""
    home, directory = lab.node("n1"), f"{EXPORTS}/{os.urandom(4).hex()}"
    home.run(["mkdir", directory], check=True)
    home.run(["chmod", "777", directory], check=True)
    places = [Place("home", directory, home, user), *(Place(name, f"/mfs/n1{directory}", lab.node(name), user) for name in ("n2", "n3"))]
    for place in places[1:]:
        assert place.node is not None
        until_mounted(place.node, home)
    with Coherence(places, maps=True) as coherence:
        print("seed", coherence.report.seed)
        yield coherence


def judge(report: Report) -> None:
    print(report.sentence())
    assert not report.stale, "\n".join(map(str, report.stale))
    assert not report.failures, "\n".join(report.failures)


@pytest.mark.parametrize("user", [None, pytest.param("farhome-a", marks=SOAK)])
@pytest.mark.parametrize("rounds", ROUNDS)
def test_no_actor_sees_old_data(mfs_lab: Lab, rounds: int, user: str | None) -> None:
    with actors(mfs_lab, user) as coherence:
        assert coherence.attributes, "there are no extended attributes"
        judge(coherence.run(rounds))


@pytest.mark.parametrize("name", [pytest.param(one, marks=[] if one in SAMPLE else [SOAK]) for one in (*WON_BY_ONE, *SHARED)])
def test_a_contest_has_one_winner(mfs_lab: Lab, name: str) -> None:
    with actors(mfs_lab) as coherence:
        assert contest(coherence, name) == []
        judge(coherence.run(10))


@pytest.mark.parametrize("episodes", EPISODES)
@pytest.mark.parametrize("away", [1, pytest.param(2, marks=SOAK)])
def test_a_cut_link_gives_errors_and_nothing_wrong(mfs_lab: Lab, away: int, episodes: int) -> None:
    with actors(mfs_lab) as coherence:
        name = coherence.actors[away].place.name
        for _ in range(episodes):
            coherence.run(10)
            during(coherence, {away}, 6, lambda: mfs_lab.cut("n1", name), lambda: print(mfs_lab.heal("n1", name), "healed"))
        coherence.run(20)
        judge(coherence.report)


@pytest.mark.parametrize("episodes", EPISODES)
def test_a_server_that_is_killed_gives_errors_and_nothing_wrong(mfs_lab: Lab, episodes: int) -> None:
    home = mfs_lab.node("n1")

    def kill() -> None:
        for pid in running(home, "mfs-server"):
            os.kill(pid, signal.SIGKILL)

    with actors(mfs_lab) as coherence:
        for _ in range(episodes):
            coherence.run(10)
            during(coherence, {1, 2}, 10, kill, lambda: None)
        coherence.run(20)
        judge(coherence.report)
