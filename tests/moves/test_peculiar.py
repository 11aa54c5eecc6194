"""Settings of a program about itself: they move along, or the process stays at home with a reason; a setting made away takes it home."""

from __future__ import annotations

import os
import time

import pytest

from tests.faults.running import Running
from tests.moves.cluster import HOME, Cluster, until

pytestmark = pytest.mark.timeout(150)
ROUNDS = 4 if os.environ.get("FARHOME_LONG_TESTS") else 2


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("dispatch", "PR_SET_SYSCALL_USER_DISPATCH"),
        ("tsc", "PR_SET_TSC"),
        ("mdwe", "PR_SET_MDWE"),
        ("seal", "mseal"),
        ("user", "its threads have different rights"),
        ("clone", "it shares its memory with process"),
    ],
)
def test_a_process_that_cannot_be_carried_stays_with_a_reason_and_notices_nothing(cluster: Cluster, how: str, words: str) -> None:
    with Running(cluster, "peculiar", f"{how} 60") as one:
        until("it is ready", lambda: "ready" in one.said)
        said = cluster.home.run("moscheck", str(one.pid)).stdout
        assert words in said, said
        for _ in range(3):
            move = one.move("n2")
            assert not move.done
            assert words in move.said
        (one.directory / "end").touch()
        assert one.end() == "ready\nstatus 0\n"


@pytest.mark.parametrize("how", ["trap", "ignored"])
def test_the_action_for_traps_goes_along(cluster: Cluster, how: str) -> None:
    with Running(cluster, "peculiar", f"{how} 60") as one:
        until("it is ready", lambda: "ready" in one.said)
        for target in ("n2", "n3", HOME) * ROUNDS:  # a signal may be on its way to the handler each time
            one.moved(target)
        time.sleep(0.1)  # it checks its state again and again
        (one.directory / "end").touch()
        assert one.end() == "ready\nstatus 0\n"


@pytest.mark.parametrize("how", ["seal", "mdwe", "dispatch"])
def test_a_setting_made_away_takes_it_home(cluster: Cluster, how: str) -> None:
    with Running(cluster, "peculiar", f"{how} 0 late") as one:
        until("it is ready", lambda: "ready" in one.said)
        one.moved("n2")
        (one.directory / "go").touch()
        until("it has come home and is what it is to be", lambda: "set" in one.said and one.where() == HOME, seconds=30)
        assert not one.move("n2").done
        (one.directory / "end").touch()
        assert one.end() == "ready\nset\nstatus 0\n"


def test_a_child_of_vfork_is_waited_for(cluster: Cluster) -> None:
    with Running(cluster, "peculiar", "'vfork and on' 2") as one:
        until("it is ready", lambda: "ready" in one.said)
        one.moved("n2")  # when the child has executed
        one.moved(HOME)
        (one.directory / "end").touch()
        assert one.end() == "ready\nstatus 0\n"


def test_a_child_of_vfork_that_stays_is_named(cluster: Cluster) -> None:
    with Running(cluster, "peculiar", "vfork 60") as one:
        until("it is ready", lambda: "ready" in one.said)
        until("both are listed", lambda: len(cluster.processes(one.job)) == 2)
        child = next(row["pid"] for row in cluster.processes(one.job) if row["pid"] != one.pid)
        move = cluster.migrate(child, HOME, "n2")
        assert not move.done
        assert f"until process {child} executes a program (vfork)" in move.said
        (one.directory / "go").touch()
        assert one.end() == "ready\nstatus 0\n"
