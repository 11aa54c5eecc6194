"""A move out by itself: steps that fail end it with one sentence for mosd, and the process goes on where it is."""

from __future__ import annotations

import selectors
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from deputy.link.farewells import Farewells
from deputy.link.guestlink import Target
from deputy.mosd import Mosd
from deputy.moves.departure import Departure
from deputy.moves.move import Move
from deputy.moves.preparation import Preparation
from deputy.options import Options
from deputy.process import Loop, Process
from engine.leaving.permission import ROOT
from engine.pour.precopy import Progress
from wire import frames
from wire.local import LocalServer

pytestmark = pytest.mark.timeout(60)
SECRET = b"s" * 32


class Daemon:
    """The node daemon's end of a deputy's socket."""

    def __init__(self, path: Path) -> None:
        self.selector = selectors.DefaultSelector()
        self.server = LocalServer(path, self.selector, lambda message: None)
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.connect(str(path))
        for key, _ in self.selector.select(10):
            key.data()

    def messages(self) -> list[frames.Message]:
        """Returns the messages that the deputy has sent to it since the last call."""
        self._connection.setblocking(False)
        try:
            return list(frames.Assembler().feed(self._connection.recv(65536)))
        except BlockingIOError:
            return []

    def close(self) -> None:
        self.server.close()
        self._connection.close()
        self.selector.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path / "1.sock")
    yield daemon
    daemon.close()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as child:
        yield child
        child.kill()


def never(*_: object) -> NoReturn:
    raise AssertionError("it is away")


def moved(daemon: Daemon, pid: int, address: tuple[str, int], path: Path) -> Process:
    """The process, when a move of it to that address is over."""
    turn = threading.Event()
    options = Options(pid, path / f"{pid}.sock", "n1", 20.0, "auto", path, ROOT)
    process = Process(options, Mosd(daemon.server), Loop(daemon.selector, turn.set, threading.get_native_id(), Farewells()), never)
    preparation = Preparation(pid, Target("n2", address, SECRET), "n1", "auto", owners=(ROOT,), link_timeout=20.0)
    move: Move | None = Departure(process, preparation, 7).start()
    while move is not None:
        assert turn.wait(30)
        turn.clear()
        move = move.step()
    return process


def hang_up(listener: socket.socket) -> None:
    listener.accept()[0].close()


@pytest.mark.parametrize("listens", [False, True])
def test_a_target_that_does_not_speak_is_one_sentence(
    daemon: Daemon, child: subprocess.Popen[bytes], tmp_path: Path, listens: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
        if listens:
            threading.Thread(target=hang_up, args=(listener,), daemon=True).start()
        else:
            listener.close()
        process = moved(daemon, child.pid, address, tmp_path)
    (answer,) = daemon.messages()
    assert (answer["id"], answer["ok"], answer["where"]) == (7, False, "home")
    assert str(answer["error"]).startswith("the move to n2 failed: ") and "\n" not in str(answer["error"])
    assert process.finished and process.away is None
    assert child.poll() is None


def test_progress_and_a_broken_link_are_reported_when_there_is_news(daemon: Daemon) -> None:
    mosd = Mosd(daemon.server)
    mosd.progress(Progress())
    assert not daemon.messages(), "nothing goes ahead"
    for cut in (0.0, 2.5, 3.0, 0.0, 0.0):
        mosd.cut(cut)
    assert [message["cut"] for message in daemon.messages()] == [2.5, 0.0]
