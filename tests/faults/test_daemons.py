"""mosd killed and started again on either side while processes are away: they go on, and can still be moved."""

from __future__ import annotations

import signal

import pytest

from tests.faults.running import HOME, Running, log_lines
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def cluster(kept: Cluster) -> Cluster:
    return kept


@pytest.mark.parametrize("side", [pytest.param(HOME, marks=pytest.mark.soak), "n2"], ids=["at home", "where it is away"])
def test_mosd_killed_and_restarted(cluster: Cluster, side: str) -> None:
    with Running(cluster, "counter", "lines 300 50 8") as counter:
        counter.moved("n2")
        counter.works()
        node = cluster.lab.node(side)
        node.stop_mosd(signal.SIGKILL)
        counter.works()
        node.start_mosd()
        shown = until("mosps shows it again", counter.shown)
        assert cluster.where(shown) == "n2"
        counter.works()
        until("it can be moved on", lambda: counter.move("n3").done, seconds=15, every=0.5)
        counter.works()
        node.stop_mosd(signal.SIGKILL)
        node.start_mosd()
        until("it can come home", lambda: counter.move(HOME).done, seconds=15, every=0.5)
        counter.works()
        until("it can go out again", lambda: counter.move("n2").done, seconds=15, every=0.5)
        said = counter.end()
        assert "counted 300" in said
        assert said.endswith("status 0\n")


def test_without_mosd_a_program_runs_at_home(cluster: Cluster) -> None:
    """The program gives one line on standard error, and its own output and status."""
    cluster.lab.node(HOME).stop_mosd(signal.SIGKILL)
    done = cluster.home.run("mosrun", "sh", "-c", "echo fine; exit 3")
    assert (done.returncode, done.stdout) == (3, "fine\n")
    assert len(done.stderr.splitlines()) == 1
    cluster.lab.node(HOME).start_mosd()
    done = cluster.home.run("mosrun", "sh", "-c", "echo fine; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "fine\n", "")


def test_a_killed_deputy_ends_its_process_and_why_explains_it(cluster: Cluster) -> None:
    """The process ends as by SIGKILL, with a line in the log; on its node, nothing is left of it."""
    with Running(cluster, "counter", "lines 300 50 8") as counter:
        counter.moved("n2")
        counter.works()
        found = cluster.home.run("pgrep", "-f", f"deputy --pid {counter.pid} ").stdout.split()
        assert cluster.home.run("kill", "-KILL", *found).returncode == 0
        assert counter.end().endswith("status 137\n")
        until(
            "the log reports the loss", lambda: log_lines(cluster, HOME, f"process {counter.pid} is lost", "deputy died while it was on n2")
        )
        assert "deputy died" in cluster.home.run("mosctl", "why", str(counter.pid)).stdout
        until("the guest is gone", lambda: not counter.host_pids(), seconds=30)


def test_mosd_dies_while_migrate_waits(cluster: Cluster) -> None:
    """migrate says so in one sentence; the process is whole, wherever the move had come to."""
    with Running(cluster, "counter", "lines 200 50 150") as counter:
        counter.works()
        waiting = cluster.home.popen(["migrate", str(counter.pid), "n2"], "", stdout=-1, stderr=-1)
        until("the move is under way", lambda: (counter.shown() or {}).get("state") == "leaving", every=0.001)
        cluster.lab.node(HOME).stop_mosd(signal.SIGKILL)
        output, errors = waiting.communicate(timeout=30)
        assert waiting.returncode not in (0, None) or output
        assert b"Traceback" not in errors
        assert len(errors.splitlines()) <= 1
        cluster.lab.node(HOME).start_mosd()
        counter.works(30)
        if counter.where() == HOME:
            until("n2 keeps no place for it", lambda: not cluster.guests("n2"), seconds=8)
        assert "counted 200" in counter.end()


def test_a_process_that_ended_and_waits_for_its_parent_is_said_to_have_ended(cluster: Cluster) -> None:
    parent = cluster.home.popen(["sh", "-c", "mosrun -J short sleep 0.5 & echo $!; exec sleep 60"], "", stdout=-1)
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        stat = cluster.home.root / "proc" / str(pid) / "stat"
        until("it is a zombie", lambda: ") Z " in stat.read_text())
        until("mosd has noticed", lambda: not cluster.processes("short"))
        done = cluster.home.run("migrate", str(pid), "n2")
        assert done.returncode == 75
        assert "it has ended" in done.stderr
    finally:
        parent.kill()
        parent.communicate(timeout=10)


def test_a_guest_that_its_home_does_not_take_back_is_reported(cluster: Cluster) -> None:
    """All are sent home at once, and the time that they have is for each of them."""
    away = cluster.place("n2")
    with Running(cluster, "counter", "lines 300 50 8") as willing, Running(cluster, "counter", "lines 300 50 8") as stuck:
        willing.moved("n2")
        stuck.moved("n2")
        assert away.run("mosctl", "expel", "--within", "-1").returncode == 64
        deputy = cluster.home.run("pgrep", "-f", f"deputy --pid {stuck.pid} ").stdout.split()
        assert cluster.home.run("kill", "-STOP", *deputy).returncode == 0
        done = away.run("mosctl", "expel", "--within", "1.5")
        assert cluster.home.run("kill", "-CONT", *deputy).returncode == 0
        assert (done.returncode, done.stdout) == (75, f"{HOME}-{willing.pid} went home\n")
        assert done.stderr == f"mosctl: {HOME}-{stuck.pid} is still here: its home has not taken it back within 1.5 s\n"
        until("it has come home meanwhile", lambda: stuck.where() == HOME)
        stuck.works()
        willing.works()
