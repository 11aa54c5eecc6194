"""Writes that are answered where a process is and made at home a moment later: in order, all of them, before anyone can notice, and as
they would have been at home."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.moves.cluster import HOME, Cluster, until
from tests.moves.test_carried import directory, end, inside, pid_of

pytestmark = pytest.mark.timeout(180)
PROGRAM = Path(__file__).parents[1] / "programs" / "ahead.py"
LINE = 100


@pytest.fixture(scope="module")
def waiting() -> Iterator[Cluster]:
    """A cluster whose processes wait for each write."""
    made = Cluster(configuration="\n[away]\nrun_ahead = false\n")
    yield made
    made.down()


@pytest.fixture(params=["ahead", "waiting"])
def either(request: pytest.FixtureRequest) -> Cluster:
    made: Cluster = request.getfixturevalue("cluster" if request.param == "ahead" else "waiting")
    return made


def started(cluster: Cluster, path: Path, arguments: str, mosrun: bool = True, node: str = "n2") -> subprocess.Popen[bytes]:
    shutil.copy(PROGRAM, path)
    run = f"mosrun -L -r {node} -J {path.name}" if mosrun else "exec"
    script = f"cd {inside(cluster, path)} && {run} python3 ahead.py {arguments}"
    return cluster.home.popen(["bash", "-c", script], "", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def trips(cluster: Cluster, pid: int) -> int:
    return int(cluster.lab.node(HOME).ask_mosd("why", pid=pid)["trips"])


@pytest.mark.parametrize("where", ["disk", "memory"])
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 13))])
def test_files_have_the_expected_content_after_every_move(cluster: Cluster, seed: int, where: str) -> None:
    with directory(cluster, where) as path:
        process = started(cluster, path, f"model {seed} 1500")
        pid = pid_of(cluster, path)
        at = "n2"
        for target in ("n3", HOME, "n2", "n3", HOME, "n2") if seed % 2 else ():
            time.sleep(0.3)
            move = cluster.migrate(pid, at, target)
            if process.poll() is not None:
                break
            assert move.done, str(move)
            at = target
        assert end(process).endswith("all as it should be\n")


@pytest.mark.parametrize(
    "how", ["fifo", "lock", "signal", *(pytest.param(how, marks=pytest.mark.soak) for how in ("socket", "name", "exit"))]
)
@pytest.mark.parametrize(("either", "rounds"), [("ahead", 400), pytest.param("waiting", 100, marks=pytest.mark.soak)], indirect=["either"])
def test_a_notified_receiver_finds_earlier_writes(either: Cluster, how: str, rounds: int) -> None:
    with directory(either, "disk") as path:
        receiver = started(either, path, f"receiver {how} {rounds}", mosrun=False) if how != "exit" else None
        if receiver is not None:
            until("the receiver waits", (path / "partner").exists)
        sender = started(either, path, f"sender {how} {rounds}")
        if how == "signal":
            (path / "sender.new").write_text(str(pid_of(either, path)))
            (path / "sender.new").rename(path / "sender")
        said = end(sender)
        assert said.endswith("said\n"), said
        if receiver is not None:
            said = end(receiver)
            assert said.endswith("heard\n"), said


@pytest.mark.parametrize(("either", "least", "most"), [("ahead", 100, 900), ("waiting", 1100, 2000)], indirect=["either"])
def test_short_writes_take_no_way_home_if_they_may_run_ahead(either: Cluster, least: int, most: int) -> None:
    with directory(either, "disk") as path:
        process = started(either, path, "count 1000")
        pid = pid_of(either, path)
        until("all is written", lambda: (path / "log").exists() and (path / "log").stat().st_size == 1000 * LINE, seconds=30)
        assert least < trips(either, pid) < most
        assert [int(text.split(b":")[0]) for text in (path / "log").read_bytes().splitlines()] == list(range(1000))
        either.home.run("kill", "-KILL", str(pid))
        assert "written" in end(process)


@pytest.mark.parametrize("how", ["exits", "faults", "aborts", "kills itself", "executes", "has a child", "is alarmed"])
def test_all_is_written_when_it_ends(cluster: Cluster, how: str) -> None:
    ended = []
    for mosrun in (False, True):
        with directory(cluster, "disk") as path:
            process = started(cluster, path, f"ends '{how}'", mosrun)
            said = end(process)
            ended.append((process.returncode, said))
            assert numbers(path / "last") >= 300
    assert ended[0][0] == ended[1][0], ended


@pytest.mark.parametrize("call", ["fsync", "close", "write", "newfstatat", "statx", "elsewhere"])
def test_a_write_that_fails_after_all_shows_at_the_next_call(cluster: Cluster, call: str) -> None:
    """Writes made between them do not exist either. elsewhere: the call is on another file, whose writes have not failed."""
    with directory(cluster, "disk") as path:
        place = f"{inside(cluster, path)}/small"
        made = cluster.home.run("sh", "-c", f"mkdir {place} && mount -t tmpfs -o size=80m none {place}")
        assert not made.returncode, made.stderr
        try:
            process = started(cluster, path, f"full small/file {call}")
            pid = pid_of(cluster, path)
            until("it has written", (path / "ready").exists, seconds=30)
            cluster.home.run("sh", "-c", f"head -c 100m /dev/zero > {place}/filler")
            (path / "go").touch()
            until("two writes have failed", (path / "failed").exists, seconds=30)
            cluster.home.run("rm", f"{place}/filler")
            (path / "again").touch()
            assert end(process) == f"20000 20000 20000 {0 if call == 'elsewhere' else 'ENOSPC'} {'5 5 ' if call == 'fsync' else ''}True\n"
            log = cluster.home.root / f"run/farhome/log/deputy-{pid}.log"
            assert log.read_text().count("failed after it was answered: No space left on device") == 1
        finally:
            cluster.home.run("umount", place)


def test_writes_that_may_exceed_a_limit_are_made_before_they_are_answered(cluster: Cluster) -> None:
    said = []
    for mosrun in (False, True):
        with directory(cluster, "disk") as path:
            said.append(end(started(cluster, path, "limited 3500", mosrun)))
            assert (path / "limited").stat().st_size == 3500
    assert said[0] == said[1] == "1000\n500\nsignal 25\nEFBIG\nsignal 25\nEFBIG\n"


def numbers(path: Path) -> int:
    """Returns the number of lines, which must be numbered from 0 on."""
    lines = path.read_bytes().splitlines()
    assert [int(text.split(b":")[0]) for text in lines] == list(range(len(lines)))
    return len(lines)


@pytest.mark.parametrize("delay", [0.21, *(pytest.param(delay, marks=pytest.mark.soak) for delay in (0.05, 0.4))])
@pytest.mark.parametrize("how", ["process", "guest", "link"])
def test_writes_that_have_reached_home_are_the_earliest_ones(cluster: Cluster, how: str, delay: float) -> None:
    with directory(cluster, "disk") as path:
        process = started(cluster, path, "alternate")
        pid = pid_of(cluster, path)
        until("it writes", (path / "synced-40").exists, seconds=30)
        time.sleep(delay)
        if how == "link":
            cluster.lab.cut(HOME, "n2", 2)
            time.sleep(3)
        if how == "guest":
            cluster.place("n2").run("pkill", "-KILL", "-f", "ahead.py alternate")
        else:
            cluster.home.run("kill", "-KILL", str(pid))
        process.wait(60)
        one, two = numbers(path / "one"), numbers(path / "two")
        assert one - 1 <= two <= one
        synced = max(int(entry.name.partition("-")[2]) for entry in path.glob("synced-*"))
        assert one >= synced and two >= synced - 1, (one, two, synced)
