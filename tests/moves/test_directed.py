"""Signals directed at a thread by the kernel reach that thread, with their siginfo; a terminal checks the guest's mask for its caller."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.faults.running import Running
from tests.moves.cluster import Cluster, until
from tests.programs.build import program

pytestmark = pytest.mark.timeout(120)

WAYS = ["timer", "owner", "thread", "outside"]
OF_A_KIND = [
    "shared",
    "process=-6",
    "pidfd",
    "thread=0",
    "queue",
    "pipe",
    "kill",
    "urgent",
    "sigqueue",
    "group",
    "thread=-6",
    "thread=9",
    "process=0",
    "process=3",
]
"""Sent to an owner, or for the process by a thread's id, as one of those."""


def natively(directory: Path, name: str, *arguments: str) -> str:
    """Returns the program's output at home; it writes its lines into the directory."""
    return subprocess.run([program(name), *arguments], cwd=directory, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("what", [*WAYS, *(pytest.param(what, marks=pytest.mark.soak) for what in OF_A_KIND)])
def test_a_signal_for_a_thread_comes_to_that_thread(cluster: Cluster, what: str, tmp_path: Path) -> None:
    """pipe: of the thread's own write. shared: for the process, any thread may take it. thread: glibc's, which waits for it at home. kill,
    sigqueue, group, outside: for the process, sent by the id of that thread."""
    who = "leader" if what == "thread" else "worker"
    for name in ("settled", "enough"):
        (tmp_path / name).touch()
    expected = natively(tmp_path, "directed", who, what, "10").replace(": few,", ": many,")  # in its short time on a busy machine
    with Running(cluster, "directed", f"{who} {what} 20") as directed:
        directed.works()
        assert directed.move("n2").done  # glibc's thread may take it home at once
        for name, lines in (("settled", 1), ("enough", 10)):  # of a process the kernel prefers no thread while it stands still
            for _ in range(lines):
                directed.works()
            (directed.directory / name).touch()
        assert directed.end() == f"{expected}status 0\n"


def test_a_signal_ends_a_call_though_the_first_thread_has_ended(cluster: Cluster) -> None:
    """The kernel would prefer the first thread, if it lived."""
    with Running(cluster, "left", "") as left:
        left.works()
        left.moved("n2")
        (left.directory / "go").touch()
        for _ in range(8):
            left.works()
        (left.directory / "enough").touch()
        assert left.end() == "status 0\n"


def test_a_terminal_decides_by_what_its_caller_blocks(cluster: Cluster, tmp_path: Path) -> None:
    """In the background of a terminal: changing it, writing to it, reading from it; blocked, ignored, handled, by default, orphaned."""
    (tmp_path / "go").touch()
    expected = natively(tmp_path, "background"), (tmp_path / "lines").read_text().splitlines()
    with Running(cluster, "background", "") as background:
        until("it waits", background.lines)
        background.moved("n2")
        (background.directory / "go").touch()
        said = background.end()
        assert background.lines() == expected[1]
        assert said == f"{expected[0]}status 0\n"


def test_a_call_on_a_thread_id_reports_that_thread(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    expected = natively(tmp_path, "named")
    with Running(cluster, "named", "") as named:
        until("it waits", named.lines)
        named.moved("n2")
        (named.directory / "go").touch()
        assert named.end() == f"{expected}status 0\n"


@pytest.mark.parametrize("what", ["signals", "children", "limited"])
def test_a_signal_that_a_thread_sends_to_its_process_is_handled_when_the_call_ends(cluster: Cluster, what: str, tmp_path: Path) -> None:
    """The first thread, which the kernel prefers, however many other signals wait for it at that moment. children: of the end of a child
    it has heard when it can wait for it. limited: of that alone, though another was about to be, and home had no descriptors for it."""
    (tmp_path / "go").touch()
    expected = natively(tmp_path, "toitself", what)
    with Running(cluster, "toitself", what) as program_:
        until("it waits", program_.lines)
        program_.moved("n2")
        (program_.directory / "go").touch()
        assert program_.end() == f"{expected}status 0\n"
