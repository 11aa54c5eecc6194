"""Blocked signals that a program waits for are delivered with their sender, also while the process is away."""

from __future__ import annotations

import itertools
import time

import pytest

from tests.faults.running import Running
from tests.moves.cluster import HOME, Cluster, until

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("how", ["wait", "fd", "ppoll", pytest.param("pselect", marks=pytest.mark.soak)])
@pytest.mark.parametrize("early", [True, False], ids=["sent before it is taken", "sent while it waits"])
def test_a_blocked_signal_comes_when_it_is_wanted(cluster: Cluster, how: str, early: bool) -> None:
    moves = 0
    with Running(cluster, "taker", f"3 {how}") as taker:
        for number in range(3):
            until("it computes", lambda number=number: taker.lines().count("ready") == number + 1)  # type: ignore[misc]
            if taker.where() != "n2":
                taker.moved("n2")
                moves += 1
            if not early:
                until("it waits", taker.waits, seconds=20)
            # A shell that stays until the signal was sent: its own kill, so that the sender has a pid.
            assert cluster.home.run("sh", "-c", f"kill -USR1 {taker.pid}").returncode == 0
            until("it has taken the signal", lambda number=number: len(taker.lines()) >= 2 * number + 2, seconds=20)  # type: ignore[misc]
            assert taker.lines()[2 * number + 1] == "signal 10 code 0, sender known"
        assert taker.end() == "status 0\n"
        assert moves == 1  # it did not come home for any


@pytest.mark.parametrize("calls", [25, pytest.param(150, marks=pytest.mark.soak)])
def test_a_signal_that_comes_while_a_call_is_on_its_way_ends_it(cluster: Cluster, calls: int) -> None:
    with Running(cluster, "pushed", "10000 30") as pushed:  # more than it gets done
        pushed.works()
        pushed.moved("n2")
        before = len(pushed.lines())
        until("there were many calls", lambda: len(pushed.lines()) >= before + calls, seconds=60)
        assert missed(pushed, before) <= 1


def test_a_signal_that_comes_during_a_move_ends_the_call(cluster: Cluster) -> None:
    """The process stands still in a call that waits; the signal finds it in that call and not before it, here or there."""
    with Running(cluster, "pushed", "10000 250") as pushed:
        pushed.works()
        targets = itertools.cycle(["n2", "n3", "n1"])
        deadline = time.monotonic() + 60
        while len(pushed.lines()) < 60 and time.monotonic() < deadline:
            pushed.move(next(targets))
        assert len(pushed.lines()) >= 60
        assert missed(pushed) <= 2


def test_a_signal_to_itself_is_there_before_the_call_has_ended(cluster: Cluster) -> None:
    with Running(cluster, "sender", "600") as sender:
        sender.works()
        sender.moved("n2")
        (sender.directory / "enough").touch()
        assert sender.end(90) == "missed 0\nstatus 0\n"


STOPS = """
import os, random, signal, sys, time
time.sleep(random.uniform(0, 0.15))
os.kill(int(sys.argv[1]), signal.SIGSTOP)
time.sleep(random.uniform(0, 0.006))
os.kill(int(sys.argv[1]), signal.SIGCONT)
"""


@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=pytest.mark.soak)])
def test_a_stop_that_is_continued_while_it_moves_is_over(cluster: Cluster, rounds: int) -> None:
    """Wherever a stop signal is during the move (caught, carried or on its way): a process that was continued last runs."""
    with Running(cluster, "counter", "lines 50000 5 1") as counter:
        counter.works()
        done = 0
        for target in ["n2", "n3", "n1"] * rounds:
            source = counter.where()
            stopper = cluster.home.popen(["/usr/bin/python3", "-S", "-c", STOPS, str(counter.pid)], "")
            done += target != source and cluster.migrate(counter.pid, source, target).done  # may be refused: it is stopped
            assert stopper.wait(20) == 0
            counter.works()
        assert done > rounds


@pytest.mark.parametrize("stops", [3, pytest.param(8, marks=pytest.mark.soak)])
def test_a_stop_holds_a_program_whose_signals_come_from_itself(cluster: Cluster, stops: int) -> None:
    """Its supervisor there sees it stop for signals all the time."""
    with Running(cluster, "faulting", "600") as faulting:
        faulting.moved("n2")
        for _ in range(stops):
            assert cluster.home.run("sh", "-c", f"kill -STOP {faulting.pid}").returncode == 0
            until("it stands still", faulting.stands)
            assert faulting.stands()
            assert cluster.home.run("sh", "-c", f"kill -CONT {faulting.pid}").returncode == 0
            until("it goes on", lambda: not faulting.stands())


def missed(pushed: Running, before: int = 0) -> int:
    """Counts signals that came just before the call that they should have ended, after the first `before` rounds: a race that programs
    have at home, too, hardly ever."""
    assert pushed.process.poll() is None, pushed.said
    lines = pushed.lines()
    return int(lines[-1]) - (int(lines[before - 1]) if before else 0)


@pytest.mark.parametrize("rounds", [300, pytest.param(7000, marks=pytest.mark.soak)])
def test_a_timer_that_is_stopped_sends_nothing_more(cluster: Cluster, rounds: int) -> None:
    """A tick that has come as it is stopped is handled before the call that stops it is over, wherever the process is."""
    with Running(cluster, "ticker", str(rounds)) as ticker:
        ticker.works()
        ticker.moved("n2")
        assert ticker.end(110) == "0 after timer_delete\n0 after timer_settime\n0 after setitimer\n0 after alarm\nstatus 0\n"


@pytest.mark.parametrize("rounds", [1, pytest.param(5, marks=pytest.mark.soak)])
def test_a_trap_and_a_stop_that_come_at_once_are_both_had(cluster: Cluster, rounds: int) -> None:
    """Neither can be kept out of a thread that stands still for a move: it has both in hand."""
    with Running(cluster, "trapped", "") as trapped:
        trapped.works()
        for target in ("n2", "n3", HOME) * rounds:
            trapped.moved(target)
            trapped.works(30)
        (trapped.directory / "go").touch()
        assert trapped.end() == "status 0\n"
        assert trapped.lines()[-1] == "ended"
