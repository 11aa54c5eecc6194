"""`mon`, the command, against a socket that speaks as the node daemon does."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

from tests.monitor.pictures import answer, node
from wire.frames import WireError, receive, send

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["n1", "n2", "n3", "n10-with-a-very-long-name"]


@contextmanager
def daemon_at(path: Path, reply: Callable[[], dict[str, Any]]) -> Iterator[None]:
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
                    assert receive(connection) == {"op": "watch"}
                    send(connection, reply())
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


def test_once_and_json_show_the_same(tmp_path: Path) -> None:
    with daemon_at(tmp_path / "mosd.sock", answer):
        once, plain, data = mon(tmp_path, "--once"), mon(tmp_path), mon(tmp_path, "--json")
    assert (once.returncode, plain.returncode, data.returncode) == (0, 0, 0)
    assert once.stdout == plain.stdout
    assert "\x1b" not in once.stdout
    rows = json.loads(data.stdout)
    assert [row["name"] for row in rows] == NAMES
    assert [row["state"] for row in rows] == ["lends", "lends", "blocked", "silent"]


def test_nothing_of_the_live_monitor_is_loaded_for_plain_output(tmp_path: Path) -> None:
    with daemon_at(tmp_path / "mosd.sock", answer):
        for option in ("--once", "--json"):
            program = f"import sys; from cli import mon; mon.body(['{option}']); sys.exit(len({{'textual', 'rich'}} & {{*sys.modules}}))"
            done = subprocess.run(
                [sys.executable, "-c", program], cwd=ROOT, env=environment(tmp_path), capture_output=True, timeout=30, check=False
            )
            assert (done.returncode, done.stderr) == (0, b"")


def test_nothing_that_is_slow_to_load_stands_before_the_first_picture(tmp_path: Path) -> None:
    program = (
        "import sys; from cli import mon; mon.parser(); from monitor.drawings import frames, styles; "
        "print({'textual', 'rich', 'asyncio', 'shutil', 'json', 'difflib', 'subprocess', 'balancer.lending.policy'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {program}"], env=environment(tmp_path),
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("variables", "seen"), [({"COLUMNS": "100", "LINES": "40"}, (100, 40)), ({"COLUMNS": "x", "LINES": "0"}, (80, 24))]
)
def test_size_of_the_terminal_comes_from_the_environment_or_is_80_by_24(
    variables: dict[str, str], seen: tuple[int, int], tmp_path: Path
) -> None:  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", "from cli.common.command import terminal_size; print(*terminal_size())"], cwd=ROOT,
        env=environment(tmp_path) | variables, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [str(number) for number in seen]


def test_without_a_daemon_it_says_so_in_one_sentence(tmp_path: Path) -> None:
    for arguments in (["--once"], ["--json"], []):
        done = mon(tmp_path, *arguments)
        assert done.returncode == 69
        assert done.stdout == ""
        assert done.stderr.startswith("mon: no mosd answers on this node")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "nonsense",
    [{"ok": False, "error": "not now"}, {"ok": True, "nodes": 7}, {"ok": True, "nodes": [1]}, {"ok": True, "nodes": [{}]}, {"ok": True}],
)
def test_daemon_that_answers_nonsense_is_reported_in_one_sentence(tmp_path: Path, nonsense: dict[str, Any]) -> None:
    with daemon_at(tmp_path / "mosd.sock", lambda: nonsense):
        done = mon(tmp_path, "--once")
    assert done.returncode == (75 if nonsense.get("error") else 69)
    assert done.stderr.startswith("mon: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [
    ["-n", "x"], ["-n", "0"], ["-n", "nan"], ["--color"], ["n1"], ["--web", "x"], ["--web", "65536"], ["--allow-moves"],
    ["--once", "--json"],
])  # fmt: skip
def test_wrong_usage_ends_with_64(tmp_path: Path, arguments: list[str]) -> None:
    done = mon(tmp_path, *arguments)
    assert done.returncode == 64
    assert done.stderr.startswith("mon: ")
    assert done.stderr.count("\n") == 1


LIVE = "\x1b[?1000h"
"""The monitor's request to the terminal, when it takes over, to report the mouse."""


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

    def loaded() -> dict[str, Any]:
        return answer(nodes=[node("n1", next(loads, 7.77), self=True)])

    with daemon_at(path, loaded):
        terminal = Terminal(tmp_path, "-n", "0.1")
        terminal.wait_for("3.20")
        terminal.wait_for("7.77")
    terminal.wait_for("no mosd answers")  # it stays, and says that the daemon has gone
    assert terminal.end(key) == 0


def test_no_color_is_respected(tmp_path: Path) -> None:
    with daemon_at(tmp_path / "mosd.sock", answer):
        colored = Terminal(tmp_path, "-n", "0.1")
        colored.wait_for(LIVE)
        assert colored.end(b"q") == 0
        plain = Terminal(tmp_path, "-n", "0.1", NO_COLOR="1")
        plain.wait_for(LIVE)
        assert plain.end(b"q") == 0
    assert re.search(rb"\x1b\[[\d;]*35m", colored.output)
    assert not re.search(rb"\x1b\[[\d;]*[34][0-8]([;m])", plain.output)


def test_web_serves_the_daemons_data_until_it_is_interrupted(tmp_path: Path) -> None:
    with (
        daemon_at(tmp_path / "mosd.sock", answer),
        subprocess.Popen(
            [sys.executable, "-m", "cli.mon", "--web", "0"], cwd=ROOT, env=environment(tmp_path), stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdout is not None
        address = process.stdout.readline().split()[0]
        with urllib.request.urlopen(f"{address}picture", timeout=20) as page:
            assert [one["name"] for one in json.load(page)["nodes"]] == [*NAMES[:3], "n9", NAMES[3]]
        with urllib.request.urlopen(f"{address}metrics", timeout=20) as page:
            assert b'farhome_node_load{node="n1"} 3.2' in page.read()
        taken = mon(tmp_path, "--web", address.rsplit(":", 1)[1].strip("/"))
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert taken.returncode == 1
    assert re.fullmatch(r"mon: no page can be served at port \d+: Address already in use\n", taken.stderr)


def test_first_screen_says_that_it_is_not_live_yet(tmp_path: Path) -> None:
    with daemon_at(tmp_path / "mosd.sock", answer):
        terminal = Terminal(tmp_path, "-n", "0.1")
        terminal.wait_for(LIVE)
        first = terminal.output.partition(LIVE.encode())[0]
        assert b"becomes live" in first
        assert b"q quit" not in first and b"? q" not in first
        terminal.wait_for("? q")
        assert terminal.end(b"q") == 0


def test_terminal_that_can_do_nothing_gets_a_sentence(tmp_path: Path) -> None:
    with daemon_at(tmp_path / "mosd.sock", answer):
        terminal = Terminal(tmp_path, TERM="no-such-terminal")
        terminal.wait_for("--once")
        assert terminal.end(b"") == 69


def test_output_into_a_closed_pipe_is_no_fault(tmp_path: Path) -> None:
    with daemon_at(tmp_path / "mosd.sock", answer):
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
