"""Nodes that die and links that break, before, during and after a move."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.conftest import LINK_TIMEOUT
from tests.faults.running import HOME, Running, log_lines
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def cluster(kept: Cluster) -> Cluster:
    return kept


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_target_dies_before_commit(breakable: Cluster) -> None:
    """The process goes on at home, and mosps says why it is there."""
    with Running(breakable, "counter", "lines 600 50 600") as counter, ThreadPoolExecutor(1) as pool:
        counter.works()
        move = pool.submit(counter.move, "n2")
        until("the move is under way", lambda: (counter.shown() or {}).get("state") == "leaving", every=0.001)
        breakable.lab.kill("n2")
        done = move.result(60)
        assert not done.done
        assert "n2" in done.said
        assert counter.where() == HOME
        counter.works()
        shown = counter.shown()
        assert shown is not None
        assert "n2" in str(shown["why"]), shown
        counter.moved("n3")
        counter.works()
        said = counter.end()
        assert "counted 600" in said
        assert said.endswith("status 0\n")


@pytest.mark.soak
def test_link_cut_for_five_seconds(cluster: Cluster) -> None:
    """It goes on, and every call was made exactly once."""
    count = 30000
    with Running(cluster, "appender", f"lines {count} 100") as appender:
        appender.moved("n2")
        appender.works()
        cluster.lab.cut(HOME, "n2", 5)
        before = time.monotonic()
        appender.works(seconds=40)
        appender.works(seconds=40)
        print(f"wrote again {time.monotonic() - before:.1f} s after the cut")
        said = appender.end(120)
        assert said == f"appended {count}\nstatus 0\n"
        assert appender.lines() == [str(number) for number in range(count)]


@pytest.mark.parametrize("count", [5000, pytest.param(40000, marks=pytest.mark.soak)])
def test_link_cut_again_and_again_while_calls_are_under_way(cluster: Cluster, count: int) -> None:
    with Running(cluster, "appender", f"lines {count} 700") as appender:  # so slow that it has not ended before it is away
        appender.moved("n2")
        for _ in range(3):
            appender.works(seconds=40)
            cluster.lab.cut(HOME, "n2", 1)
        said = appender.end(120)
        assert said == f"appended {count}\nstatus 0\n"
        assert appender.lines() == [str(number) for number in range(count)]


def test_link_cut_while_a_call_blocks(cluster: Cluster) -> None:
    """A read that waits through the cut gets its data, once."""
    with Running(cluster, "counter", "lines 100 100 4") as counter:
        counter.moved("n2")
        counter.works()
        cluster.lab.cut(HOME, "n2", 5)
        counter.works(seconds=40)
        counter.moved("n3")
        counter.works()
        counter.moved(HOME)
        assert "counted 100" in counter.end()
        assert [line.split()[0] for line in counter.lines()] == [str(number) for number in range(100)]


def test_away_node_dies(breakable: Cluster) -> None:
    """The process ends at home with SIGKILL, with one clear line of where and when; nothing else is harmed."""
    with (
        Running(breakable, "counter", "lines 10000 50 4") as lost,
        Running(breakable, "counter", "lines 400 50 4") as elsewhere,
        Running(breakable, "counter", "lines 400 50 4") as at_home,
    ):
        lost.moved("n2")
        elsewhere.moved("n3")
        lost.works()
        breakable.lab.kill("n2")
        before = time.monotonic()
        said = lost.end(LINK_TIMEOUT + 30)
        print(f"ended at home {time.monotonic() - before:.1f} s after the death of n2: {said!r}")
        assert "status 137" in said
        words = ("lost", "died", "ended")
        print(*until("it is said", lambda: [
            line for line in log_lines(breakable, HOME, "n2", str(lost.pid)) if any(word in line for word in words)
        ]), sep="\n")  # fmt: skip
        elsewhere.works()
        at_home.works()
        elsewhere.moved(HOME)
        at_home.moved("n3")
        for other in (elsewhere, at_home):
            assert "counted 400" in other.end()


def test_killed_at_home(cluster: Cluster) -> None:
    """kill -9 at home: its shell sees 137, and the guest is gone at once."""
    with Running(cluster, "counter", "lines 10000 50 64") as counter:
        counter.moved("n2")
        counter.works()
        assert len(counter.host_pids()) == 2
        before = time.monotonic()
        assert cluster.home.run("kill", "-9", str(counter.pid)).returncode == 0
        until("the guest is gone", lambda: not counter.host_pids(), seconds=5, every=0.005)
        print(f"guest gone after {(time.monotonic() - before) * 1000:.0f} ms")
        assert "status 137" in counter.end(10)
        assert until("mosps forgets it", lambda: counter.shown() is None)


@pytest.mark.parametrize(("signal", "status"), [("TERM", 143), ("SEGV", 139), ("USR1", 138)])
def test_a_fatal_signal_at_home_ends_the_guest(cluster: Cluster, signal: str, status: int) -> None:
    with Running(cluster, "counter", "lines 10000 50 4") as counter:
        counter.moved("n2")
        counter.works()
        assert cluster.home.run("kill", f"-{signal}", str(counter.pid)).returncode == 0
        assert f"status {status}" in counter.end(10)
        until("the guest is gone", lambda: not counter.host_pids(), seconds=5)


def test_guest_killed_on_its_node(cluster: Cluster) -> None:
    """A user of the away node kills the guest: that is death by SIGKILL at home, too, and never a hang."""
    with Running(cluster, "counter", "lines 10000 50 4") as counter:
        counter.moved("n2")
        counter.works()
        n2 = str(cluster.place("n2").root)
        inside = [pid for pid in counter.host_pids() if pid in pids_of_node(n2, counter.host_pids())]
        assert inside
        for number in [node_pid(pid) for pid in inside]:  # the end of one may be that of another
            cluster.place("n2").run("sh", "-c", f"kill -9 {number}")
        assert "status 137" in counter.end(20)


def pids_of_node(root: str, pids: list[int]) -> list[int]:
    """Returns those of the pids (of the host machine) that live on the node with this root directory."""
    from pathlib import Path

    shown = {int(path.name) for path in Path(root, "proc").glob("[0-9]*")}
    return [pid for pid in pids if node_pid(pid) in shown]


def node_pid(pid: int) -> int:
    """The number that the node sees for one of the machine's processes: the second of NSpid."""
    from pathlib import Path

    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid:"))
    return int(line.split()[2])
