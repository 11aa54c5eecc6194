"""Programs that `mosrun -b` starts on a busy home leave it before their first instruction."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lab import Lab, Node
from tests import leftovers

pytestmark = pytest.mark.timeout(90)
USER = "farhome-a"
WRITES = "import os, sys; held = bytearray(b'x') * (64 << 20); print(os.getpid(), flush=True); sys.stdin.read(); print(sum(held[::4096]))"


def until(condition: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not come within {seconds:g} s"
        time.sleep(0.05)
    return found


def is_uneven(home: Node) -> bool:
    """Returns whether home is known to be busy, and n2 not to be."""
    nodes = {row["name"]: row for row in home.ask_mosd("nodes")["nodes"]}
    here, there = nodes["n1"], nodes.get("n2")
    return there is not None and here["runnable"] > 3 and (here["cpu_pressure"] or 1.0) > 0.8 and there["runnable"] < 0.5


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """n1, whose processor others use, and n2 at rest."""
    configuration = "speed = 1.0\n[balance]\nenabled = false\n"
    with Lab.up(2, name=f"t-{os.environ[leftovers.RUN]}-{os.getpid()}-begin", configuration=configuration) as lab:
        busy = lab.node("n1").popen(["sh", "-c", "for n in 1 2 3 4; do while :; do :; done & done; wait"], start_new_session=True)
        try:
            yield lab
        finally:
            os.killpg(busy.pid, signal.SIGKILL)
            busy.wait()


@pytest.fixture
def home(lab: Lab) -> Iterator[Node]:
    home = lab.node("n1")
    until(lambda: is_uneven(home), "a busy n1 and an idle n2")
    yield home
    until(lambda: not home.ask_mosd("ps", all=True)["processes"], "the end of all processes")
    until(lambda: not lab.node("n2").ask_mosd("ps", guests=True)["guests"], "the end of all guests")
    until(lambda: not os.listdir(home.root / "run/farhome/deputy"), "the end of all deputies")


def start(home: Node, *words: str, user: str | None = None, options: tuple[str, ...] = ("-b",)) -> subprocess.Popen[str]:
    return home.popen(
        ["mosrun", *options, *words], user=user, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def moves(home: Node, pid: int) -> list[tuple[str, int]]:
    """(to, bytes) of each move of a process, which has been moved."""

    def sizes_of_moves() -> list[tuple[str, str]]:
        text = (home.root / "run/farhome/mosd.log").read_text(errors="replace")
        return re.findall(rf"process {pid}: home -> (\w+), .* total .* ms, (\d+) bytes", text)

    return [(to, int(size)) for to, size in until(sizes_of_moves, f"a move of {pid}")]


@pytest.mark.parametrize("user", [pytest.param(None, marks=pytest.mark.soak), USER])
def test_a_program_leaves_before_its_first_instruction(home: Node, user: str | None) -> None:
    sizes = []
    for _ in range(5):
        process = start(home, "/usr/bin/python3", "-c", WRITES, user=user)
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        ((target, size),) = moves(home, pid)
        assert [(row["where"], row["moves"]) for row in home.ask_mosd("ps", all=True)["processes"]] == [("n2", 1)]
        assert process.communicate("", timeout=30) == (f"{(64 << 20) // 4096 * ord('x')}\n", "")
        assert (process.returncode, target) == (0, "n2")
        sizes.append(size)
        if size < 2 << 20:  # what it has written it wrote where it is now
            break
        until(lambda: is_uneven(home), "an idle n2")  # it had to wait too long, and began at home
    assert sizes[-1] < 2 << 20, sizes


def test_a_script_leaves_with_its_interpreter(home: Node) -> None:
    script = home.root / "tmp/script"
    script.write_text("#!/bin/sh -e\necho $$ $0 $1 $WORD\nread line\nexit $line\n")
    script.chmod(0o755)
    process = start(home, "/usr/bin/env", "WORD=value", "/tmp/script", "one")
    assert process.stdout is not None
    pid, *words = process.stdout.readline().split()
    assert words == ["/tmp/script", "one", "value"]
    assert [target for target, _ in moves(home, int(pid))] == ["n2"]
    process.communicate("7\n", timeout=30)
    assert process.returncode == 7


def test_many_that_begin_together_are_all_right(home: Node) -> None:
    processes = [start(home, "/bin/sh", "-c", f"read line; exit {number}") for number in range(8)]
    for number, process in enumerate(processes):
        assert (process.communicate("\n", timeout=60), process.returncode) == (("", ""), number)


@pytest.mark.parametrize(("word", "code"), [("/nowhere/at-all", 127), ("/etc/passwd", 126)])
def test_a_program_that_cannot_be_executed_is_reported_and_leaves_nothing(home: Node, word: str, code: int) -> None:
    process = start(home, word)
    _, error = process.communicate("", timeout=30)
    assert process.returncode == code
    assert error.startswith("mosrun: ")


def test_a_program_with_rights_of_its_own_has_them_and_begins_at_home(home: Node) -> None:
    home.run("mkdir -p /tmp/rights && mount -t tmpfs none /tmp/rights", check=True)
    home.run("cp /usr/bin/id /tmp/rights/ && chmod 4755 /tmp/rights/id", check=True)
    try:
        process = start(home, "/tmp/rights/id", "-u", user=USER)
        assert process.communicate("", timeout=30) == ("0\n", "")
    finally:
        home.run("umount /tmp/rights", check=True)


def test_a_program_with_private_directories_leaves_too(home: Node) -> None:
    (home.root / "tmp/private").mkdir(exist_ok=True)
    process = start(
        home,
        "/bin/sh",
        "-c",
        "echo $$; echo data > /tmp/private/file; read line; cat /tmp/private/file",
        options=("-b", "-X", "/tmp/private"),
    )
    assert process.stdout is not None
    assert [target for target, _ in moves(home, int(process.stdout.readline()))] == ["n2"]
    assert process.communicate("\n", timeout=30) == ("data\n", "")
    assert not os.listdir(home.root / "tmp/private")


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_a_program_killed_while_it_waits_or_leaves_leaves_nothing_behind(home: Node, number: int) -> None:
    for delay in (hundredths / 100 for hundredths in range(0, 32, 2)):  # it waits, leaves, is away
        script = f"mosrun -b /bin/sleep 100 & sleep {delay}; kill -{int(number)} $!; wait $!"
        assert home.run(["sh", "-c", script], timeout=30).returncode == 128 + number


@pytest.mark.parametrize("delay", [0.0, 0.1, *(pytest.param(delay, marks=pytest.mark.soak) for delay in (0.05, 0.2))])
def test_a_waiting_program_can_be_stopped_and_continued(home: Node, delay: float) -> None:
    script = f"""mosrun -b /bin/sh -c 'sleep 0.1; exit 7' & sleep {delay}; kill -STOP $!; sleep 0.3; kill -CONT $!; wait $!"""
    assert home.run(["sh", "-c", script], timeout=30).returncode == 7
