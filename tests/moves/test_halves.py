"""A write that a move comes into ends with its part when a signal that the program hears comes before it goes on: as it does natively."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults import stops
from tests.faults.running import Running
from tests.faults.stops import Stop
from tests.moves.cluster import HOME, Cluster, until
from tests.programs.build import program

pytestmark = pytest.mark.timeout(120)

FULL = 1 << 16
"""Bytes that a pipe takes."""


class Pipe:
    """The reader's end. Nothing is read before read()."""

    def __init__(self, directory: Path) -> None:
        until("there is a pipe", (directory / "pipe").exists)
        self._descriptor = os.open(directory / "pipe", os.O_RDONLY | os.O_CLOEXEC)
        until("it is full", lambda: self._waiting() == FULL)

    def _waiting(self) -> int:
        return int(struct.unpack("i", fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(4)))[0])

    def read(self) -> bytes:
        """All, slowly at first."""
        found = b""
        while got := os.read(self._descriptor, 1 << 14):
            found += got
            time.sleep(0.005 if len(found) < 2 * FULL else 0)
        return found

    def close(self) -> None:
        os.close(self._descriptor)


def _natively(how: str, directory: Path) -> tuple[str, bytes]:
    """Returns what the program prints, and what it writes."""
    with subprocess.Popen([str(program("blocks")), how], cwd=directory, stdout=subprocess.PIPE, text=True) as one:
        with closing(Pipe(directory)) as pipe:
            time.sleep(0.1)  # before the writer waits it is full
            os.kill(one.pid, signal.SIGSTOP if how == "none" else signal.SIGUSR1)
            if how == "none":
                os.waitpid(one.pid, os.WUNTRACED)
                os.kill(one.pid, signal.SIGCONT)
            else:
                until("it handles the signal", (directory / "handles").exists)
            (directory / "go").touch()
            written = pipe.read()
        return one.communicate(timeout=20)[0], written


def _moved(one: Running, target: str, step: str, meanwhile: Callable[[], None]) -> None:
    """Moves it; what is done when home has come to that step."""
    over: list[BaseException | None] = []

    def move() -> None:
        try:
            one.moved(target)
            over.append(None)
        except BaseException as error:
            over.append(error)

    mover = threading.Thread(target=move)
    with Stop(one.cluster, HOME, step) as stop:
        mover.start()
        stop.wait(lambda: over)
        meanwhile()
    mover.join(60)
    assert over == [None]


def ends_with_its_part(
    cluster: Cluster, how: str, way: tuple[str, ...], step: str, then: tuple[str, ...], directory: Path
) -> None:  # fmt: skip
    """way: where it goes in the midst of its write, with the signal when the last of these moves has come to that step; then: where it
    goes while its handler runs. directory: for the same natively."""
    with Running(cluster, "blocks", how) as one, closing(Pipe(one.directory)) as pipe:
        for name in way[:-1]:
            one.moved(name)
        _moved(one, way[-1], step, lambda: cluster.home.run("kill", "-STOP" if how == "none" else "-USR1", str(one.pid)))
        if how == "none":
            until("it is stopped", lambda: stops.state(cluster.home.root / "proc" / str(one.pid)) in "Tt")
            cluster.home.run("kill", "-CONT", str(one.pid))
        else:
            until("it handles the signal", (one.directory / "handles").exists)
        for name in then:
            one.moved(name)
        (one.directory / "go").touch()
        written = pipe.read()
        assert (one.end(), written) == (f"{(expected := _natively(how, directory))[0]}status 0\n", expected[1])


SENT = "out: stub made"
"""The state where the process is frozen and earlier states are no longer checked."""


@pytest.mark.parametrize(
    ("how", "way", "step", "then"),
    [
        ("waits", ("n2",), SENT, ("n3", HOME)),
        ("jumps", ("n2",), SENT, ()),
        ("none", ("n2",), SENT, ()),
        pytest.param("restart", ("n2",), SENT, (), marks=pytest.mark.soak),
        pytest.param("plain", ("n2", "n3"), "hop: stopped", (), marks=pytest.mark.soak),
        pytest.param("plain", ("n2", HOME), "home: stopped", (), marks=pytest.mark.soak),
        pytest.param("jumps", ("n2", HOME), "home: restored", (), marks=pytest.mark.soak),
    ],
)
def test_a_signal_ends_it(cluster: Cluster, how: str, way: tuple[str, ...], step: str, then: tuple[str, ...], tmp_path: Path) -> None:
    ends_with_its_part(cluster, how, way, step, then, tmp_path)


@pytest.mark.soak
def test_a_process_that_came_home_in_a_write_does_not_leave_before_its_end(cluster: Cluster) -> None:
    with Running(cluster, "blocks", "plain") as one, closing(Pipe(one.directory)) as pipe:
        one.moved("n2")
        one.moved(HOME)
        refused = one.move("n3")
        assert not refused.done
        assert "it is in the middle of a write" in refused.said
        assert len(pipe.read()) == 3 << 18
        assert [line.split(",")[0] for line in one.end().splitlines()[:-1]] == [f"block {n}: wrote {1 << 18} at 0" for n in range(3)]
