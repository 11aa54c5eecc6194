"""No attempt leaves an export or gains rights in it: attempts by programs, races, and messages that no kernel would send."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from lab import Lab, Node
from node.cluster.keys.pki import KeyStore
from tests.mfs.escape.forger import ATTACKS, ODDITIES, RACES
from tests.mfs.escape.grounds import AWAY, OUTSIDE, SECRET, TRY, Attempt, Grounds, changes, table
from tests.mfs.exports import INSIDE, KEYS, PORT, PYTHON

HERE = f"{INSIDE}/tests/mfs/escape"
RACER = [PYTHON, "-I", f"{HERE}/racer.py"]
TO_BE_ATTACKED = """
echo mine > mine; cp /bin/true program; chmod 755 program; ln -s "$OUT" to-outside; ln -s "$OUT"/secret to-secret; mkfifo pipe
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
mkdir in; mount -t tmpfs -o dev tmpfs in; mknod in/zero c 1 5; chmod 666 in/zero
"""
TO_BE_RACED_IN = """
echo mine > mine; mkdir way deep deep/in; ln -s "$OUT" other; for d in . way deep deep/in; do echo harmless > $d/secret; done
"""
SOAK = pytest.mark.soak
SECONDS = [pytest.param(0.5), pytest.param(30.0, marks=SOAK)]
RACERS = [("swap", "n1"), ("move", "n1"), pytest.param("swap", "n2", marks=SOAK), pytest.param("swap", "n3", marks=SOAK)]

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def grounds(mfs_lab: Lab) -> Grounds:
    return Grounds(mfs_lab.node("n1"))


@pytest.fixture(scope="module")
def forger(mfs_lab: Lab) -> Iterator[subprocess.Popen[str]]:
    """A process of n2 that speaks to n1's server by itself."""
    home = mfs_lab.node("n1")
    argv = [PYTHON, "-I", f"{HERE}/forger.py", home.address, str(PORT), KEYS]
    with mfs_lab.node("n2").popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("attempt", [pytest.param(one, id=one.name.replace(" ", "-")) for one in table()])
def test_attempts_by_programs_fail(mfs_lab: Lab, grounds: Grounds, attempt: Attempt) -> None:
    before = grounds.prepare(attempt.home)
    away = mfs_lab.node("n2")
    with away.popen(["sh", "-c", attempt.script()], user=attempt.user, cwd="/tmp", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, text=True) as process:  # fmt: skip
        try:
            if attempt.then:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                before = grounds.meanwhile(attempt.then)
            said, _ = process.communicate("\n", timeout=30)
        finally:
            process.kill()
    assert SECRET not in said, said
    assert changes(before, grounds.state()) == []


def ask(forger: subprocess.Popen[str], name: str) -> dict[str, Any]:
    assert forger.stdin is not None
    assert forger.stdout is not None
    forger.stdin.write(f"{name}\n")
    forger.stdin.flush()
    return dict(json.loads(forger.stdout.readline()))


def mount_of(home: Node, peer: str) -> str:
    """Returns the name of a peer's mount in the state that its server keeps."""
    return next((home.root / "run/farhome").rglob(f"{peer}-*.nodes")).stem.rpartition("-")[2]


@pytest.mark.parametrize("name", [pytest.param(one, id=one.replace(" ", "-")) for one in (*ATTACKS, *ODDITIES)])
def test_messages_that_no_kernel_sends_get_nothing(grounds: Grounds, forger: subprocess.Popen[str], name: str) -> None:
    before = grounds.prepare(TO_BE_ATTACKED)
    answer = ask(forger, f"{name}\t{mount_of(grounds.home, 'n3')}" if name == "the mount of another node" else name)
    assert answer["serves"]
    assert SECRET not in str(answer["said"])
    assert changes(before, grounds.state()) == []
    if name in ATTACKS:
        assert not [said for said in answer["said"] if isinstance(said, str)]
        assert not [(number, said) for number, said in enumerate(answer["said"]) if said[0] == 0]


def test_a_stranger_to_the_cluster_is_rejected(mfs_lab: Lab) -> None:
    home, away = mfs_lab.node("n1"), mfs_lab.node("n2")
    KeyStore(away.root / "tmp/foreign").init("another", "n2")
    argv = [PYTHON, "-I", f"{HERE}/forger.py", home.address, str(PORT), "/tmp/foreign"]
    with away.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            answer = ask(process, "lookup of what is no name")
        finally:
            process.kill()
    assert answer["said"][0].startswith("Closed")
    assert not answer["serves"]


@contextlib.contextmanager
def race(grounds: Grounds, node: Node, racer: str) -> Iterator[None]:
    """Runs a racer on the node that does and undoes something all the time; checks that protected files are unchanged at the end."""
    before = grounds.prepare(TO_BE_RACED_IN)
    point = TRY if node.name == "n1" else AWAY + TRY
    with node.popen([*RACER, racer, point, *([OUTSIDE] if racer == "move" else [])]) as process:
        try:
            yield
            assert process.poll() is None, "the race has ended"
        finally:
            process.kill()
    left = grounds.at(f"{OUTSIDE}/deep")  # where the race ended
    if left.exists():
        left.rename(grounds.at(f"{TRY}/deep"))
    after = grounds.state()
    if racer == "move":
        before[OUTSIDE[1:]] = after[OUTSIDE[1:]]  # its time is that of the moves
    assert changes(before, after) == []


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize(("racer", "where"), RACERS)
def test_races_are_not_won_by_programs(mfs_lab: Lab, grounds: Grounds, racer: str, where: str, seconds: float) -> None:
    with race(grounds, mfs_lab.node(where), racer):
        walked = mfs_lab.node("n2").run([*RACER, "walk", AWAY + TRY, str(seconds)], timeout=seconds + 30, text=True)
    assert walked.returncode == 0, walked.stderr
    assert "harmless" in walked.stdout
    assert SECRET not in walked.stdout


@pytest.mark.parametrize(("name", "racer"), list(zip(RACES, ("swap", "move"), strict=True)))
def test_races_are_not_won_by_messages(grounds: Grounds, forger: subprocess.Popen[str], name: str, racer: str) -> None:
    with race(grounds, grounds.home, racer):
        answer = ask(forger, name)
    assert answer["serves"]
    assert SECRET not in str(answer["said"])
