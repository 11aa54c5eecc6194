"""Messages of a deputy are handled in the order in which it sent them, even if all arrive at once."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from pathlib import Path
from types import ModuleType

import pytest
import uvloop

from node.common.message_streams import BUFFER, read_message, write_message
from node.programs.programs import Program, ProgramError
from tests.node.nodes import Cluster
from wire.frames import Message, encode


@pytest.fixture
def pair(kept_pair: Cluster) -> Cluster:
    return kept_pair


async def test_answers_events_and_the_end_come_in_order(tmp_path: Path) -> None:
    """A process that goes out and at once makes a call that takes it home: that it is at home must be the last word."""
    heard: list[str] = []

    async def deputy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        message = await read_message(reader)
        assert message is not None
        burst = [{"id": message["id"], "ok": True, "where": "n2"}, {"event": "state", "where": "n2"}, {"event": "state", "where": "home"}]
        writer.write(b"".join(encode(one) for one in burst))
        writer.close()

    def event(message: Message) -> None:
        heard.append(f"event {message['where']}")

    server = await asyncio.start_unix_server(deputy, tmp_path / "socket", limit=BUFFER)
    async with server:
        program = await Program.attach(tmp_path / "socket", "deputy of 7", event, lambda _: heard.append("gone"))

        async def move() -> None:
            heard.append(f"answer {(await program.request('move'))['where']}")

        await asyncio.wait_for(move(), 5)
        assert await program.wait_gone(5)
        assert heard == ["answer n2", "event n2", "event home", "gone"]
        with pytest.raises(ProgramError):
            await program.request("status")


def test_a_process_that_is_taken_home_at_once_is_at_home_and_can_leave_again(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[1].behave(deputy="call at once")
    for moves in (2, 4):
        pair[1].ok("migrate", str(pid), "n2")
        shown = json.loads(pair[1].ok("mosps", "--why", str(pid), "--json"))
        assert (shown["where"], shown["state"], shown["moves"]) == ("home", "home", moves)
        assert [(count["reason"], count["times"]) for count in shown["taken_home"]] == [("vfork", moves // 2)]
    assert "came home for: the call vfork (2 times)" in pair[1].ok("mosps", "-v")
    assert "home -> n2: somebody asked" in pair[1].ok("mosps", "--why", str(pid))


def test_asked_home_when_a_call_has_just_taken_it_there_is_no_failure(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[1].behave(deputy="call first")
    pair[1].ok("migrate", str(pid), "n2")
    assert "stays at home" in pair[1].ok("migrate", str(pid), "home")
    shown = json.loads(pair[1].ok("mosps", "--why", str(pid), "--json"))
    assert (shown["where"], shown["failed"], shown["why"]) == ("home", [], "vfork")
    assert [(count["reason"], count["times"]) for count in shown["taken_home"]] == [("vfork", 1)]


def test_a_delayed_daemon_receives_all_messages_in_order(pair: Cluster) -> None:
    """Stopped while its deputy says one thing after the other: it finds them all at once, and its process is where it is."""
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[1].behave(deputy="call at once")
    pair[1].ok("migrate", str(pid), "n2", "--async")
    daemon = pair[1].daemon
    assert daemon is not None
    end = time.monotonic() + 0.5
    while time.monotonic() < end:  # in slices, so that the deputy is started, but never waits to be heard
        daemon.send_signal(signal.SIGSTOP)
        time.sleep(0.02)
        daemon.send_signal(signal.SIGCONT)
        time.sleep(0.01)
    end = time.monotonic() + 10
    while (shown := json.loads(pair[1].ok("mosps", "--why", str(pid), "--json")))["state"] == "leaving" and time.monotonic() < end:
        time.sleep(0.05)  # the deputy was slow, and is to be heard still
    assert (shown["where"], shown["state"]) == ("home", "home")
    pair[1].behave()
    pair[1].ok("migrate", str(pid), "n2")


@pytest.mark.parametrize("loop", [asyncio, uvloop])
def test_the_last_message_of_a_deputy_is_read_although_it_was_written_to(tmp_path: Path, loop: ModuleType) -> None:
    """A deputy reports that its process is lost, and ends, while a move is requested from it."""
    heard: list[str] = []

    async def talk() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "socket"))
            listener.listen()
            program = await Program.attach(
                tmp_path / "socket", "deputy of 7", lambda message: heard.append(str(message["event"])), lambda _: heard.append("gone")
            )
            deputy, _ = listener.accept()
            with deputy:
                deputy.sendall(encode({"event": "lost"}))
            with pytest.raises(ProgramError):
                await program.request("move", 5)
            assert await program.wait_gone(5)

    loop.run(asyncio.wait_for(talk(), 20))
    assert heard == ["lost", "gone"]


def test_a_write_to_a_closed_connection_is_an_oserror() -> None:
    """The loop that mosd runs in has an exception of its own for it."""

    async def write() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            _, writer = await asyncio.open_unix_connection(sock=ours)
            writer.transport.abort()
            await asyncio.sleep(0)
            with pytest.raises(OSError, match="closed"):
                await write_message(writer, {"op": "status"})

    uvloop.run(asyncio.wait_for(write(), 5))
