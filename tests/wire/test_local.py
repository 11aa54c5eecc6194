"""The socket of a deputy or a remote, of which something is taken while its loop deals with what it has found."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from wire import frames
from wire.frames import Message
from wire.local import LocalServer

pytestmark = pytest.mark.timeout(20)


class Daemon:
    """Connects to a server, and says what it is to hear."""

    def __init__(self, path: Path) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.connect(str(path))

    def say(self, message: Message) -> None:
        frames.send(self.connection, message)


class Served:
    """A server, and what has come to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.selector = selectors.DefaultSelector()
        self.heard: list[Message] = []
        self.server = LocalServer(path, self.selector, self.heard.append)

    def found(self) -> list[selectors.SelectorKey]:
        """Returns the events that the loop has polled and has still to handle."""
        return [key for key, _ in self.selector.select(5.0)]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "socket")
    yield made
    made.server.close()
    made.selector.close()


def serve_all(served: Served) -> None:
    for descriptor in served.server.descriptors:
        if any(key.fd == descriptor for key in served.found()):
            served.server.serve(descriptor)


def test_a_daemon_that_has_been_taken_is_not_waited_for(served: Served) -> None:
    daemon = Daemon(served.path)
    found = served.found()
    serve_all(served)
    assert served.server.is_connected
    for key in found:
        key.data()
    daemon.say({"op": "status"})
    for key in served.found():
        key.data()
    assert served.heard == [{"op": "status"}]


def test_a_message_that_has_been_taken_does_not_cost_the_connection(served: Served) -> None:
    daemon = Daemon(served.path)
    serve_all(served)
    daemon.say({"op": "kill"})
    found = served.found()
    serve_all(served)
    assert served.heard == [{"op": "kill"}]
    for key in found:
        key.data()
    assert served.server.is_connected
    daemon.say({"op": "status"})
    for key in served.found():
        key.data()
    assert served.heard == [{"op": "kill"}, {"op": "status"}]


def test_another_daemon_takes_the_place_of_the_one_before(served: Served) -> None:
    """Events polled for the earlier daemon are not taken for events of the new one."""
    before = Daemon(served.path)
    serve_all(served)
    before.say({"op": "cancel"})
    after = Daemon(served.path)
    found = served.found()
    served.server.serve(served.server.descriptors[0])
    for key in found:
        key.data()
    assert served.heard == []
    after.say({"op": "status"})
    for key in served.found():
        key.data()
    assert served.heard == [{"op": "status"}]
