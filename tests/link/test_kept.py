"""Limits on what one end of a link can make the other keep: an answer or a call for each thread, and a few megabytes of messages."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.calls.link_pair import wait_for
from kernel_helpers.link.ends.events import Kind
from kernel_helpers.link.ends.home import HomeLink
from tests.link.test_session import CALL, CALL_KIND, CONTROL, FRAME, GETPPID, REPLY, REPLY_BODY, RESUME, call, collect, control, frame

pytestmark = pytest.mark.timeout(60)
ROOT = Path(__file__).resolve().parents[2]
REQUEST, DONE = 0, 4
"""Offsets in a slot of the last request, and of the last that has ended (slot.h)."""


def next_frame(connection: socket.socket, wanted: int) -> tuple[int, int, bytes]:
    """The number, the thread and the body of the next frame of that kind."""
    with connection.makefile("rb", buffering=0) as stream:
        while True:
            header = stream.read(FRAME.size)
            assert header is not None and len(header) == FRAME.size, "the connection was closed"
            length, kind, _, tid, _, number, _ = FRAME.unpack(header)
            body = b""
            while len(body) < length:
                body += stream.read(length - len(body)) or b""
            if kind == wanted:
                return number, tid, body


def test_home_answers_no_call_of_a_thread_whose_last_answer_is_not_acknowledged() -> None:
    with HomeLink([1]) as home, mmap.mmap(home.memfd, 0) as slots:
        home.set_stub(os.getpid(), 1 << 40)
        slot = home.slot_offset(0)
        one, two = socket.socketpair()
        two.settimeout(20)
        home.attach(one.detach())
        two.sendall(frame(RESUME))
        for number, acknowledged in ((1, 0), (2, 1)):
            two.sendall(frame(CALL_KIND, call(GETPPID, sequence=number), number, acknowledged))
            wait_for(lambda number=number: slots[slot + REQUEST] == number, 10, "the call was not taken")  # type: ignore[misc]
            slots[slot + DONE] = number
            wait_for(lambda: home.signals_arrived(1) or not home.standing(1).busy, 10, "the call was not answered")
            assert next_frame(two, REPLY)[0] == number
        two.sendall(frame(CALL_KIND, call(GETPPID, sequence=3), 3, acknowledged=1))
        events = collect(home, lambda events: any(event.kind == Kind.CONNECTION_LOST for event in events), 10)
        assert events[-1].data == b"a call that cannot be"
        assert 0 < home.kept_bytes <= REPLY_BODY.size
        two.close()


@contextmanager
def caller(guest: Path, directory: Path) -> Iterator[socket.socket]:
    """Runs a guest whose calls go to this listener: the test takes the place of its home."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        subprocess.Popen(
            [guest, "append", "3"], env=os.environ | {"FARHOME_SPLIT": "1"}, cwd=directory,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        ) as program,
    ):  # fmt: skip
        children = Path(f"/proc/{program.pid}/task/{program.pid}/children")
        away = None
        try:
            wait_for(lambda: children.read_text().split(), 10, "the program does not fork")
            child = children.read_text().split()[0]
            wait_for(lambda: Path(f"/proc/{child}/syscall").read_text().split()[0] == "34", 10, "no pause()")
            listener.settimeout(20)
            port = str(listener.getsockname()[1])
            away = subprocess.Popen(
                [sys.executable, "-m", "bench.calls.link_pair", "127.0.0.1", port, child, "notify", ""], cwd=ROOT, stdin=subprocess.PIPE
            )
            yield listener
        finally:
            if away is not None:
                assert away.stdin is not None
                away.stdin.close()
                away.wait(20)
            program.kill()


def test_the_guests_node_takes_no_answer_that_does_not_acknowledge_the_call(guest: Path, tmp_path: Path) -> None:
    with caller(guest, tmp_path) as listener:
        for acknowledged in (0, 1):
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(20)
                connection.sendall(frame(RESUME))
                number, tid, body = next_frame(connection, CALL_KIND)
                assert number == 1, "a call that was not answered comes again"
                sequence, *_ = CALL.unpack(body[: CALL.size])
                answer = REPLY_BODY.pack(sequence, 3, 0, 0)
                connection.sendall(frame(REPLY, answer, 1, acknowledged, tid=tid))
                if acknowledged:
                    assert next_frame(connection, CALL_KIND)[0] == 2
                else:
                    with pytest.raises(AssertionError, match="closed"):
                        next_frame(connection, CALL_KIND)


def test_unread_messages_are_bounded_in_bytes() -> None:
    body, sent = bytes(1 << 20), 0
    with HomeLink([1]) as home:
        one, two = socket.socketpair()
        two.settimeout(0.5)
        home.attach(one.detach())
        two.sendall(frame(RESUME))
        with pytest.raises(TimeoutError):
            for number in range(1, 100):
                two.sendall(frame(CONTROL, body, number))
                sent += 1
        assert sent < 16
        events = collect(home, lambda events: len(control(events)) == sent, 20)
        assert all(data == body for data in control(events))
        two.close()
