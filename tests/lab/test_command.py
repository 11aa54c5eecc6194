"""The command `lab`, as it is installed."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.lab import parser
from lab import Lab
from tests.access import needs_ordinary_users_here
from tests.lab.waiting import until

LAB = Path(__file__).resolve().parent.parent.parent / "bin" / "lab"


def lab(*arguments: str, cwd: str = "/") -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run([LAB, *arguments], capture_output=True, text=True, timeout=60, cwd=cwd, stdin=subprocess.DEVNULL, check=False)


def test_a_lab_comes_and_goes_by_commands(lab_name: Callable[[], str]) -> None:
    name = lab_name()
    assert lab("up", "3", "--no-mosd", "--name", name).stdout == f"lab {name}: n1, n2, n3 up\n"
    try:
        assert lab("sh", "--name", name, "n2", "hostname").stdout == "n2\n"
        assert lab("sh", "--name", name, "n2", "--user", "farhome-a", "id", "-un").stdout == "farhome-a\n"
        assert lab("sh", "--name", name, "--user", "farhome-b", "n2", "id", "-un").stdout == "farhome-b\n"
        assert lab("sh", "--name", name, "n2", "--", "sh", "-c", "exit 7").returncode == 7
        assert lab("sh", "--name", name, "n2", "--user", "farhome-a", "--", "id", "-un").stdout == "farhome-a\n"
        assert lab("sh", "--name", name, "n2", "--user=farhome-a", "--", "id", "-un").stdout == "farhome-a\n"
        assert lab("sh", "--name", name, "n2", "sh", "-c", "kill -KILL $$").returncode == -signal.SIGKILL
        assert lab("cut", "--name", name, "n1", "n2").returncode == 0
        assert lab("kill", "--name", name, "n3").returncode == 0
        status = json.loads(lab("status", "--json", "--name", name).stdout)
        assert [node["alive"] for node in status["nodes"]] == [True, True, False]
        assert status["cuts"] == [["n1", "n2"]]
        assert "dead" in lab("status", "--name", name).stdout
        assert lab("heal", "--name", name).stdout == "1 healed\n"
    finally:
        assert lab("down", "--name", name).stdout == f"lab {name} is down\n"
    assert lab("down", "--name", name).stdout == f"lab {name} was not up\n"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((), 64, "VERB"),
        (("fly",), 64, "fly"),
        (("up", "many"), 64, "many"),
        (("up", "0"), 1, "1 to 250"),
        (("up", "3", "--speed", "fast"), 64, "n2=0.5"),
        (("up", "3", "--speed", "n9=0.5"), 1, "n9"),
        (("up", "3", "--speed", "n1=7"), 1, "0.01"),
        (("up", "3", "--cpus", "-1"), 1, "processors"),
        (("up", "3", "--bandwidth", "much"), 1, "100mbit"),
        (("up", "3", "--delay", "soon"), 64, "0.2ms"),
        (("up", "3", "--delay", "0.2"), 64, "0.2ms"),
        (("up", "3", "--delay", "-1ms"), 64, "--delay"),
        (("up", "3", "--delay", "2s"), 64, "0 to 1 s"),
        (("up", "3", "--delay", "1ms", "--jitter", "nan"), 64, "200us"),
        (("up", "3", "--delay", "1ms", "--jitter", "2ms"), 64, "part of the delay"),
        (("up", "3", "--jitter", "1ms"), 64, "part of the delay"),
        (("up", "3", "--name", "../x"), 1, "no name for a lab"),
        (("status", "--name", "nowhere"), 1, "not up"),
        (("sh", "--name", "nowhere", "n1", "true"), 1, "not up"),
        (("kill", "--name", "nowhere", "n1"), 1, "not up"),
        (("cut", "--name", "nowhere", "n1", "n2"), 1, "not up"),
        (("cut", "n1", "n1"), 1, "between two nodes"),
        (("heal", "--name", "nowhere"), 1, "not up"),
        (("storm", "7", "--every", "often"), 64, "0.3-2"),
        (("storm", "7", "--name", "nowhere"), 1, "not up"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: tuple[str, ...], status: int, words: str) -> None:
    result = lab(*arguments)
    assert (result.returncode, result.stdout) == (status, "")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not Path("/run/farhome-lab/nowhere").exists()


@pytest.mark.parametrize(
    "arguments", [("sh", "n9", "true"), ("kill", "n9"), ("cut", "n1", "n9"), ("sh", "n1", "--user", "nobody-here", "id")]
)
def test_an_unknown_node_or_user_gives_one_sentence(bare_lab: Lab, arguments: tuple[str, ...]) -> None:
    result = lab(arguments[0], "--name", bare_lab.name, *arguments[1:])
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "n9" in result.stderr or "nobody-here" in result.stderr


def test_an_ordinary_user_gets_the_message_that_a_lab_needs_root() -> None:
    needs_ordinary_users_here()
    result = subprocess.run(
        ["setpriv", "--reuid", "farhome-a", "--regid", "farhome-a", "--init-groups", LAB, "up", "1"],
        capture_output=True, text=True, timeout=30, check=False, cwd="/",
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (1, "lab: a lab needs root.\n")


def test_every_verb_has_help() -> None:
    for verb in ("up", "down", "sh", "kill", "cut", "heal", "status", "storm"):
        with pytest.raises(SystemExit) as end:
            parser().parse_args([verb, "--help"])
        assert end.value.code == 0


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, argv: list[str]) -> None:
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.execv(argv[0], argv)
        self.seen = ""

    def until(self, text: str, seconds: float = 15.0) -> None:
        """Read until the text has appeared; what comes after it is kept for the next time."""
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            ready, _, _ = select.select([self.descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not appear in {self.seen!r}"
            self.seen += os.read(self.descriptor, 4096).decode()
        self.seen = self.seen.partition(text)[2]

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self.descriptor, text.encode())

    def end(self) -> int:
        """The exit status."""
        try:
            while select.select([self.descriptor], [], [], 10)[0] and os.read(self.descriptor, 4096):
                pass
        except OSError:
            pass  # EIO: the other side is closed
        _, status = os.waitpid(self.pid, 0)
        os.close(self.descriptor)
        return os.waitstatus_to_exitcode(status)


def test_an_interactive_shell_has_a_terminal_with_job_control(bare_lab: Lab) -> None:
    terminal = Terminal([str(LAB), "sh", "--name", bare_lab.name, "n1", "bash", "--norc", "-i"])
    terminal.type("PS1='ready> '; echo on $(hostname) $(tty)\n")
    terminal.until("on n1 /dev/pts/0")
    terminal.until("ready> ")
    terminal.type("sleep 1000\n")
    node = bare_lab.node("n1")

    def state_of_sleep() -> str:
        return str(node.run(["ps", "-o", "stat=", "-C", "sleep"], text=True).stdout).strip()

    until(lambda: state_of_sleep() == "S+")
    terminal.type("\x1a")
    terminal.until("Stopped")
    terminal.until("ready> ")
    assert state_of_sleep() == "T"
    terminal.type("fg\n")
    until(lambda: state_of_sleep() == "S+")
    terminal.type("\x03")
    until(lambda: state_of_sleep() == "")
    terminal.until("ready> ")
    terminal.type("exit 5\n")
    assert terminal.end() == 5
