"""The end of a move with both sides' own code and real connections, which break: a commit that is lost is said again.

Between them stands a relay that sees what goes through; no process moves here.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deputy.link.guestlink import Target
from deputy.moves.commit import commit
from deputy.moves.preparation import Preparation
from deputy.moves.running import await_running
from remote.moves.cargo import next_message
from remote.moves.decision import Decision, await_decision
from remote.reception import Reception
from remote.remote import Remote
from tests.moves.cluster import until
from wire import channel
from wire.channel import Channel
from wire.frames import WireError
from wire.patience import longer
from wire.waking import Waker

pytestmark = pytest.mark.timeout(60)

SECRET = b"s" * 32
LINK_TIMEOUT = 4.0
PENDING = [(0, b"\x0f" + bytes(127))]


class Relay:
    """Passes bytes between a caller and `port`. breaks: how many times a piece with `word` in it, from either side, ends the connection
    that it comes by, and goes nowhere."""

    def __init__(self, port: int, word: bytes, breaks: int) -> None:
        self._port, self._word, self.breaks = port, word, breaks
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
                other = socket.create_connection(("127.0.0.1", self._port), timeout=10)
            except OSError:
                return
            for source, target in ((caller, other), (other, caller)):
                threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                if self._word in data and self.breaks:
                    self.breaks -= 1
                    break
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self._listener.close()


class Ready:
    """The remote of a process that is ready: its reception, and its wait for the decision, which is answered as it is in arrival.py."""

    def __init__(self) -> None:
        selector = selectors.DefaultSelector()
        self.waker = Waker(selector)
        self.reception = Reception("127.0.0.1", SECRET, self.waker.wake)
        self._remote = SimpleNamespace(
            _reception=self.reception,
            _waker=self.waker,
            options=SimpleNamespace(pid=7),
            patience=SimpleNamespace(limit=longer(LINK_TIMEOUT)),
            server=SimpleNamespace(descriptors=[]),
            finished=False,
        )
        self.is_heard = threading.Event()
        """the first caller is"""
        self.early: list[Any] = []
        """connections of the link that came before its message"""
        self._remote.next_caller = lambda *args, **fields: Remote.next_caller(cast(Any, self._remote), *args, **fields)

    def next_message(self) -> tuple[str, int]:
        """Returns the first caller's message, and how many connections of the link came before it."""
        connection, role = self._remote.next_caller(10.0)
        assert role == "move"
        self.is_heard.set()
        talk = Channel(connection)
        _, message = next_message(cast(Any, self._remote), talk, talk, self.early.append)
        for link in self.early:
            link.close()
        talk.close()
        return str(message["op"]), len(self.early)

    def decide(self) -> Decision:
        """The first caller's conversation, up to the decision. Errors: as await_decision."""
        connection, role = self._remote.next_caller(10.0)
        assert role == "move"
        talk = Channel(connection)
        talk.send("prepared")
        decision = await_decision(cast(Any, self._remote), talk)
        decision.talk.send("running")
        return decision


@pytest.fixture(autouse=True)
def words_can_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns encryption off, so that the relay can search for words."""
    monkeypatch.setattr(channel, "_plain", True)


@contextmanager
def parties(word: bytes, breaks: int) -> Iterator[tuple[Preparation, Future[Decision], Relay]]:
    ready = Ready()
    relay = Relay(ready.reception.port, word, breaks)
    target = Target("n2", relay.address, SECRET)
    with ThreadPoolExecutor(1) as pool:
        decision = pool.submit(ready.decide)
        preparation = Preparation(7, target, "n1", "auto")
        preparation.channel = Channel(channel.connect(target.address, "move", SECRET, timeout=10.0))
        preparation.channel.expect("prepared")
        link = channel.connect(target.address, "link", SECRET)
        try:
            yield preparation, decision, relay
        finally:
            link.close()
            preparation.abandon()
            relay.close()
            ready.reception.close()


def test_a_commit_that_arrives_is_followed() -> None:
    with parties(b"nothing", 0) as (preparation, decision, _):
        commit(preparation, PENDING)
        await_running(preparation, LINK_TIMEOUT)
        assert decision.result(10).pending == PENDING
        assert decision.result().link is not None


@pytest.mark.parametrize("times", [1, 2])
def test_a_commit_that_is_lost_is_said_again(times: int) -> None:
    """Before, the side that was ready took the break for the end, and the process was nowhere."""
    with parties(b"commit", times) as (preparation, decision, relay):
        commit(preparation, PENDING)
        await_running(preparation, LINK_TIMEOUT)
        assert decision.result(10).pending == PENDING
        assert relay.breaks == 0


def test_a_commit_that_is_lost_for_long_is_said_again_while_the_loop_turns() -> None:
    """Before, the loop waited for it, with all processes of its deputy, and said nothing any more when it gave up."""
    with parties(b"commit", 1_000_000) as (preparation, decision, relay):
        commit(preparation, PENDING)
        await_running(preparation, LINK_TIMEOUT * 4)
        preparation.abandon()
        assert not decision.done()
        relay.breaks = 0
        assert decision.result(10).pending == PENDING


def test_a_commit_is_not_said_again_for_a_process_that_has_ended() -> None:
    away = True
    with parties(b"commit", 1_000_000) as (preparation, decision, relay):
        commit(preparation, PENDING)
        await_running(preparation, LINK_TIMEOUT * 4, lambda: away)
        assert insisting(), "no thread repeats the commit"
        away = False
        until("an end of it", lambda: not insisting())
        relay.breaks = 0
        with pytest.raises(TimeoutError):
            decision.result(LINK_TIMEOUT + 5)


def insisting() -> bool:
    """Whether a thread repeats the commit."""
    return any(thread.name == "commit" for thread in threading.enumerate())


def test_a_party_notified_that_the_move_is_off_ends_at_once() -> None:
    with parties(b"nothing", 0) as (preparation, decision, _):
        preparation.abandon()
        with pytest.raises(WireError, match="keeps the process"):
            decision.result(2)


def test_a_party_without_further_messages_ends_in_time() -> None:
    with parties(b"abort", 1) as (preparation, decision, _):
        preparation.abandon()
        with pytest.raises(TimeoutError):
            decision.result(LINK_TIMEOUT + 5)


def test_a_link_that_is_connected_before_the_process_is_heard_is_kept() -> None:
    """Home connects it as soon as it has sent the process, and the two connections are not heard in that order."""
    ready = Ready()
    address = ("127.0.0.1", ready.reception.port)
    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(ready.next_message)
        talk = Channel(channel.connect(address, "move", SECRET, timeout=10.0))
        assert ready.is_heard.wait(10)  # home sends the process in that conversation, and connects the link afterwards
        links = [channel.connect(address, "link", SECRET) for _ in range(2)]
        until("both are kept", lambda: len(ready.early) == 2)
        talk.send("context")
        assert heard.result(10) == ("context", 2)
        for connection in (talk, *links):
            connection.close()
    ready.reception.close()
