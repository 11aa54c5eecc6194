"""A running process that mosrun did not start moves as if it had: away, on, home and out again, and its parent has its end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.moves.cluster import HOME, Cluster, Move, until
from tests.moves.outcome import PATH, kill_session
from tests.moves.workloads import USER
from tests.programs.build import program

pytestmark = pytest.mark.timeout(120)

CALLING = """
import ctypes, os, sys, time
with open("lines", "a", buffering=1) as lines:
    for number in range(int(sys.argv[1])):
        print(number, file=lines)
        time.sleep(0.05)
        if os.path.exists("end"):
            break
        if os.path.exists("call"):
            os.remove("call")
            ctypes.CDLL(None).setns(-1, 0)
sys.exit(42)
"""


class Native:
    """A program started in the usual way, whose shell writes its exit status behind what it says."""

    def __init__(self, cluster: Cluster, directory: Path, line: str, user: str = "") -> None:
        self.cluster, self.directory, self.user = cluster, directory, user
        self.output = (directory / "said").open("wb")
        script = f'cd /tmp/{directory.name} && ({line} & echo $! > pid; wait $!); echo "status $?"'
        argv = ["env", "-i", f"PATH={PATH}", "LC_ALL=C.UTF-8", "setsid", "--wait", "bash", "-c", script]
        self.process = cluster.home.popen(argv, user, stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output)
        self.pid = int(str(until("it has begun", lambda: (directory / "pid").exists() and (directory / "pid").read_text().strip())))

    def lines(self) -> list[str]:
        path = self.directory / "lines"
        return path.read_text().splitlines() if path.exists() else []

    def works(self) -> None:
        """Waits until it has written more."""
        before = len(self.lines())
        until(f"it goes on; it said {self.said()!r}", lambda: len(self.lines()) > before)

    def said(self) -> str:
        return (self.directory / "said").read_text()

    def move(self, target: str) -> Move:
        shown = self.shown()
        source = HOME if shown is None else self.cluster.where(shown)
        move = self.cluster.migrate(self.pid, source, target, user=self.user)
        print(move)
        return move

    def shown(self) -> dict[str, Any] | None:
        """Returns the row of mosps for it."""
        done = self.cluster.home.run("mosps", "-v", "--json", user=self.user)
        return next((row for row in json.loads(done.stdout) if row["pid"] == self.pid), None)

    def taken_home(self) -> dict[str, int]:
        """Returns how often each call for other namespaces has taken it home."""
        shown = self.shown()
        assert shown is not None
        counts = {count["reason"]: int(count["times"]) for count in shown["taken_home"] if count["call"]}
        return {call: times for call, times in counts.items() if call == "setns"}

    def end(self) -> str:
        self.process.wait(60)
        return self.said()

    def close(self) -> None:
        if self.process.poll() is None:
            kill_session(self.process.pid)
            self.process.wait(10)
        self.output.close()


@pytest.fixture
def directory(cluster: Cluster) -> Iterator[Path]:
    """A fresh world-writable directory of the home node, with a counter, and a program that makes a home call once a file `call` exists."""
    made = Path(tempfile.mkdtemp(prefix="adopt-", dir=cluster.home.root / "tmp"))
    made.chmod(0o777)
    shutil.copy(program("counter"), made / "counter")
    (made / "calling.py").write_text(CALLING)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize("user", [pytest.param("", marks=pytest.mark.soak), USER], ids=["root", "ordinary user"])
def test_an_adopted_process_moves_and_its_parent_gets_its_status(cluster: Cluster, directory: Path, user: str) -> None:
    native = Native(cluster, directory, "python3 calling.py 5000", user)
    try:
        native.works()
        assert native.shown() is None
        for target in ("n2", "n3", HOME, "n2"):
            assert native.move(target).done
            shown = native.shown()
            assert shown is not None
            assert (cluster.where(shown), shown["adopted"], shown["locked"]) == (target, True, True)
            native.works()
        (directory / "end").touch()
        assert native.end() == "status 42\n"
        lines = native.lines()
        assert lines == [str(number) for number in range(len(lines))]
        assert native.shown() is None
    finally:
        native.close()


def test_killed_away_its_parent_has_the_signal(cluster: Cluster, directory: Path) -> None:
    native = Native(cluster, directory, "./counter lines 1000 50 8")
    try:
        native.works()
        assert native.move("n2").done
        native.works()
        assert cluster.home.run("kill", "-TERM", str(native.pid)).returncode == 0
        assert native.end().endswith(f"status {128 + signal.SIGTERM}\n")
    finally:
        native.close()


def test_calls_that_took_it_home_are_listed_and_survive_mosd(cluster: Cluster, directory: Path) -> None:
    native = Native(cluster, directory, "python3 calling.py 1000")
    try:
        for turn in range(2):
            native.works()
            assert native.move("n2").done
            (directory / "call").touch()
            until("the call takes it home", lambda turn=turn: sum(native.taken_home().values()) == turn + 1)  # type: ignore[misc]
        ((call, times),) = native.taken_home().items()
        assert times == 2
        node = cluster.lab.node(HOME)
        node.stop_mosd(signal.SIGKILL)
        node.start_mosd()
        table = cluster.home.run("mosps", "-v").stdout
        assert f"came home for: the call {call} (2 times)" in table
        shown = cluster.home.run("mosps", "--why", str(native.pid)).stdout
        assert shown.count(f"n2 -> home: the call {call}") == 2
        until("it can be moved again", lambda: native.move("n3").done, seconds=15, every=0.5)
        native.works()
    finally:
        native.close()
    done = cluster.home.run("mosps", "--why", str(native.pid))
    assert f"the call {call}" in done.stdout, "the call is also reported after the process has ended"


def test_another_users_process_is_not_adopted(cluster: Cluster, directory: Path) -> None:
    native = Native(cluster, directory, "./counter lines 1000 50 8", USER)
    try:
        native.works()
        for command in (["migrate", str(native.pid), "n2"], ["moscheck", str(native.pid)]):
            stranger = cluster.home.run(*command, user="farhome-b")
            assert (stranger.returncode, stranger.stderr) == (77, f"{command[0]}: process {native.pid} belongs to {USER}\n")
        assert cluster.home.run("migrate", "1", "n2", user=USER).returncode == 77
        assert native.shown() is None
        assert cluster.home.run("migrate", str(native.pid), "n2").returncode == 0, "root may"
        assert native.shown() is not None, "it is still its user's"
        native.works()
    finally:
        native.close()


def test_all_reasons_against_a_move_are_shown_and_a_refused_move_changes_nothing(cluster: Cluster, directory: Path) -> None:
    line = "import ctypes, time; c = ctypes.CDLL(None); c.shmat.restype = ctypes.c_void_p; i = c.shmget(0, 4096, 0o1600)"
    line += "; c.shmat(i, None, 0); c.shmctl(i, 0, None); c.timer_create(2, None, bytes(8)); time.sleep(60)"
    (directory / "held.py").write_text(line)
    native = Native(cluster, directory, "python3 held.py")
    try:
        until("it holds both", lambda: cluster.home.run("moscheck", str(native.pid)).stdout.count("\n") == 3)
        checked = cluster.home.run("moscheck", str(native.pid))
        assert checked.returncode == 1
        assert "counts its processor time" in checked.stdout
        assert "System V shared memory" in checked.stdout
        move = native.move("n2")
        assert not move.done
        assert "exit 75" in move.said
        assert native.shown() is None, "it is none of farhome's then"
        assert cluster.home.run("moscheck", str(native.pid), "--json").returncode == 1
    finally:
        native.close()


def test_a_shell_that_moves_itself_goes_on(cluster: Cluster, directory: Path) -> None:
    """migrate $$: what it starts afterwards, and what has waited for it, come to their ends."""
    native = Native(cluster, directory, "bash -c 'migrate $$ n2; (exit 7); echo code $?; mosps | grep -c adopted; true'")
    try:
        said = native.end()
        assert f"process {native.pid} is on n2" in said
        assert "code 7\n" in said
        assert said.endswith("status 0\n")
    finally:
        native.close()


WORK = 750_000 if os.environ.get("FARHOME_LONG_TESTS") else 250_000
"""Lines that it packs while it moves, and again when it has moved."""


def test_in_the_midst_of_a_pipe_its_work_is_the_same(cluster: Cluster, directory: Path) -> None:
    """xz between two pipes, taken while it works: what comes out is what comes out natively."""
    numbers = f"seq {WORK}; until [ -e moved ]; do sleep 0.05; done; seq {WORK}"
    line = f"({numbers}) | (echo $BASHPID > worker; exec xz -6 -T1 -c) > packed; xz -dc packed | cksum"
    native = Native(cluster, directory, f"bash -c '{line}'")
    try:
        worker = str(until("xz is there", lambda: (directory / "worker").exists() and (directory / "worker").read_text().strip()))
        until("it is xz", lambda: (cluster.home.root / "proc" / worker / "comm").read_text().strip() == "xz")
        for source, target in ((HOME, "n2"), ("n2", "n3"), ("n3", HOME), (HOME, "n3")):
            move = cluster.migrate(int(worker), source, target)
            assert move.done, move.said
        (directory / "moved").touch()
        said = native.end()
        expected = cluster.home.run("bash", "-c", f"(seq {WORK}; seq {WORK}) | cksum").stdout
        assert said == expected + "status 0\n"
    finally:
        native.close()


def test_with_mixed_ids_and_memory_that_fork_leaves_out_it_moves_for_root_alone(cluster: Cluster, directory: Path) -> None:
    """Obstacles for CRIU are noted but are no reason against the move: the engine `pour` moves it."""
    (directory / "mixed.py").write_text(
        "import mmap, os, sys\n"
        "m = mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); m.madvise(mmap.MADV_DONTFORK); m[:4] = b'kept'\n"
        "os.setresuid(pwd := __import__('pwd').getpwnam('farhome-a').pw_uid, 0, 0)\n"
        "for line in sys.stdin: print(line.strip(), m[:4], os.getresuid() == (pwd, 0, 0), flush=True)\n"
    )
    os.mkfifo(directory / "in")
    native = Native(cluster, directory, "python3 mixed.py < in")
    with (directory / "in").open("w", buffering=1) as asks:
        try:
            print("home", file=asks)
            until("it answers", lambda: "home" in native.said())
            assert cluster.home.run("migrate", str(native.pid), "n2", user=USER).returncode == 77
            checked = json.loads(cluster.home.run("moscheck", str(native.pid), "--json").stdout)
            assert (checked["can_move"], checked["reasons"]) == (True, [])
            assert any("MADV_DONTFORK" in note for note in checked["notes"])
            for target in ("n2", "n3", HOME):
                assert native.move(target).done
                print(target, file=asks)
                until("it goes on there", lambda target=target: f"{target} b'kept' True\n" in native.said())  # type: ignore[misc]
            asks.close()
            assert native.end().endswith("status 0\n")
        finally:
            native.close()
