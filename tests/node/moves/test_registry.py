"""The registry of home processes: what a restart finds again, and what it must not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from kernel_helpers.inspection.forks import Forks
from node.common import process
from node.moves.home_process import HomeProcess, from_record
from node.moves.lineage import MOST_BETWEEN, Lineage
from node.moves.registry import Registry


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "60"])
    yield child
    child.kill()
    child.wait()


def entry_of(pid: int, **fields: object) -> HomeProcess:
    stat = process.read_stat(pid)
    assert stat is not None
    return HomeProcess(pid, stat.starttime, os.getuid(), since=time.time(), **fields)  # type: ignore[arg-type]


async def test_an_entry_outlives_its_daemon(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    first = Registry(tmp_path, lambda entry: None)
    first.add(entry_of(sleeper.pid, job="j"))
    first.update(sleeper.pid, where="n2", state="away", recent=(1.0, 2.5))
    kept = first.get(sleeper.pid)
    first.close()
    second = Registry(tmp_path, lambda entry: None)
    second.load()
    assert second.get(sleeper.pid) == kept
    second.close()


async def test_the_end_of_a_process_is_reported_and_its_file_removed(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    ended: asyncio.Future[HomeProcess] = asyncio.get_running_loop().create_future()
    registry = Registry(tmp_path, ended.set_result)
    registry.add(entry_of(sleeper.pid))
    assert list(tmp_path.glob("*.json"))
    sleeper.kill()  # a zombie has ended, whether its parent knows or not
    assert (await asyncio.wait_for(ended, 5)).pid == sleeper.pid
    assert not list(tmp_path.glob("*"))
    assert registry.get(sleeper.pid) is None
    assert sleeper.pid in registry.ended
    registry.close()


async def test_another_process_with_the_same_pid_is_not_taken_for_it(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    stale = asdict(entry_of(sleeper.pid)) | {"starttime": 1}
    (tmp_path / f"{sleeper.pid}.json").write_text(json.dumps(stale))
    registry = Registry(tmp_path, lambda entry: None)
    registry.load()
    assert registry.get(sleeper.pid) is None
    assert not list(tmp_path.glob("*"))
    registry.close()


async def test_broken_files_are_dropped(tmp_path: Path) -> None:
    for number, text in enumerate(["", "[]", "{}", '{"pid": "1", "starttime": 1, "uid": 0}', '{"pid": 1}', "\0"]):
        (tmp_path / f"{number}.json").write_text(text)
    registry = Registry(tmp_path, lambda entry: None)
    registry.load()
    assert len(registry) == 0
    assert not list(tmp_path.glob("*"))


def test_a_record_with_more_than_we_know_is_read() -> None:
    assert from_record({"pid": 1, "starttime": 2, "uid": 3, "of a later version": 1}) == HomeProcess(1, 2, 3)


async def test_grandchildren_are_adopted_with_the_settings_of_their_job(tmp_path: Path) -> None:
    parent = subprocess.Popen(["sh", "-c", "(sleep 60 & sleep 61; :) & wait"], start_new_session=True)
    registry = Registry(tmp_path, lambda entry: None)
    registry.add(entry_of(parent.pid, job="j", locked=True))
    try:
        async with asyncio.timeout(5):
            while len(registry) < 4 or "sleep 61" not in {entry.command for entry in registry}:
                registry.adopt_children()
                registry.refresh_commands()  # a child may be seen between its fork and its exec
                await asyncio.sleep(0.01)
        assert {entry.job for entry in registry} == {"j"}
        assert all(entry.locked for entry in registry)
    finally:
        registry.close()
        os.killpg(parent.pid, 9)
        parent.wait()


def test_a_command_with_parentheses_and_spaces_does_not_confuse(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(program), "60"])
    try:
        stat = process.read_stat(child.pid)
        assert stat is not None
        assert stat.parent == os.getpid()
        assert process.is_alive(child.pid, stat.starttime)
        assert not process.is_alive(child.pid, stat.starttime + 1)
    finally:
        child.kill()
        child.wait()
    assert process.read_stat(child.pid) is None


def forking(count: int) -> subprocess.Popen[bytes]:
    """A shell with that many children, all of which are there when this returns."""
    script = f"i=0; while [ $i -lt {count} ]; do sleep 60 & i=$((i + 1)); done; echo; wait"
    child = subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return child


async def test_one_search_for_children_is_bounded_and_the_next_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = forking(20)
    registry = Registry(tmp_path, lambda entry: None)
    registry.add(entry_of(parent.pid))
    clock = iter(range(10_000))
    monkeypatch.setattr("node.moves.registry.time.monotonic", lambda: next(clock) / 100)  # 10 ms for each child that is taken
    try:
        registry.adopt_children()
        assert 1 < len(registry) < 10
        for _ in range(10):
            registry.adopt_children()
        assert len(registry) == 21
    finally:
        registry.close()
        os.killpg(parent.pid, 9)
        parent.communicate()


async def test_an_endlessly_forking_process_does_not_delay_the_search_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many, few = forking(40), forking(1)
    registry = Registry(tmp_path, lambda entry: None)
    for parent in (many, few):
        registry.add(entry_of(parent.pid, job=str(parent.pid)))
    clock = iter(range(10_000))
    monkeypatch.setattr("node.moves.registry.time.monotonic", lambda: next(clock) / 100)
    try:
        registry.adopt_children()
        registry.adopt_children()
        jobs = [entry.job for entry in registry]
        assert jobs.count(str(few.pid)) == 2
        assert jobs.count(str(many.pid)) < 41
    finally:
        registry.close()
        for parent in (many, few):
            os.killpg(parent.pid, 9)
            parent.communicate()


async def test_too_many_are_not_taken_unless_one_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.moves.registry.MOST_DESCENDANTS", 5)
    parent = forking(8)
    registry = Registry(tmp_path, lambda entry: None)
    registry.add(entry_of(parent.pid, job="j"))
    try:
        for _ in range(3):
            registry.adopt_children()
        assert len(registry) == 5
        left = next(pid for pid in process.children(parent.pid) if registry.get(pid) is None)
        taken = registry.adopt(left)
        assert taken is not None
        assert (taken.pid, taken.job) == (left, "j")
        assert registry.adopt(os.getpid()) is None
    finally:
        registry.close()
        os.killpg(parent.pid, 9)
        parent.communicate()


async def test_descendants_are_found_after_the_processes_between_have_ended(tmp_path: Path) -> None:
    registry = Registry(tmp_path, lambda entry: None, Forks())
    script = "read begin; sh -c '(exec sleep 60 <&- >&- &) ; (exec sleep 60 <&- >&- &)'"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE) as started, subprocess.Popen(["sleep", "60"]) as stranger:
        registry.add(entry_of(started.pid, job="j"))
        assert started.stdin is not None
        started.stdin.write(b"now\n")
        started.stdin.close()
        started.wait()
        registry.adopt_children()
        found = [entry for entry in registry if entry.pid != started.pid]
        for entry in found:
            os.kill(entry.pid, signal.SIGKILL)
        stranger.kill()
    assert [(entry.job, entry.adopted) for entry in found] == [("j", False)] * 2
    registry.close()


@pytest.mark.parametrize("then", ["has begun", "has ended"])
async def test_a_child_of_one_that_is_about_to_begin_is_taken_then(tmp_path: Path, sleeper: subprocess.Popen[bytes], then: str) -> None:
    """For example a child of `mosrun setsid -f`: it is born before mosd is notified that the program has begun."""
    with subprocess.Popen(["sleep", "60"]) as child:
        births = [([(sleeper.pid, child.pid)], False)]

        class Born:
            def take(self) -> tuple[list[tuple[int, int]], bool]:
                return births.pop() if births else ([], False)

            def close(self) -> None:
                pass

        registry = Registry(tmp_path, lambda entry: None, Born())
        registry.add(entry_of(sleeper.pid, job="j", state="starting"))
        registry.adopt_children()
        assert registry.get(child.pid) is None
        if then == "has begun":
            registry.update(sleeper.pid, state="home")
        else:
            sleeper.kill()
            sleeper.wait(10)
            await asyncio.sleep(0.1)
            assert registry.get(sleeper.pid) is None
        registry.adopt_children()
        found = registry.get(child.pid)
        assert found is not None
        assert found.job == "j"
        registry.close()
        child.kill()


async def test_too_many_births_do_not_end_the_registry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Many:
        def take(self) -> tuple[list[tuple[int, int]], bool]:
            return [(1, pid) for pid in range(1 << 22, (1 << 22) + 9000)], True

        def close(self) -> None:
            pass

    lineage: Lineage[str] = Lineage(Many())
    assert len(lineage.take({1: "one"}.get)) == MOST_BETWEEN
    assert len(lineage.take({}.get)) == 0
    assert caplog.text.count("more processes were born") == 1


@pytest.mark.parametrize(
    ("births", "found"),
    [([(1, 7), (2, 7)], []), ([(2, 7), (1, 7)], [(7, "one")]), ([(1, 7), (7, 8), (2, 7)], [(8, "one")])],
)
async def test_a_process_born_under_a_reused_pid_is_no_descendant(births: list[tuple[int, int]], found: list[tuple[int, str]]) -> None:
    class Births:
        def take(self) -> tuple[list[tuple[int, int]], bool]:
            return births, False

        def close(self) -> None:
            pass

    lineage: Lineage[str] = Lineage(Births())
    assert lineage.take({1: "one"}.get) == found
