"""A cut of a minute between two halves of a cluster: both go on, no process runs twice, and they join again by themselves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest

from tests.faults.running import HOME, Running, log_lines
from tests.moves.cluster import Cluster, until

HALVES = (("n1", "n2"), ("n3", "n4"))
ALL = {name for half in HALVES for name in half}
CUT = 60.0
LINES = 6000
DELAY_US = 15_000

pytestmark = [pytest.mark.soak, pytest.mark.timeout(420)]


@pytest.fixture(params=[20, 120], ids=["link lost", "link kept"])
def halves(request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, int]]:
    """Four nodes, and for how many seconds a link may be silent."""
    cluster = Cluster(4, configuration=f"link_timeout = {request.param}\n[balance]\nenabled = false\n")
    yield cluster, request.param
    cluster.down()


def seen(cluster: Cluster, at: str) -> tuple[set[str], set[str]]:
    """Returns the present and the dead nodes, as seen by that node."""
    answer = cluster.lab.node(at).ask_mosd("watch")
    return {row["name"] for row in answer["nodes"]}, {one["name"] for one in answer["dead"]}


def knows(cluster: Cluster, at: str, there: tuple[str, ...], dead: tuple[str, ...]) -> bool:
    """Returns whether that node sees exactly these nodes as present and those as dead."""
    return seen(cluster, at) == (set(there), set(dead))


def started(cluster: Cluster, where: str) -> Running:
    appender = Running(cluster, "appender", f"lines {LINES} {DELAY_US}")
    appender.works()
    if where != HOME:
        appender.moved(where)
        appender.works()
    return appender


def test_both_halves_go_on_and_join_again_and_no_process_runs_twice(halves: tuple[Cluster, int]) -> None:
    cluster, link_timeout = halves
    lab = cluster.lab
    until("all know all", lambda: all(seen(cluster, name)[0] == ALL for name in ALL), seconds=30)
    with started(cluster, HOME) as at_home, started(cluster, "n2") as near, started(cluster, "n3") as far:
        programs = (at_home, near, far)
        for one in HALVES[0]:
            for other in HALVES[1]:
                lab.cut(one, other, CUT)
        begun = time.monotonic()
        for half, rest in (HALVES, HALVES[::-1]):
            for name in half:
                until(f"{name} knows of the cut", partial(knows, cluster, name, half, rest), seconds=45)
        print(f"both halves know after {time.monotonic() - begun:.1f} s")
        for one in (at_home, near):
            one.works()
        near.moved(HOME)
        near.works()
        near.moved("n2")
        near.works()
        assert time.monotonic() - begun < CUT - 2, "the cut is over before the halves have shown anything"
        done = lab.node("n3").run(["mosrun", "/bin/true"], timeout=20)
        assert done.returncode == 0
        written = len(far.lines())
        until("the cut is over", lambda: time.monotonic() - begun > CUT, seconds=CUT + 5)
        assert len(far.lines()) == written or link_timeout > CUT

        until("all know all again", lambda: all(seen(cluster, name)[0] == ALL for name in ALL), seconds=60, every=0.1)
        print(f"joined again {time.monotonic() - begun - CUT:.1f} s after the cut")
        assert all(not seen(cluster, name)[1] for name in ALL)
        if link_timeout > CUT:
            far.works(30)
        ended = {one: one.end(240) for one in programs}
    for one in programs:
        lines = one.lines()
        assert lines == [str(number) for number in range(len(lines))], "a line was written twice, or none"
        if one is far and link_timeout < CUT:
            assert ended[one].endswith("status 137\n") and len(lines) < LINES
        else:
            assert ended[one] == f"appended {LINES}\nstatus 0\n"
    until("nothing of them is left", lambda: not any(one.host_pids() for one in programs), seconds=30)
    for name in ALL:
        assert not log_lines(cluster, name, "Traceback")
