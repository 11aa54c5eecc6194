"""The deputy's end of the link, against a remote's end over real connections."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from deputy.link.farewells import Farewells
from deputy.link.guestlink import GuestLink, Target
from kernel_helpers.link.ends.home import HomeLink
from kernel_helpers.link.ends.session import Branch
from remote.reference.intercept_ptrace import PtraceLink
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
            encrypted = channel.greet(connection, SECRET)
            self._connections.append(socket.socket(fileno=os.dup(encrypted.fileno())))
            self.link.attach(encrypted)

    @property
    def is_called(self) -> bool:
        """Whether a caller has proven itself."""
        return bool(self._connections)

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


@pytest.fixture
def farewells() -> Farewells:
    return Farewells()


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
def test_the_end_of_a_process_is_reported_after_its_connection_has_just_broken(remote: Remote, farewells: Farewells, is_cut: bool) -> None:
    with HomeLink([1]) as home:
        home.set_stub(os.getpid(), 0)
        link = GuestLink(home, remote.target, timeout=20.0)
        link.start(channel.connect(remote.target.address, "link", SECRET))
        until(lambda: home.connected)
        if is_cut:
            remote.cut()
            until(lambda: not home.connected)
        farewells.say(link)
        until(lambda: has_heard(remote, Control.KILL))
        farewells.close()


def test_the_end_of_a_child_is_reported_although_its_parents_link_ends_first(remote: Remote, farewells: Farewells) -> None:
    """The parent's end is heard first, and its connection, with the child's inside, is not read any more."""
    with PtraceLink(os.getpid(), {1: 1}) as far, HomeLink([1]) as trunk, HomeLink([2]) as home:
        one, two = socket.socketpair()
        trunk.attach(one.detach())
        far.attach(two.detach())
        home.set_stub(os.getpid(), 0)
        link = GuestLink.unconnected(home, remote.target, 20.0, lambda: None)
        branch = Branch(far, 1)
        link.start_inside(Branch(trunk, 1))
        remote.link.attach(branch)
        until(lambda: has_heard(remote, Control.CARRIED))
        trunk.send(Control.KILL, 0, b"", barrier=True)  # behind which nothing is read
        until(lambda: Control.KILL in [event.kind for event in far.wait(0.1)])
        farewells.say(link)
        far.close()
        trunk.close()
        until(lambda: has_heard(remote, Control.KILL))
        farewells.close()


def test_a_link_that_begins_inside_of_another_has_a_connection_of_its_own_after_a_moment(remote: Remote, farewells: Farewells) -> None:
    with HomeLink([1]) as trunk, PtraceLink(os.getpid(), {1: 1}) as far, HomeLink([2]) as home:
        one, two = socket.socketpair()
        trunk.attach(one.detach())
        far.attach(two.detach())
        home.set_stub(os.getpid(), 0)
        link = GuestLink.unconnected(home, remote.target, 20.0, lambda: None)
        branch = Branch(far, 1)
        link.start_inside(Branch(trunk, 1))
        remote.link.attach(branch)
        until(lambda: has_heard(remote, Control.CARRIED))
        assert link.is_whole and not remote.is_called
        link.send(Control.THAW)

        def has_its_own() -> bool:
            link.look_after()
            return remote.is_called

        until(has_its_own)
        until(lambda: has_heard(remote, Control.THAW))
        trunk.close()
        assert link.is_whole
        farewells.say(link)
        until(lambda: has_heard(remote, Control.KILL))
        farewells.close()


def test_a_link_whose_trunk_ends_has_a_connection_of_its_own_at_once(remote: Remote) -> None:
    with PtraceLink(os.getpid(), {1: 1}) as far, HomeLink([2]) as home:
        with HomeLink([1]) as trunk:
            one, two = socket.socketpair()
            trunk.attach(one.detach())
            far.attach(two.detach())
            home.set_stub(os.getpid(), 0)
            link = GuestLink.unconnected(home, remote.target, 20.0, lambda: None)
            branch = Branch(far, 1)
            link.start_inside(Branch(trunk, 1))
            remote.link.attach(branch)
            until(lambda: has_heard(remote, Control.CARRIED))
        link.send(Control.THAW)

        def is_heard() -> bool:
            link.look_after()
            return has_heard(remote, Control.THAW)

        until(is_heard)
        assert remote.is_called
