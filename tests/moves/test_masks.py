"""Calls that wait with a signal mask of their own, or for a signal: made away, and all that a kernel promises of them is so there, too."""

from __future__ import annotations

import itertools

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster

pytestmark = pytest.mark.timeout(120)

MOVES = [4, pytest.param(12, marks=pytest.mark.soak)]


def stays_and_keeps_promises(cluster: Cluster, how: str) -> None:
    """Checks that the program does not come home by itself, whichever call it waits in."""
    with Running(cluster, "masked", how) as masked:
        masked.works(30)
        masked.moved("n2")
        masked.works(30)
        masked.works(30)
        assert masked.where() == "n2"
        assert enough(masked) == "status 0\n"


def test_a_mask_for_the_time_of_a_call_is_in_force_away(cluster: Cluster) -> None:
    stays_and_keeps_promises(cluster, "")


@pytest.mark.parametrize("moves", MOVES)
def test_the_promises_hold_while_the_process_moves(cluster: Cluster, moves: int) -> None:
    with Running(cluster, "masked", "") as masked:
        done = sum(masked.move(target).done for target in itertools.islice(itertools.cycle(["n2", "n3", HOME]), moves))
        assert enough(masked) == "status 0\n"
        assert done > moves // 2


@pytest.mark.parametrize("what", ["signals", "ticks"])
@pytest.mark.parametrize("moves", MOVES)
def test_a_call_that_does_not_wait_finds_pending_signals_during_moves(cluster: Cluster, moves: int, what: str) -> None:
    """signals: sent to the process. ticks: signals that report how often their timers have expired."""
    with Running(cluster, "takes", what) as takes:
        done = sum(takes.move(target).done for target in itertools.islice(itertools.cycle(["n2", "n3", "n2", HOME]), moves))
        assert enough(takes) == "status 0\n"
        assert done > moves // 2


@pytest.mark.parametrize("how", ["kill", "queue", "timer"])
@pytest.mark.parametrize("runs", [1, pytest.param(33, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_a_signal_for_the_process_comes_to_another_thread_during_moves(cluster: Cluster, how: str, runs: int) -> None:
    for _ in range(runs):
        with Running(cluster, "another", how) as another:
            for target in itertools.islice(itertools.cycle(["n2", "n3", HOME]), 9):
                if another.process.poll() is not None:
                    break
                another.move(target)
            assert enough(another) == "status 0\n"
            assert another.lines()


def enough(masked: Running) -> str:
    """Ends it. Returns what it has said."""
    (masked.directory / "enough").touch()
    return masked.end()
