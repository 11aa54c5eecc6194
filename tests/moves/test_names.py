"""The names of home that a node remembers are current for each process that was notified of a change through home."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.moves.cluster import Cluster, until

PROGRAMS = Path(__file__).parents[1] / "programs"
DISK = "/var/cache"
"""On a disk that all nodes of the lab share with the machine."""
ROUNDS = int(os.environ.get("FARHOME_NAMES_ROUNDS", "150" if os.environ.get("FARHOME_LONG_TESTS") else "40"))
PATIENCE = 150 + ROUNDS // 5
"""Seconds, on a slow machine."""
pytestmark = pytest.mark.timeout(PATIENCE + 30)


@contextmanager
def directory() -> Iterator[Path]:
    """A directory that is the same on all nodes, with the program in it."""
    made = Path(tempfile.mkdtemp(dir=DISK))
    shutil.copy(PROGRAMS / "names.py", made)
    try:
        yield made
    finally:
        shutil.rmtree(made)


def started(cluster: Cluster, path: Path, arguments: str, mosrun: str = "") -> subprocess.Popen[bytes]:
    script = f"cd {path} && {mosrun} python3 names.py {arguments}; exit $?"
    return cluster.home.popen(["bash", "-c", script], "", stdin=subprocess.DEVNULL, stdout=-1, stderr=-2)


def pid_of(cluster: Cluster, job: str) -> int:
    return int(until("it is away", lambda: next((p for p in cluster.processes(job) if cluster.where(p) != "n1"), None), seconds=40)["pid"])


def trips(cluster: Cluster, pid: int) -> int:
    return int(json.loads(cluster.home.run("mosctl", "why", str(pid), "--json").stdout)["trips"])


@pytest.mark.parametrize("where", ["/var/cache", pytest.param("/dev/shm", marks=pytest.mark.soak)])
def test_no_name_is_stale_after_a_notification(cluster: Cluster, where: str) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    with directory() as path, ExitStack() as rest:
        if where == "/dev/shm":  # the same, of memory: mounted over
            cluster.home.run("mount", "-t", "tmpfs", "tmpfs", str(path))
            rest.callback(cluster.home.run, "umount", "-l", str(path))
            shutil.copy(PROGRAMS / "names.py", cluster.home.root / str(path)[1:])
        inside = cluster.home.root / str(path)[1:]
        for name in ("tree/a/b/c", "tree/d"):
            (inside / name).mkdir(parents=True)
        readers = []
        for n, node in enumerate(("n2", "n3", "n2")):
            os.mkfifo(inside / f"to{n}")
            os.mkfifo(inside / f"from{n}")
            job = f"{path.name}{n}"
            readers.append(started(cluster, path, f"read {n} {seed + n}", f"mosrun -L -r {node} -J {job}"))
            rest.callback(readers[-1].kill)
        pids = [pid_of(cluster, f"{path.name}{n}") for n in range(3)]
        changer = started(cluster, path, f"change {seed} {ROUNDS} {' '.join(map(str, pids))}")
        rest.callback(changer.kill)
        said = [reader.communicate(timeout=PATIENCE)[0].decode() for reader in readers]
        for one in said:
            assert "STALE" not in one and "0 of" in one, one
        assert changer.communicate(timeout=10)[0].decode() == f"{ROUNDS} rounds\n"


READS_NAMES = """
import os, sys
for n in range(int(sys.argv[1])):
    for path in ("/var/cache/nothing/here", "/var/cache/absent", "absent", "/usr/../var/cache/absent", "quiet"):
        try:
            os.stat(path)
        except FileNotFoundError:
            pass
    for path in ("/usr", "quiet", "file", "link", "link/file"):
        try:
            os.readlink(path)
        except OSError:
            pass
print("done", flush=True)
open("go", "rb").read()
"""


def test_remembered_names_take_no_trip(cluster: Cluster) -> None:
    counts = []
    with directory() as path, ExitStack() as rest:
        (path / "names.py").write_text(READS_NAMES)
        os.mkfifo(path / "go")
        (path / "quiet").mkdir()
        (path / "quiet" / "file").touch()
        (path / "file").touch()
        (path / "link").symlink_to("quiet")
        os.utime(path / "quiet", (time.time() + 60, 1_000_000_000))  # a time of access that a read leaves alone
        for rounds in (10, 1010):
            process = started(cluster, path, str(rounds), f"mosrun -L -r n2 -J {path.name}")
            rest.callback(process.kill)
            assert process.stdout is not None and process.stdout.readline() == b"done\n"
            counts.append(trips(cluster, pid_of(cluster, path.name)))
            (path / "go").write_bytes(b"")
            process.wait(30)
        assert counts[1] - counts[0] < 200, counts  # of 10,000 lookups


CHILDREN = """
import os, sys
for n in range(int(sys.argv[1])):
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    open(f"written{n}", "w").close()
    for number in range(100):
        try:
            os.stat(f"/var/cache/absent/{number}")
        except FileNotFoundError:
            pass
    os._exit(0)
print("done", flush=True)
open("go", "rb").read()
"""


def test_names_found_by_one_process_are_known_to_a_later_one(cluster: Cluster) -> None:
    counts = []
    with directory() as path, ExitStack() as rest:
        (path / "names.py").write_text(CHILDREN)
        os.mkfifo(path / "go")
        for children in (2, 22):
            process = started(cluster, path, str(children), f"mosrun -L -r n2 -J {path.name}")
            rest.callback(process.kill)
            assert process.stdout is not None and process.stdout.readline() == b"done\n"
            counts.append(trips(cluster, pid_of(cluster, path.name)))
            (path / "go").write_bytes(b"")
            process.wait(30)
        assert counts[1] - counts[0] < 20 * 20, counts  # of 2,000 lookups


POLLS = """
import os, sys
print("polls", flush=True)
while not os.path.exists("signal"):
    pass
print("seen", flush=True)
"""


def test_a_polling_reader_sees_a_change_soon(cluster: Cluster) -> None:
    with directory() as path, ExitStack() as rest:
        (path / "names.py").write_text(POLLS)
        process = started(cluster, path, "", f"mosrun -L -r n2 -J {path.name}")
        rest.callback(process.kill)
        assert process.stdout is not None and process.stdout.readline() == b"polls\n"
        pid_of(cluster, path.name)
        (path / "signal").touch()
        assert process.communicate(timeout=30)[0] == b"seen\n"


MOUNTS = """
import os, sys
for n in range(100):
    assert not os.path.exists("mounted/inside")
    os.stat("mounted")
print("absent", flush=True)
sys.stdin.read(1)
assert os.path.exists("mounted/inside")
assert os.path.exists(os.getcwd() + "/mounted/inside")
print("there", flush=True)
"""


def test_a_mount_is_seen_after_its_notification(cluster: Cluster) -> None:
    with directory() as path, ExitStack() as rest:
        (path / "names.py").write_text(MOUNTS)
        (path / "mounted").mkdir()
        script = f"cd {path} && mosrun -L -r n2 -J {path.name} python3 names.py; exit $?"
        process = cluster.home.popen(["bash", "-c", script], "", stdin=-1, stdout=-1, stderr=-2)
        rest.callback(process.kill)
        assert process.stdout is not None and process.stdin is not None and process.stdout.readline() == b"absent\n"
        pid_of(cluster, path.name)
        mounted = cluster.home.run("mount", "-t", "tmpfs", "tmpfs", f"{path}/mounted")
        assert not mounted.returncode, mounted.stderr
        rest.callback(cluster.home.run, "umount", "-l", f"{path}/mounted")
        touched = cluster.home.run("touch", f"{path}/mounted/inside")
        assert not touched.returncode, touched.stderr
        process.stdin.write(b"x")
        process.stdin.flush()
        assert process.communicate(timeout=30)[0] == b"there\n"
