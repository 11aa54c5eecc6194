"""A signal that comes while a process moves ends the call that a thread was just making, as it would have at home."""

from __future__ import annotations

import pytest

from tests.faults.running import HOME, Running
from tests.faults.stops import Stop
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(300)

WAITS = 8
"""Calls that the program makes in turn."""


def signalled(process: Running, target: str, *options: str) -> None:
    """It begins to move. When it is to stand still, its thread comes to a call that waits, and a signal comes."""
    number, seen = process.pid, len(process.lines())
    wakes(process)
    until("it begins to compute", lambda: len(process.lines()) > seen, seconds=30, every=0.005)
    with Stop(process.cluster, HOME, "guest: paused") as stop:
        waiting = process.cluster.home.popen(["migrate", str(number), target, *options], "", stdout=-1, stderr=-1)
        stop.wait(lambda: None if waiting.poll() is None else waiting.communicate())
        until("its thread stands at the call", process.stands, seconds=30)
        process.cluster.home.run("kill", "-USR1", str(number))
    waiting.communicate(timeout=60)
    until("the signal ends the call", lambda: process.process.poll() is not None or len(process.lines()) > seen + 1, seconds=8)
    assert process.where() == target


def wakes(process: Running) -> None:
    """A signal ends the call that it waits in."""
    until("it waits", process.stands, seconds=30)
    process.cluster.home.run("kill", "-USR1", str(process.pid))


@pytest.mark.parametrize("stoppable", [3], indirect=True)
@pytest.mark.parametrize("first", [0, *(pytest.param(number, marks=pytest.mark.soak) for number in range(1, WAITS))])
def test_a_signal_ends_the_call_that_a_thread_was_about_to_make(stoppable: Cluster, first: int) -> None:
    """Wherever it goes on: on another node, at home, and (its memory goes ahead) where it was."""
    with Running(stoppable, "wakes", str(first)) as process:
        until("it moves", lambda: process.move("n2").done, seconds=30, every=0.5)
        signalled(process, "n3")
        signalled(process, HOME)
        process.moved("n2")
        signalled(process, HOME, "--memory", "precopy")
        (process.directory / "enough").touch()
        wakes(process)
        assert process.end() == "status 0\n"
