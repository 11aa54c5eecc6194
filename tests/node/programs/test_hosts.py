"""Process trees in a shared host program: each is started, ended and reports its status by itself."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node.programs import programs
from node.programs.child import Started
from node.programs.hosts import Hosts
from node.programs.zygote import PREFIX, Zygote

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def hosts() -> AsyncIterator[Hosts]:
    hosts = Hosts(Zygote(), alone=0)
    yield hosts
    for host in [host for room in hosts._hosts.values() for host in room]:
        host._child.kill()
    hosts.close()


async def start(hosts: Hosts, directory: Path, number: int) -> tuple[Started, asyncio.Event]:
    """A remote whose guest does not come."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    os.write(write_end, bytes(32))
    os.close(write_end)
    words = ["remote", "--home", "n1", "--pid", str(number), "--socket", str(directory / f"{number}.sock"), "--secret-fd", str(read_end),
             "--address", "127.0.0.1", "--node", "n2"]  # fmt: skip
    hosted = await hosts.start([*PREFIX, *words], directory / f"{number}.log", (read_end,), programs.environment())
    os.close(read_end)
    over = asyncio.Event()
    hosted.watch(over.set)
    async with asyncio.timeout(60):
        while not (directory / f"{number}.sock").exists():
            await asyncio.sleep(0.01)
    return hosted, over


async def test_one_tree_of_a_shared_program_ends_and_the_other_goes_on(hosts: Hosts, tmp_path: Path) -> None:
    first, first_over = await start(hosts, tmp_path, 1)
    second, second_over = await start(hosts, tmp_path, 2)
    assert len(hosts._hosts["remote"]) == 1
    first.kill()
    async with asyncio.timeout(20):
        await first_over.wait()
    assert (first.returncode, second.returncode) == (1, None)
    assert not (tmp_path / "1.sock").exists()
    assert (tmp_path / "2.sock").exists()
    assert "guest n1:1 is gone" in (tmp_path / "1.log").read_text()
    assert (tmp_path / "2.log").read_text() == ""
    second.kill()
    async with asyncio.timeout(20):
        await second_over.wait()
    (host,) = hosts._hosts["remote"]
    assert not host.is_open
    async with asyncio.timeout(20):
        while host._child.returncode is None:
            await asyncio.sleep(0.01)
    assert host._child.returncode == 0


async def test_words_that_make_no_sense_end_a_tree_and_not_its_program(hosts: Hosts, tmp_path: Path) -> None:
    _, _ = await start(hosts, tmp_path, 1)
    wrong = await hosts.start([*PREFIX, "remote", "--nonsense"], tmp_path / "log", (), programs.environment())
    over = asyncio.Event()
    wrong.watch(over.set)
    async with asyncio.timeout(20):
        await over.wait()
    assert wrong.returncode == 2
    assert "usage: remote" in (tmp_path / "remote-host.log").read_text()
    assert (tmp_path / "1.sock").exists()


async def test_all_in_a_program_end_with_it(hosts: Hosts, tmp_path: Path) -> None:
    trees = [await start(hosts, tmp_path, number) for number in (1, 2)]
    (host,) = hosts._hosts["remote"]
    os.kill(host._child.pid, signal.SIGKILL)
    async with asyncio.timeout(20):
        for tree, over in trees:
            await over.wait()
            assert tree.returncode == -signal.SIGKILL
            tree.kill()  # no process is left, which is no error


async def test_a_program_that_is_full_gets_no_more(hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.programs.hosts.MOST", 2)
    for number in (1, 2, 3):
        await start(hosts, tmp_path, number)
    assert [len(host.trees) for host in hosts._hosts["remote"]] == [2, 1]
    assert len({host._child.pid for host in hosts._hosts["remote"]}) == 2


async def test_the_first_have_programs_of_their_own(hosts: Hosts, tmp_path: Path) -> None:
    hosts.alone = 1
    first, first_over = await start(hosts, tmp_path, 1)
    second, _ = await start(hosts, tmp_path, 2)
    assert [len(host.trees) for host in hosts._hosts["remote"]] == [1]
    first.kill()
    async with asyncio.timeout(20):
        await first_over.wait()
    assert first.returncode == -signal.SIGKILL
    third, third_over = await start(hosts, tmp_path, 3)
    assert [len(host.trees) for host in hosts._hosts["remote"]] == [1]
    third.kill()
    async with asyncio.timeout(20):
        await third_over.wait()
    assert second.returncode is None
