"""Stopped processes (SIGSTOP, Ctrl-Z) leave, hop and come home, stay stopped meanwhile, and go on where they are then."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until
from tests.programs.build import program

pytestmark = pytest.mark.timeout(120)


class Stopped:
    """The child of one `stopped`, whose parent stays at home."""

    def __init__(self, parent: Running) -> None:
        self.parent, self.cluster = parent, parent.cluster
        line = until("the child is there", parent.lines)[0]
        self.pid = int(line.split()[1])
        until("it is listed", lambda: self._row() is not None)

    def _row(self) -> dict[str, object] | None:
        shown = self.cluster.lab.node(HOME).ask_mosd("ps", all=True)["processes"]
        return next((row for row in shown if row["pid"] == self.pid), None)

    def where(self) -> str:
        row = self._row()
        assert row is not None, self.parent.said
        return self.cluster.where(row)

    def move(self, target: str) -> None:
        move = self.cluster.migrate(self.pid, self.where(), target)
        assert move.done, str(move)

    def send(self, number: int) -> None:
        assert self.cluster.home.run("sh", "-c", f"kill -{number} {self.pid}").returncode == 0

    def state(self) -> str:
        lines = (self.cluster.home.root / "proc" / str(self.pid) / "status").read_text().splitlines()
        return next(line.split()[1] for line in lines if line.startswith("State"))

    def reported(self, *lines: str) -> None:
        """Waits until waitpid has reported exactly these to the parent, after the first line."""
        until(f"{lines}; {self.parent.lines()}", lambda: self.parent.lines()[1:] == [*lines])

    def stop(self, number: int = signal.SIGSTOP) -> None:
        self.send(number)
        until("it is stopped", lambda: self.parent.lines()[-1] == f"stopped by {int(number)}")

    def stands(self) -> None:
        """Checks that no thread of it runs, anywhere, for a while."""
        assert self.state() in "Tt"
        before = self.counted()
        with pytest.raises(TimeoutError):
            until("it counts", lambda: self.counted() != before, seconds=0.15)

    def counted(self) -> str:
        path = self.parent.directory / "count"
        return path.read_text() if path.exists() else ""

    def go(self) -> None:
        (self.parent.directory / "go").touch()


@contextmanager
def stopped(cluster: Cluster, way: str) -> Iterator[Stopped]:
    with Running(cluster, "stopped", way) as parent:
        yield Stopped(parent)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGSTOP, marks=pytest.mark.soak), signal.SIGTSTP])
def test_a_stopped_process_leaves_hops_and_comes_home_and_goes_on_where_it_is(cluster: Cluster, number: int) -> None:
    with stopped(cluster, "counts") as one:
        until("it counts", one.counted)
        heard: list[str] = []
        for targets in (["n2"], ["n3", HOME]):
            one.stop(number)
            for target in targets:
                one.move(target)
                assert one.where() == target
                one.stands()
            heard.append(f"stopped by {int(number)}")
            one.reported(*heard)
            before = one.counted()
            one.send(signal.SIGCONT)
            heard.append("continued")
            one.reported(*heard)
            until("it goes on", lambda before=before: one.counted() != before)  # type: ignore[misc]
            assert one.where() == targets[-1]
        one.send(signal.SIGUSR1)
        one.go()
        one.reported(*heard, "ended with 7")


@pytest.mark.parametrize("way", ["waits", pytest.param("sleeps", marks=pytest.mark.soak)])
def test_a_process_stopped_in_a_call_continues_in_that_call(cluster: Cluster, way: str) -> None:
    with stopped(cluster, way) as one:
        one.stop()
        for target in ("n2", "n3", HOME, "n2") if way == "sleeps" else ("n2",):
            one.move(target)
            assert one.state() in "Tt"
        one.send(signal.SIGCONT)
        one.reported(f"stopped by {int(signal.SIGSTOP)}", "continued")
        one.stop()
        one.move(HOME)
        one.send(signal.SIGUSR1)
        one.send(signal.SIGCONT)
        one.reported(*(f"stopped by {int(signal.SIGSTOP)}", "continued") * 2)  # which waitpid does not report of one that has ended
        if way == "waits":
            fifo = os.open(one.parent.directory / "fifo", os.O_RDWR | os.O_NONBLOCK)
            os.write(fifo, b"x")
            one.reported(*(f"stopped by {int(signal.SIGSTOP)}", "continued") * 2, "ended with 7")
            os.close(fifo)
        one.go()
        one.reported(*(f"stopped by {int(signal.SIGSTOP)}", "continued") * 2, "ended with 7")


def test_signals_wait_until_it_goes_on_and_kill_does_not(cluster: Cluster) -> None:
    with stopped(cluster, "counts") as one:
        until("it counts", one.counted)
        one.stop()
        one.move("n2")
        one.send(signal.SIGUSR1)
        one.stands()
        one.move("n3")
        one.stands()
        assert one.counted().split()[1] == "0"
        one.send(signal.SIGCONT)
        until("it has handled it", lambda: one.counted().split()[1] == str(int(signal.SIGUSR1)))
        one.stop()
        one.move("n2")
        one.send(signal.SIGKILL)
        one.reported("stopped by 19", "continued", "stopped by 19", "killed by 9")
        until("n2 has no guest", lambda: not cluster.guests("n2"))


def test_a_thread_that_stops_its_process_does_nothing_before_it_goes_on(cluster: Cluster) -> None:
    with stopped(cluster, "orders") as one:
        one.move("n2")
        before = len(one.parent.lines())
        until("it stops itself", lambda: len(one.parent.lines()) > before + 5, seconds=40)
        one.go()
        until("it ends", lambda: one.parent.lines()[-1] == "ended with 7")
        assert set(one.parent.lines()[1:-1]) == {"in order"}


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.soak)])
def test_a_process_continued_during_a_move_runs(cluster: Cluster, rounds: int) -> None:
    with stopped(cluster, "counts") as one:
        until("it counts", one.counted)
        for target in ("n2", "n3", HOME) * rounds:
            one.stop()
            with cluster.home.popen(["sh", "-c", f"sleep 0.0{len(one.parent.lines()) % 9}; kill -CONT {one.pid}"], "") as other:
                one.move(target)
                assert other.wait(20) == 0
            before = one.counted()
            until("it goes on", lambda before=before: one.counted() != before)  # type: ignore[misc]
            until("the parent is notified", lambda: one.parent.lines()[-1] == "continued")


def test_moscheck_says_that_it_could_move(cluster: Cluster) -> None:
    with stopped(cluster, "counts") as one:
        one.stop()
        assert "could move" in cluster.home.run("moscheck", str(one.pid)).stdout


def test_a_stop_ends_the_calls_that_it_ends_at_home(cluster: Cluster, tmp_path: Path) -> None:
    """With EINTR, as signal(7) describes; others go on."""
    (tmp_path / "go").touch()
    expected = subprocess.run([program("halted")], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=90).stdout
    with Running(cluster, "halted", "") as halted:
        until("it waits", halted.lines)
        halted.moved("n2")
        (halted.directory / "go").touch()
        assert halted.end() == f"{expected}status 0\n"
