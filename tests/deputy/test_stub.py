"""A stub whose thread makes writes that the guest's node has answered."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator

import pytest

from bench.calls.link_pair import wait_for
from deputy.link.guestlink import GuestLink, Target
from deputy.stub.stub import Stub
from kernel_helpers.link.ends.home import HomeLink
from kernel_helpers.process import tracing
from kernel_helpers.process.seizing import seize
from tests.link.test_ahead import AHEAD, WRITE_ON, record
from tests.link.test_session import RESUME, frame
from wire.control import Control, pack

pytestmark = pytest.mark.timeout(60)


def _filled(descriptor: int) -> int:
    """Writes until the pipe takes no more; how many bytes."""
    os.set_blocking(descriptor, False)
    count = 0
    try:
        while True:
            count += os.write(descriptor, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(descriptor, True)
        return count


class Writing:
    """A program whose stub is to write three bytes into a full pipe, in which a signal has stopped it; then there is room."""

    def __init__(self, link: HomeLink, program: subprocess.Popen[bytes], out: int, room: int) -> None:
        self.stub = Stub.hollow(seize(program.pid), link)
        near, self.far = socket.socketpair()
        link.attach(near.detach())
        self.far.sendall(frame(RESUME) + frame(AHEAD, record(1, WRITE_ON, b"abc"), 1, tid=program.pid))
        wait_for(lambda: _waits_in(program.pid, "pipe_write"), 20, "the write is not under way")
        os.kill(program.pid, signal.SIGUSR1)
        wait_for(lambda: _state(program.pid) == "t", 20, "the signal has not stopped it")
        assert len(os.read(out, room)) == room


@pytest.fixture
def writing() -> Iterator[tuple[Writing, HomeLink, int]]:
    out, into = os.pipe()
    room = _filled(into)
    program = subprocess.Popen(["sleep", "60"], stdout=into)
    with HomeLink([program.pid]) as link:
        made = Writing(link, program, out, room)
        yield made, link, out
        made.far.close()
    os.kill(program.pid, signal.SIGKILL)
    os.waitpid(program.pid, 0x40000000)
    os.close(out)
    os.close(into)


def test_a_signal_in_the_midst_of_writes_does_not_keep_it_from_being_stopped(writing: tuple[Writing, HomeLink, int]) -> None:
    made, _, out = writing
    frozen = made.stub.stop()
    assert os.read(out, 100) == b"abc"
    assert [tracing.signal_number(info) for info in frozen.leader.take_in_hand()] == [signal.SIGUSR1]


def test_a_frame_behind_writes_comes_although_a_signal_has_stopped_the_writer(writing: tuple[Writing, HomeLink, int]) -> None:
    made, home, out = writing
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        link = GuestLink.unconnected(home, Target("n2", deaf.getsockname(), b"s" * 32), 20.0, lambda: None)
        made.far.sendall(frame(Control.PAUSED, pack(), 2))
        assert link.wait(Control.PAUSED, lambda event: None, 1.5, made.stub.meet_signals) == {}
    assert os.read(out, 100) == b"abc"


def _waits_in(pid: int, function: str) -> bool:
    with open(f"/proc/{pid}/wchan") as file:
        return function in file.read()


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0]
