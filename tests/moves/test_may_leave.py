"""Every way out asks the same question: each kind of process that has more rights than its user, on each way, stays at home."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.moves.cluster import HOME, Cluster, until
from tests.moves.outcome import kill_session
from tests.moves.workloads import USER
from tests.programs.privileged import copy_into
from tests.sanitizers.slower import bound

pytestmark = pytest.mark.timeout(180)
NUMBERS = itertools.count(1)
NOTHING: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
WITH_AMBIENT = f"setpriv --reuid={USER} --regid={USER} --init-groups --inh-caps=+net_raw --ambient-caps=+net_raw"

KINDS = {
    "plain": ("plain", "stay", ""),
    "setuid": ("setuid", "stay", ""),
    "setgid": ("setgid", "stay", ""),
    "file capability": ("capable", "stay", ""),
    "undumpable": ("plain", "undumpable", ""),
    "ambient capability": ("plain", "stay", WITH_AMBIENT),
    "root and back": ("setuid", "back", ""),
}
WAYS = ("mosrun, then migrate", "adopted", "checkpoint", "executed at home", "executed away", "mosrun -r", "hop")


class One:
    """A process of an ordinary user on n1, in a directory of its own. programs: where files give rights; in /tmp they do not."""

    def __init__(self, cluster: Cluster, programs: Path) -> None:
        self.programs = programs
        self.cluster, self.name = cluster, f"leave{os.getpid() % 100000}x{next(NUMBERS)}"
        self.directory = cluster.home.root / "tmp" / self.name
        self.inside = Path("/tmp") / self.name
        self.directory.mkdir()
        self.directory.chmod(0o777)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, line: str, prefix: str = "") -> int:
        script = f"cd {self.inside} && echo $$ > pid && exec {prefix} {line}"
        user = "" if prefix.startswith("setpriv") else USER
        self.process = self.cluster.home.popen(["setsid", "--wait", "bash", "-c", script], user, **NOTHING)
        self.until("up")
        return int((self.directory / "pid").read_text())

    def until(self, name: str) -> None:
        until(name, (self.directory / name).exists, seconds=60)

    def go(self) -> None:
        (self.directory / "go").touch()
        self.until("gone")

    def where(self, pid: int) -> str:
        rows = self.cluster.lab.node(HOME).ask_mosd("ps", timeout=20, all=True)["processes"]
        return next((str(row["where"]) for row in rows if row["pid"] == pid), "home")

    def settle(self, pid: int) -> None:
        """The program that was executed away runs; if it does so at home, mosd hears that a moment later."""
        end = time.monotonic() + bound(1.0)
        while self.where(pid) != "home" and time.monotonic() < end:
            time.sleep(0.02)

    def type(self, *argv: str) -> tuple[bool, str]:
        """Whether a command of its user's was done, and what it said."""
        done = self.cluster.home.run(*argv, user=USER)
        assert done.returncode in (0, 75, 77), done
        return done.returncode == 0, done.stdout + done.stderr

    def close(self) -> None:
        if self.process is not None:
            (self.directory / "end").touch()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                kill_session(self.process.pid)
                self.process.wait(10)
        shutil.rmtree(self.directory, ignore_errors=True)


@pytest.fixture(scope="module")
def programs() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="farhome-rights-", dir="/var/cache"))
    made.chmod(0o755)
    copy_into(made)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def one(cluster: Cluster, programs: Path) -> Iterator[One]:
    made = One(cluster, programs)
    yield made
    made.close()


def leaves(one: One, way: str, kind: str) -> tuple[bool, str]:
    """Whether a process of that kind has gone by that way, and what was said of it."""
    file, how, prefix = KINDS[kind]
    here = one.programs
    mosrun = f"mosrun -L {here}/{file} {how}"
    changes = how == "undumpable"
    match way:
        case "mosrun, then migrate":
            pid = one.start(mosrun, prefix)
            if changes:
                one.go()
            done, said = one.type("migrate", str(pid), "n2")
        case "adopted":
            pid = one.start(f"{here}/{file} {how}", prefix)
            if changes:
                one.go()
            done, said = one.type("migrate", str(pid), "n2")
        case "checkpoint":
            pid = one.start(mosrun, prefix)
            if changes:
                one.go()
            return one.type("migrate", str(pid), "checkpoint", str(one.inside / "saved"))
        case "executed at home":
            pid = one.start(f"mosrun -L {here}/plain {here}/{file}", prefix)
            one.go()
            done, said = one.type("migrate", str(pid), "n2")
        case "executed away":
            pid = one.start(f"mosrun -L {here}/plain {here}/{file}")
            assert one.type("migrate", str(pid), "n2")[0]
            one.go()
            one.settle(pid)
            done, said = one.where(pid) == "n2", one.cluster.home.run("mosps", "-a", "-v").stdout
        case "mosrun -r":
            pid = one.start(f"mosrun -r n2 {here}/{file} {how}", prefix)
            if changes:
                pytest.skip("it has left before it changes")
            until("it was tried", lambda: one.where(pid) == "n2" or "rights" in one.cluster.home.run("mosps", "-a", "-v").stdout
                  or "capabilities" in one.cluster.home.run("mosps", "-a", "-v").stdout, seconds=30)  # fmt: skip
            done, said = one.where(pid) == "n2", one.cluster.home.run("mosps", "-a", "-v").stdout
        case _:
            pid = one.start(mosrun)
            assert one.type("migrate", str(pid), "n2")[0]
            if changes:
                one.go()
            done, said = one.type("migrate", str(pid), "n3")
            assert one.where(pid) == ("n3" if done else "n2"), said
            return done, said
    assert (one.where(pid) == "n2") == done, said
    return done, said


def cases() -> Iterator[object]:
    """Each way, and each kind, once; all of them together take minutes."""
    for way, kind in itertools.product(WAYS, KINDS):
        of_program = kind in ("setuid", "setgid", "file capability", "plain")
        # What begins with more rights never comes away, so that it cannot hop; and what a program does later it does on the first ways.
        if way == "hop" and kind not in ("plain", "undumpable"):
            continue
        if way in ("executed at home", "executed away") and not of_program:
            continue
        if way == "mosrun -r" and kind == "undumpable":
            continue
        is_short = kind == "setuid" or way == "mosrun, then migrate" or (way, kind) == ("hop", "undumpable")
        yield pytest.param(way, kind, marks=() if is_short else pytest.mark.soak)


@pytest.mark.parametrize(("way", "kind"), list(cases()))
def test_a_program_with_more_rights_than_its_user_stays(one: One, way: str, kind: str) -> None:
    done, said = leaves(one, way, kind)
    assert done == (kind == "plain"), f"{way}, {kind}: {said}"
    if not done and way != "executed away":
        words = ("rights of", "capabilities of its own", "PR_SET_DUMPABLE", "setuid", "belongs to root", "more than one user")
        assert any(word in said for word in words), said


def test_roots_own_programs_may_leave(cluster: Cluster, one: One) -> None:
    for name in ("plain", "setgid", "capable"):
        script = f"cd {one.inside} && rm -f up && exec mosrun -L {one.programs}/{name} stay"
        with cluster.home.popen(["bash", "-c", script], "", stdin=subprocess.DEVNULL) as process:
            until("it has begun", (one.directory / "up").exists)
            pid = until("it is listed", lambda name=name: next(  # type: ignore[misc]
                (row["pid"] for row in json.loads(cluster.home.run("mosps", "-a", "--json").stdout) if f"/{name} stay" in row["command"]), 0
            ))  # fmt: skip
            assert cluster.home.run("migrate", str(pid), "n2").returncode == 0
            (one.directory / "end").touch()
            assert process.wait(30) == 0
            (one.directory / "end").unlink()
