"""Programs that are forked from the zygote are the daemon's own children, and as if they had been executed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from node import programs
from node.child import Child
from node.zygote import PREFIX, Zygote


async def _ready(zygote: Zygote) -> None:
    async with asyncio.timeout(60):
        while not zygote._ready:
            await asyncio.sleep(0.01)


async def _ended(child: Child) -> int:
    """The exit status of our own child, within a bound."""
    async with asyncio.timeout(30):
        return await asyncio.to_thread(child.wait)


async def _run(zygote: Zygote, log: Path, *words: str) -> tuple[int, str]:
    with log.open("wb") as output:
        child = await zygote.spawn([*PREFIX, *words], output.fileno(), ())
    assert child is not None
    return await _ended(child), log.read_text()


async def test_forked_program_writes_to_its_log_and_tells_its_status(tmp_path: Path) -> None:
    zygote = Zygote()
    zygote.start(programs.environment())
    try:
        await _ready(zygote)
        status, said = await _run(zygote, tmp_path / "log", "deputy", "--help")
        assert (status, said.split(maxsplit=2)[:2]) == (0, ["usage:", "deputy"])
        status, said = await _run(zygote, tmp_path / "log", "remote", "--nonsense")
        assert status == 2
        assert "usage: remote" in said
        assert "Traceback" not in said
    finally:
        zygote.close()


async def test_forked_program_has_its_descriptor_session_and_command_line_and_outlives_the_zygote(tmp_path: Path) -> None:
    zygote = Zygote()
    zygote.start(programs.environment())
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    # It reads its secret, which does not come, from that descriptor: it stands still there.
    words = ["remote", "--home", "n1", "--pid", "7", "--socket", str(tmp_path / "socket"), "--secret-fd", str(read_end),
             "--address", "127.0.0.1", "--node", "n2"]  # fmt: skip
    try:
        await _ready(zygote)
        with (tmp_path / "log").open("wb") as output:
            child = await zygote.spawn([*PREFIX, *words], output.fileno(), (read_end,))
            assert child is not None
        process = Path(f"/proc/{child.pid}")
        async with asyncio.timeout(30):
            while b"--secret-fd" not in (process / "cmdline").read_bytes():
                await asyncio.sleep(0.01)
        assert (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0") == [os.fsencode(word) for word in [*PREFIX, *words]]
        fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
        assert (int(fields[1]), int(fields[3])) == (os.getpid(), child.pid)
        assert (process / f"fd/{read_end}").readlink() == Path(f"/proc/self/fd/{read_end}").readlink()
        zygote.close()
        assert child.returncode is None
        os.kill(child.pid, 0)
    finally:
        zygote.close()
        os.close(read_end)
        os.close(write_end)
    child.kill()
    assert await _ended(child) == -signal.SIGKILL


async def test_a_zygote_that_is_held_up_for_seconds_forks_once_and_goes_on(tmp_path: Path) -> None:
    zygote = Zygote()
    zygote.start(programs.environment())
    try:
        await _ready(zygote)
        assert zygote._process is not None
        zygote._process.send_signal(signal.SIGSTOP)
        asyncio.get_running_loop().call_later(3, zygote._process.send_signal, signal.SIGCONT)
        status, said = await _run(zygote, tmp_path / "log", "deputy", "--help")
        assert (status, said.split(maxsplit=2)[:2]) == (0, ["usage:", "deputy"])
        assert zygote._ready
    finally:
        zygote.close()


async def test_a_zygote_that_is_lost_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.zygote.AGAIN", 0.1)
    zygote = Zygote()
    zygote.start(programs.environment())
    try:
        await _ready(zygote)
        assert zygote._process is not None
        zygote._process.kill()
        with (tmp_path / "log").open("wb") as output:
            assert await zygote.spawn([*PREFIX, "deputy", "--help"], output.fileno(), ()) is None
        await _ready(zygote)
        assert (await _run(zygote, tmp_path / "log", "deputy", "--help"))[0] == 0
    finally:
        zygote.close()


async def test_without_a_zygote_programs_are_executed(tmp_path: Path) -> None:
    zygote = Zygote()
    with (tmp_path / "log").open("wb") as output:
        assert await zygote.spawn([*PREFIX, "deputy", "--help"], output.fileno(), ()) is None
        zygote.start(programs.environment())
        try:
            await _ready(zygote)
            assert await zygote.spawn(["/bin/true"], output.fileno(), ()) is None
            assert zygote._process is not None
            zygote._process.kill()
            zygote._process.wait()
            assert await zygote.spawn([*PREFIX, "deputy", "--help"], output.fileno(), ()) is None
        finally:
            zygote.close()


@pytest.mark.parametrize("argv", [[], ["python3"], [*PREFIX]])
async def test_commands_that_are_no_programs_of_ours_are_left_alone(argv: list[str]) -> None:
    assert await Zygote().spawn(argv, 2, ()) is None
