"""Limits on what a home can make the node of its guest do: it learns nothing of the node's files, and fills neither memory nor disk."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lab import Lab
from lab.node import Node
from tests.engine.test_public import Watch
from tests.mfs.nodes import until
from tests.moves.cluster import Cluster

pytestmark = pytest.mark.timeout(120)
ROOT = "/opt/farhome"
PYTHON = f"{ROOT}/.venv/bin/python"
ALONE = "\n[balance]\nenabled = false\n[mfs]\nenabled = false\n[lend]\nmax_disk = '64M'\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(nodes=2, configuration=ALONE)
    yield made
    made.down()


@pytest.fixture
def host(cluster: Cluster) -> Iterator[Node]:
    node = cluster.lab.node("n2")
    yield node
    until(lambda: not guests(node), "its places are given up")
    assert list((node.root / "run/farhome/images").glob("*")) == []
    assert list((node.root / "var/lib/farhome/cache").glob(".incoming*")) == []


def guests(node: Node) -> list[Any]:
    return list((node.root / "run/farhome/remote").glob("*.sock"))


def ask(cluster: Cluster, *words: str) -> Any:
    home, host = cluster.lab.nodes()
    program = ["env", f"PYTHONPATH={ROOT}", PYTHON, f"{ROOT}/tests/attacks/home.py", host.address]
    done = home.run([*program, *words], text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def used(node: Node, directory: str) -> int:
    """Bytes of what is there, while it may go."""
    total = 0
    for place, _, names in os.walk(node.root / directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(place, name)).st_blocks * 512
    return total


def test_a_home_learns_nothing_of_private_files_of_the_node(cluster: Cluster, host: Node) -> None:
    place = host.root / "tmp"
    for name, mode in (("probe", 0o600), ("shared", 0o644), ("grouped", 0o640)):
        (place / name).write_bytes(b"0123456789")
        (place / name).chmod(mode)
    host.run("mkdir -m 700 /tmp/shut; echo -n 0123456789 >/tmp/shut/file; mkfifo -m 666 /tmp/pipe; ln -s probe /tmp/link", check=True)
    guess = hashlib.sha256(b"0123456789").hexdigest()
    shadow = Path("/etc/shadow").read_bytes()
    names = ["shared", "probe", "grouped", "shut/file", "link", "pipe"]
    watch = Watch(*(place / name for name in ("probe", "grouped", "shut/file", "pipe")), Path("/etc/shadow"))
    asked: list[tuple[str, int, str]] = [(f"/tmp/{name}", 10, guess) for name in names]
    asked += [("/etc/shadow", len(shadow), hashlib.sha256(shadow).hexdigest()), ("/dev/watchdog", 0, hashlib.sha256(b"").hexdigest())]
    answers = []
    for path, size, sha256 in asked:  # each alone: the same content under another path would show whether home has it
        answers.append(ask(cluster, "wanted", json.dumps([(path, size, sha256)]))[0])
        until(lambda: not guests(host), "its place is given up")
    assert dict(zip([path for path, _, _ in asked], answers, strict=True)) == {path: path != "/tmp/shared" for path, _, _ in asked}
    wrong = ask(cluster, "wanted", json.dumps([("/tmp/probe", 10, "0" * 64)]))
    assert wrong == [True]
    assert watch.seen() == set()


@pytest.mark.parametrize(
    ("name", "size", "count", "says"),
    [
        ("#.img", 40 << 20, 10, "its images are larger than"), ("#.img", 0, 5000, "more than 4096 images"), ("same.img", 10, 2, "broken"),
        ("../x", 10, 1, "broken"), ("x.img", -1, 1, "broken"),
        *(pytest.param(*one, marks=pytest.mark.soak) for one in (
            ("#.img", 1 << 50, 1, "its images are larger than"), (".x", 10, 1, "broken"), ("x" * 300, 10, 1, "broken"),
            ("x/y", 10, 1, "broken"),
        )),
    ],
)  # fmt: skip
def test_images_have_the_bound_that_was_announced(cluster: Cluster, host: Node, name: str, size: int, count: int, says: str) -> None:
    assert says in ask(cluster, "fill", name, str(size), str(count))
    until(lambda: used(host, "run/farhome/images") == 0, "nothing is left of them")


@pytest.mark.parametrize(("size", "rounds", "says"), [(12 << 20, 10, "larger than the 33,554,432 bytes"), (1 << 20, 40, "larger than the")])
def test_mapped_files_have_a_bound_the_late_ones_too(cluster: Cluster, host: Node, size: int, rounds: int, says: str) -> None:
    assert says in ask(cluster, "files", str(size), str(rounds))
    assert used(host, "var/lib/farhome/cache") <= 64 << 20


def test_the_cache_is_not_more_than_the_owner_lends_however_many_come(cluster: Cluster, host: Node) -> None:
    for _ in range(4):
        assert ask(cluster, "files", str(10 << 20), "3") == "took all"
        until(lambda: not guests(host), "its place is given up")
    assert 32 << 20 < used(host, "var/lib/farhome/cache") <= 64 << 20


def test_a_full_disk_is_one_sentence_at_home_and_the_process_goes_on_there(lab_name: Any) -> None:
    with Lab.up(2, name=lab_name(), configuration=ALONE) as lab:
        home, host = lab.nodes()
        host.run("mkdir -p /var/lib/farhome/cache /run/farhome/images; mount -t tmpfs -o size=1m t /var/lib/farhome/cache", check=True)
        home.run("cp /bin/sleep /tmp/own; head -c 3000000 /dev/urandom >> /tmp/own; chmod 755 /tmp/own", check=True)
        with home.popen(["mosrun", "-L", "/tmp/own", "300"], stdin=subprocess.DEVNULL) as job:
            try:
                pid = until(lambda: home.ask_mosd("ps").get("processes"), "it is registered")[0]["pid"]
                done = home.run(f"migrate {pid} n2", text=True)
                assert done.returncode
                assert "no room for a file of" in done.stderr
                assert len(done.stderr.strip().splitlines()) == 1
                host.run("umount /var/lib/farhome/cache; mount -t tmpfs -o size=64k t /run/farhome/images", check=True)
                done = home.run(f"migrate --engine criu {pid} n2", text=True)
                assert done.returncode
                assert "no room for images of" in done.stderr
                assert len(done.stderr.strip().splitlines()) == 1
                until(lambda: not guests(host), "its place is given up")
                assert [path for path in (host.root / "run/farhome/images").rglob("*") if path.is_file()] == []
                assert home.run(f"test -d /proc/{pid}").returncode == 0
                host.run("umount /run/farhome/images", check=True)
                home.run(f"migrate {pid} n2", check=True)
                home.run(f"migrate {pid} home", check=True)
            finally:
                job.kill()
