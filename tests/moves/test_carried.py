"""The reply to an open carries to a process away what home would answer, and what the process does with it reaches home."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.moves.cluster import HOME, Cluster, until

pytestmark = pytest.mark.timeout(180)
PROGRAM = Path(__file__).parents[1] / "programs" / "carried.py"
DISK = "/var/cache"
"""On a disk that all nodes of the lab share with the machine."""
FRESH = 50
"""Files whose time of access is new enough that a read leaves it alone."""


@pytest.fixture(scope="module")
def asked() -> Iterator[Cluster]:
    """A cluster whose replies carry nothing."""
    made = Cluster(nodes=2, configuration="\n[away]\ncarry = false\n")
    yield made
    made.down()


@pytest.fixture(params=["carried", "asked"])
def either(request: pytest.FixtureRequest) -> Cluster:
    """A cluster whose replies carry file content, or one whose replies carry none."""
    made: Cluster = request.getfixturevalue("cluster" if request.param == "carried" else "asked")
    return made


@contextmanager
def directory(cluster: Cluster, where: str) -> Iterator[Path]:
    """A directory that is the same on the home node and for the test, with the program in it."""
    made = Path(tempfile.mkdtemp(dir=DISK if where == "disk" else cluster.home.root / "dev/shm"))
    shutil.copy(PROGRAM, made)
    try:
        yield made
    finally:
        shutil.rmtree(made)


def inside(cluster: Cluster, path: Path) -> str:
    """Returns the path of a directory on the home node."""
    return str(path) if path.is_relative_to(DISK) else "/" + str(path.relative_to(cluster.home.root))


def started(
    cluster: Cluster, path: Path, arguments: str, mosrun: str = "mosrun -L -r n2", stdout: int = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    script = f"cd {inside(cluster, path)} && {mosrun} -J {path.name} python3 carried.py {arguments}; exit $?"
    return cluster.home.popen(["bash", "-c", script], "", stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.STDOUT)


def pid_of(cluster: Cluster, path: Path) -> int:
    return int(
        until("it is away", lambda: next((p for p in cluster.processes(path.name) if cluster.where(p) == "n2"), None), seconds=40)["pid"]
    )


def end(process: subprocess.Popen[bytes]) -> str:
    said, _ = process.communicate(timeout=90)
    return said.decode()


def descriptors(cluster: Cluster, pid: int) -> dict[str, int]:
    """Returns the positions of a process's files at home, by the last part of their names."""
    root = cluster.home.root / "proc" / str(pid)
    found = {}
    for name in os.listdir(root / "fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            file = os.readlink(root / "fd" / name).rpartition("/")[2]
            found[f"{file} {name}"] = int((root / "fdinfo" / name).read_text().split()[1])
    return found


@pytest.mark.parametrize(
    ("either", "where"),
    [("carried", "disk"), ("carried", "memory"), ("asked", "memory"), pytest.param("asked", "disk", marks=pytest.mark.soak)],
    indirect=["either"],
)
def test_a_file_has_the_same_content_as_at_home(either: Cluster, where: str) -> None:
    said = []
    for mosrun in ("", "mosrun -L -r n2"):
        with directory(either, where) as path:
            if mosrun:
                process = started(either, path, "examine", mosrun)
            else:
                script = f"cd {inside(either, path)} && exec python3 carried.py examine"
                process = either.home.popen(["bash", "-c", script], "", stdin=subprocess.DEVNULL, stdout=-1, stderr=-2)
            said.append(end(process))
    assert said[0].count("\n") > 350 and "Traceback" not in said[0], said[0][-2000:]
    for native, away in zip(*(text.splitlines() for text in said), strict=True):
        assert away == native


def test_positions_and_closed_descriptors_reach_home_soon(cluster: Cluster) -> None:
    with directory(cluster, "disk") as path, ExitStack() as rest:
        for name in ("held", "closed"):
            (path / name).write_bytes(os.urandom(5000))
        process = started(cluster, path, "hold")
        rest.callback(process.kill)
        pid = pid_of(cluster, path)
        until("positions are those that it has", lambda: {123, 77} <= set(descriptors(cluster, pid).values()), seconds=15)
        assert not any(name.startswith("closed") for name in descriptors(cluster, pid))
        cluster.home.run("kill", "-USR1", str(pid))
        assert "[(123, '1000:" in end(process)


@pytest.mark.parametrize(
    ("target", "stopped"),
    [(HOME, True), ("n3", False), *(pytest.param(*way, marks=pytest.mark.soak) for way in ((HOME, False), ("n3", True)))],
)
def test_positions_are_right_after_a_move(cluster: Cluster, target: str, stopped: bool) -> None:
    with directory(cluster, "disk") as path, ExitStack() as rest:
        for name in ("held", "closed"):
            (path / name).write_bytes(bytes(n % 256 for n in range(5000)))
        process = started(cluster, path, "hold")
        rest.callback(process.kill)
        pid = pid_of(cluster, path)
        until("it has opened both", lambda: sum("held" in name for name in descriptors(cluster, pid)) == 2, seconds=30)
        if stopped:
            cluster.home.run("kill", "-STOP", str(pid))
        move = cluster.migrate(pid, "n2", target)
        assert move.done, str(move)
        cluster.home.run("kill", "-CONT", str(pid))
        cluster.home.run("kill", "-USR1", str(pid))
        said = end(process)
        assert "[(123, '1000:" in said and "(77, '1000:" in said, said


def test_a_change_is_seen_after_its_notification(cluster: Cluster) -> None:
    rounds = 60
    with directory(cluster, "disk") as path, ExitStack() as rest:
        (path / "changing").write_bytes(b"nothing yet")
        (path / "names").mkdir()
        for name in ("requests", "answers"):
            os.mkfifo(path / name)
        process = started(cluster, path, f"hear {rounds}")
        rest.callback(process.kill)
        script = f"cd {inside(cluster, path)} && exec python3 carried.py change {rounds} {pid_of(cluster, path)}"
        changer = cluster.home.popen(["bash", "-c", script], "", stdin=subprocess.DEVNULL, stdout=-1, stderr=-2)
        rest.callback(changer.kill)
        assert end(process) == f"{rounds} rounds\n"
        assert end(changer) == ""


def test_times_of_access_are_those_of_its_reads(either: Cluster) -> None:
    """A file of which only the attributes are asked is not read; one that is read for the first time since a change is."""
    with directory(either, "disk") as path:
        old = 1_000_000_000
        for name in ("examined", "read"):
            (path / name).write_bytes(b"contents")
            os.utime(path / name, (old, old))
        script = "import os\nos.fstat(os.open('examined', 0))\nos.read(os.open('read', 0), 3)\nos.listdir('.')\n"
        (path / "carried.py").write_text(script)
        assert end(started(either, path, "")) == ""
        assert (path / "examined").stat().st_atime == old
        assert (path / "read").stat().st_atime > old


def test_a_small_file_takes_one_trip(cluster: Cluster) -> None:
    with directory(cluster, "disk") as path, ExitStack() as rest:
        (path / "many").mkdir()
        os.mkfifo(path / "go")
        trips = []
        for count in (FRESH, 5 * FRESH):
            for n in range(count):
                (path / "many" / str(n)).write_bytes(bytes(1 + n * 97 % 9000))
                os.utime(path / "many" / str(n), (time.time(), 1_000_000_000))
            time.sleep(0.05)  # of a clock's tick: the time of a change is behind that of access
            for n in range(count):
                (path / "many" / str(n)).read_bytes()
            process = started(cluster, path, f"many {count}")
            rest.callback(process.kill)
            assert process.stdout is not None and process.stdout.readline() == b"read\n"
            pid = pid_of(cluster, path)
            trips.append(json.loads(cluster.home.run("mosctl", "why", str(pid), "--json").stdout)["trips"])
            (path / "go").write_bytes(b"")
            assert end(process) == ""
        assert (trips[1] - trips[0]) / (4 * FRESH) < 1.2, trips


def test_a_process_is_killed_with_calls_still_to_be_made_at_home(cluster: Cluster) -> None:
    with directory(cluster, "disk") as path:
        for name in ("held", "closed"):
            (path / name).write_bytes(bytes(5000))
        process = started(cluster, path, "hold")
        pid = pid_of(cluster, path)
        until("it has opened both", lambda: sum("held" in name for name in descriptors(cluster, pid)) == 2, seconds=30)
        cluster.home.run("kill", "-KILL", str(pid))
        process.wait(30)
        assert process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
