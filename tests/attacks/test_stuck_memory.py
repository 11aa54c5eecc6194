"""An ordinary user's process that makes the kernel hold its memory's lock: readers of its command line block. The daemon does not block,
and answers all others."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from engine.leaving.permission import Owner
from node.common.aside import Aside
from node.common.process import read_stat
from node.moves.home_process import HomeProcess
from node.requests import adoption
from tests.node.nodes import Cluster, wait_for
from tests.programs.build import program

pytestmark = [pytest.mark.timeout(120), pytest.mark.alone]  # other readers of all of /proc block meanwhile as well


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A place where such a program mounts its file system, which is gone at the end."""
    place = tmp_path / "fs"
    yield place
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int(Path(f"{place}.server").read_text()), signal.SIGKILL)


def is_stuck(place: Path, pid: int) -> bool:
    return Path(f"{place}.stuck").exists() and state(pid) == "D"


def test_the_daemon_answers_beside_it(pair: Cluster, place: Path) -> None:
    n1 = pair[1]
    pid = pair.spawn(n1, "-L", str(program("stuck")), str(place))
    other = pair.spawn(n1, "-L", "sleep", "60")
    wait_for(lambda: is_stuck(place, pid))
    for _ in range(3):
        assert {row["pid"] for row in n1.processes()} >= {pid, other}
    assert f"process {other} is on n2" in n1.ok("migrate", str(other), "n2")
    os.kill(int(Path(f"{place}.server").read_text()), signal.SIGKILL)
    wait_for(lambda: pid not in {row["pid"] for row in n1.processes()})


def test_a_hanging_process_is_skipped_until_it_answers_again(place: Path) -> None:
    child = subprocess.Popen([program("stuck"), place])
    try:
        wait_for(lambda: is_stuck(place, child.pid))
        aside = Aside(0.3)

        def words(pid: int) -> bytes:
            try:
                return Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                return b""

        own = os.getpid()
        for _ in range(2):
            assert list(aside.ask(words, [own, child.pid, own])) == [own]
            assert aside.hanging() == {child.pid}
        os.kill(int(Path(f"{place}.server").read_text()), signal.SIGKILL)
        assert child.wait(20) in (4, 5)
        wait_for(lambda: not aside.hanging())
        assert aside.ask(words, [own]).keys() == {own}
    finally:
        child.kill()
        child.wait(20)


def test_examinations_of_it_are_bounded_for_each_user(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoption, "EXAMINE_TIMEOUT", 2.0)
    child = subprocess.Popen([program("stuck"), place])
    child_entry, own_entry = (HomeProcess(pid, stat.starttime, 0) for pid in (child.pid, os.getpid()) if (stat := read_stat(pid)))

    async def examine() -> int:
        checks = [asyncio.create_task(adoption.examine(child_entry, "pour", Owner(1001, 1001))) for _ in range(3 * adoption.LOOKS)]
        await asyncio.sleep(0)
        await adoption.examine(own_entry, "pour", Owner(1002, 1002))
        count = sum(thread.name == f"check {child.pid}" for thread in threading.enumerate())
        said = await asyncio.gather(*checks, return_exceptions=True)
        assert all("the kernel has not shown its memory" in str(one) for one in said)
        return count

    try:
        wait_for(lambda: is_stuck(place, child.pid))
        assert asyncio.run(examine()) == adoption.LOOKS
        os.kill(int(Path(f"{place}.server").read_text()), signal.SIGKILL)
        wait_for(lambda: not any(thread.name == f"check {child.pid}" for thread in threading.enumerate()))
    finally:
        child.kill()
        child.wait(20)


def test_many_hanging_processes_cost_a_few_waits_and_then_none_is_asked_for_a_while() -> None:
    over = threading.Event()
    aside, begun = Aside(0.05), time.monotonic()

    def hang(pid: int) -> int:
        if pid:
            over.wait(60)
        return pid

    assert aside.ask(hang, range(10)) == {0: 0}
    assert aside.hanging() == {1, 2, 3, 4}
    assert aside.ask(hang, [0]) == {}
    over.set()
    wait_for(lambda: not aside.hanging())
    assert time.monotonic() - begun < 30
