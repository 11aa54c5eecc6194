"""The deputy's end of the link, against a remote's end over real connections."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from deputy.guestlink import GuestLink
from deputy.preparation import Target
from kernel_helpers.link.link import HomeLink
from remote.intercept_ptrace import PtraceLink
from wire import channel
from wire.control import Control

pytestmark = pytest.mark.timeout(30)
SECRET = b"s" * 32


class Remote:
    """A door, and a link's far end that every connection goes to; each is kept for cut()."""

    def __init__(self) -> None:
        self.link = PtraceLink(os.getpid(), {1: 1})
        self._door = channel.listen("127.0.0.1")
        self._connections: list[socket.socket] = []
        self.target = Target("n2", self._door.getsockname()[:2], SECRET)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._door.accept()
            except OSError:
                return
            sealed = channel.greet(connection, SECRET)
            self._connections.append(socket.socket(fileno=os.dup(sealed.fileno())))
            self.link.attach(sealed)

    def cut(self) -> None:
        for connection in self._connections:
            connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for connection in self._connections:
            connection.close()
        self.link.close()


@pytest.fixture
def remote() -> Iterator[Remote]:
    remote = Remote()
    yield remote
    remote.close()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def has_heard(remote: Remote, control: Control) -> bool:
    kinds = [event.kind for event in remote.link.wait(0.1)]
    if Control.CARRIED in kinds:
        remote.link.release()
    return control in kinds


@pytest.mark.parametrize("is_cut", [False, True])
def test_the_end_of_a_process_is_told_over_a_connection_that_has_just_broken(remote: Remote, is_cut: bool) -> None:
    with HomeLink([1]) as home:
        home.set_stub(os.getpid(), 0)
        link = GuestLink(home, remote.target, timeout=20.0)
        link.start(channel.connect(remote.target.address, "link", SECRET))
        until(lambda: home.connected)
        if is_cut:
            remote.cut()
            until(lambda: not home.connected)
        link.kill_guest()
        until(lambda: has_heard(remote, Control.KILL))
