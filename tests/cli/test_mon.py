"""`mon`: the table, and the command against a socket that speaks as the node daemon does."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

from balancer.load import LoadVector
from balancer.view import Entry, View
from cli.client import CommandError
from cli.mon import NodeRow, bar, format_age, render
from wire.frames import WireError, receive, send

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30


def vector(name: str, runnable: float, **changes: Any) -> LoadVector:
    values: dict[str, Any] = {
        "name": name, "incarnation": 1, "sequence": 1, "address": "10.0.0.1", "port": 7226, "runnable": runnable,
        "load": runnable, "cores": 1.0, "speed": 1.0, "memory_free": 4 * GIB, "memory_total": 16 * GIB, "guests": 0,
        "lending": True, "blocked": False, "version": 1,
    }  # fmt: skip
    return LoadVector(**(values | changes))


VIEW = View(
    "n1",
    {
        "n1": Entry(vector("n1", 3.2), 0.0),
        "n2": Entry(vector("n2", 1.0, speed=0.5, load=2.0, guests=2), 1.4),
        "n3": Entry(vector("n3", 0.0, blocked=True), 0.9),
        "n4-with-a-very-long-name": Entry(vector("n4-with-a-very-long-name", 0.0, lending=False), 25.0),
    },
)


def text_of(rows: list[NodeRow], width: int = 80, height: int = 24, blocks: bool = True) -> list[str]:
    return ["".join(piece.text for piece in line) for line in render(rows, width, height, blocks)]


ROWS = [NodeRow.from_message(row) for row in VIEW.rows()]


def test_table_shows_load_speed_memory_guests_state_and_age() -> None:
    lines = text_of(ROWS)
    assert lines[0].startswith("farhome as n1 sees it: 4 nodes")
    assert lines[1].split() == ["NODE", "LOAD", "SPEED", "CORES", "MEMORY", "USED", "GUESTS", "STATE", "AGE"]
    assert lines[2].split()[-6:] == ["1", *lines[2].split()[-5:]]
    assert "3.20" in lines[2]
    assert "12G/16G" in lines[2]
    assert lines[3].split()[-3:] == ["2", "lends", "1.4s"]
    assert lines[4].split()[-2:] == ["blocked", "0.9s"]
    assert lines[5].split()[-2:] == ["silent", "25s"]
    assert lines[5].startswith("n4-with-a-v~")


@pytest.mark.parametrize("width", [1, 20, 79, 80, 200])
@pytest.mark.parametrize("height", [1, 2, 3, 5, 24])
@pytest.mark.parametrize("blocks", [True, False])
def test_table_fits_every_screen(width: int, height: int, blocks: bool) -> None:
    lines = text_of(ROWS, width, height, blocks)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)


def test_table_uses_the_whole_width_of_a_small_terminal() -> None:
    assert {len(line) for line in text_of(ROWS)[1:]} == {80}


@pytest.mark.parametrize(
    ("free", "total", "text"),
    [(int(23.05 * GIB), int(23.5 * GIB), "461M/24G"), (0, 1023 << 20, "1023M/1023M"), (GIB, GIB, "0/1G"), (0, 0, "0/0")],
)
def test_memory_fits_its_column(free: int, total: int, text: str) -> None:
    row = NodeRow.from_message(VIEW.rows()[0] | {"memory_free": free, "memory_total": total})
    line = text_of([row])[2]
    assert f" {text} " in line or f"·{text} " in line or f"█{text} " in line
    assert len(line) == 80


def test_more_nodes_than_lines_are_counted() -> None:
    rows = [NodeRow.from_message(row | {"name": f"n{i}"}) for i in range(64) for row in VIEW.rows()[:1]]
    lines = text_of(rows, 80, 24)
    assert len(lines) == 24
    assert lines[-1] == "and 43 more"


def test_node_that_has_not_been_heard_of_fades() -> None:
    assert {piece.style for piece in render(ROWS)[5]} == {"faded"}
    assert "faded" not in {piece.style for piece in render(ROWS)[3]}


def test_bars() -> None:
    assert bar(0.5, 4, True) == "██··"
    assert bar(0.3125, 2, True) == "▋·"
    assert bar(9.0, 3, True) == "███"
    assert bar(-1.0, 3, True) == "···"
    assert bar(0.5, 4, False) == "##.."


@pytest.mark.parametrize(("age", "text"), [(0.04, "0.0s"), (9.94, "9.9s"), (9.96, "10s"), (999.0, "999s"), (7200.0, "2h")])
def test_ages(age: float, text: str) -> None:
    assert format_age(age) == text


@pytest.mark.parametrize("change", [{"load": "high"}, {"load": float("nan")}, {"name": None}, {"memory_free": 1.5}, {"age": float("inf")}])
def test_row_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CommandError, match=next(iter(change))):
        NodeRow.from_message(VIEW.rows()[0] | change)


@contextmanager
def daemon_at(path: Path, answer: Callable[[], dict[str, Any]]) -> Iterator[None]:
    """Answer each request on this socket, in the daemon's framing, until the block ends."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    listener.settimeout(0.05)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(5)
                try:
                    assert receive(connection) == {"op": "nodes"}
                    send(connection, answer())
                except (WireError, OSError):
                    continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)
        listener.close()
        path.unlink()


def environment(run: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "FARHOME_RUN": str(run), "LC_ALL": "C.UTF-8", "TERM": "xterm", **more}


def mon(run: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli.mon", *arguments],
        cwd=ROOT, env=environment(run, **more), capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL,
        check=False,
    )  # fmt: skip


def test_once_and_json_tell_the_same(tmp_path: Path) -> None:
    with daemon_at(tmp_path / "mosd.sock", lambda: {"ok": True, "nodes": VIEW.rows()}):
        once, plain, data = mon(tmp_path, "--once"), mon(tmp_path), mon(tmp_path, "--json")
    assert (once.returncode, plain.returncode, data.returncode) == (0, 0, 0)
    assert once.stdout == plain.stdout
    assert "\x1b" not in once.stdout
    rows = json.loads(data.stdout)
    assert [row["name"] for row in rows] == sorted(VIEW.entries)
    assert [row["state"] for row in rows] == ["lends", "lends", "blocked", "silent"]


def test_without_a_daemon_it_says_so_in_one_sentence(tmp_path: Path) -> None:
    for arguments in (["--once"], ["--json"], []):
        done = mon(tmp_path, *arguments)
        assert done.returncode == 69
        assert done.stdout == ""
        assert done.stderr.startswith("mon: no mosd answers on this node")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "answer",
    [{"ok": False, "error": "not now"}, {"ok": True, "nodes": 7}, {"ok": True, "nodes": [1]}, {"ok": True, "nodes": [{}]}, {"ok": True}],
)
def test_daemon_that_answers_nonsense_is_told_of_in_one_sentence(tmp_path: Path, answer: dict[str, Any]) -> None:
    with daemon_at(tmp_path / "mosd.sock", lambda: answer):
        done = mon(tmp_path, "--once")
    assert done.returncode == (75 if answer.get("error") else 69)
    assert done.stderr.startswith("mon: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["-n", "x"], ["-n", "0"], ["-n", "nan"], ["--color"], ["n1"]])
def test_wrong_usage_ends_with_64(tmp_path: Path, arguments: list[str]) -> None:
    done = mon(tmp_path, *arguments)
    assert done.returncode == 64
    assert done.stderr.startswith("mon: ")
    assert done.stderr.count("\n") == 1


class Terminal:
    """`mon` on a terminal of 80 by 24."""

    def __init__(self, run: Path, *arguments: str, **more: str) -> None:
        self.output = b""
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
            os.chdir(ROOT)
            os.execve(sys.executable, [sys.executable, "-m", "cli.mon", *arguments], environment(run, **more))

    def wait_for(self, text: str) -> None:
        end = time.monotonic() + 20
        while text.encode() not in self.output:
            assert select.select([self.descriptor], [], [], max(0, end - time.monotonic()))[0], self.output
            self.output += os.read(self.descriptor, 65536)

    def end(self, key: bytes) -> int:
        os.write(self.descriptor, key)
        try:
            while data := os.read(self.descriptor, 65536):
                self.output += data
        except OSError:  # EIO: the other end is closed
            pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self.descriptor)
        return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_live_table_follows_the_daemon_and_ends_by_key(tmp_path: Path, key: bytes) -> None:
    loads = iter([3.2, 3.2])
    path = tmp_path / "mosd.sock"

    def answer() -> dict[str, Any]:
        row = VIEW.rows()[0] | {"load": next(loads, 7.77)}
        return {"ok": True, "nodes": [row]}

    with daemon_at(path, answer):
        terminal = Terminal(tmp_path, "-n", "0.1")
        terminal.wait_for("3.20")
        terminal.wait_for("7.77")
    terminal.wait_for("no mosd answers")  # it stays, and says that the daemon has gone
    assert terminal.end(key) == 0


def test_no_color_is_respected(tmp_path: Path) -> None:
    with daemon_at(tmp_path / "mosd.sock", lambda: {"ok": True, "nodes": VIEW.rows()}):
        colored = Terminal(tmp_path, "-n", "0.1")
        colored.wait_for("n4-with-a-v~")
        assert colored.end(b"q") == 0
        plain = Terminal(tmp_path, "-n", "0.1", NO_COLOR="1")
        plain.wait_for("n4-with-a-v~")
        assert plain.end(b"q") == 0
    assert b"\x1b[34m" in colored.output
    assert b"\x1b[34m" not in plain.output


def test_terminal_that_can_do_nothing_gets_a_sentence(tmp_path: Path) -> None:
    with daemon_at(tmp_path / "mosd.sock", lambda: {"ok": True, "nodes": VIEW.rows()}):
        terminal = Terminal(tmp_path, TERM="no-such-terminal")
        terminal.wait_for("--once")
        assert terminal.end(b"") == 69


def test_output_into_a_closed_pipe_is_no_fault(tmp_path: Path) -> None:
    with daemon_at(tmp_path / "mosd.sock", lambda: {"ok": True, "nodes": VIEW.rows()}):
        reader, writer = os.pipe()
        os.close(reader)
        with subprocess.Popen(
            [sys.executable, "-m", "cli.mon", "--json"],
            cwd=ROOT, env=environment(tmp_path), stdout=writer, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            os.close(writer)
            _, errors = process.communicate(timeout=30)
    assert b"Traceback" not in errors
    assert process.returncode in (0, -signal.SIGPIPE)
