"""Programs that are forked from the zygote are the daemon's own children, and as if they had been executed."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab import Lab, cgroups
from node.programs import programs
from node.programs.child import Child
from node.programs.forked import PREFIX, TITLE_BYTES
from node.programs.zygote import Zygote


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


async def test_forked_program_writes_to_its_log_and_reports_its_status(tmp_path: Path) -> None:
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


@contextlib.contextmanager
def _few_descriptors(most: int) -> Iterator[None]:
    """What is forked meanwhile may have no more; 1,024 is what a shell gives."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_low_limit_of_descriptors_is_enough_and_a_child_that_cannot_begin_ends(tmp_path: Path) -> None:
    zygote = Zygote()
    with _few_descriptors(256):
        zygote.start(programs.environment())
    beyond = fcntl.fcntl(os.memfd_create("a descriptor"), fcntl.F_DUPFD_CLOEXEC, 300)
    try:
        await _ready(zygote)
        for _ in range(3):
            status, said = await _run(zygote, tmp_path / "log", "deputy", "--help")
            assert (status, said.split(maxsplit=2)[:2]) == (0, ["usage:", "deputy"])
            with (tmp_path / "log").open("wb") as output:
                child = await zygote.spawn([*PREFIX, "deputy", "--help"], output.fileno(), (beyond,))
            assert child is not None
            assert await _ended(child) == 1
    finally:
        os.close(beyond)
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
        os.kill(zygote._process.pid, signal.SIGSTOP)
        asyncio.get_running_loop().call_later(3, os.kill, zygote._process.pid, signal.SIGCONT)
        status, said = await _run(zygote, tmp_path / "log", "deputy", "--help")
        assert (status, said.split(maxsplit=2)[:2]) == (0, ["usage:", "deputy"])
        assert zygote._ready
    finally:
        zygote.close()


async def test_a_zygote_that_is_lost_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.programs.zygote.AGAIN", 0.1)
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


FORKED = """
import asyncio, gc, os, sys
from pathlib import Path
from node.programs import forked
gc.disable()
forked_already = forked.begin()
from node.programs import programs
from node.programs.zygote import Zygote
async def main():
    zygote = Zygote()
    zygote.take(forked_already)
    zygote.start(programs.environment())
    await zygote.settled()
    print(zygote._process.pid == forked_already[0], Path("/proc/self/cmdline").read_bytes().rstrip(bytes(1)).split(bytes(1))[-1])
    with open(sys.argv[1], "wb") as output:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, bytes(4096))
        except BlockingIOError:
            os.set_blocking(writer, True)                           # the child blocks in a write: its command line can still be read
        child = await zygote.spawn([*forked.PREFIX, "deputy", "--help", "x" * 300], writer, ())
        shown = Path(f"/proc/{child.pid}/cmdline").read_bytes()
        print(len(shown) >= forked.TITLE_BYTES, Path(f"/proc/{child.pid}/stat").read_text().rsplit(")")[1].split()[1] == str(os.getpid()))
        os.close(writer)
        os.close(reader)
        child.wait()
        child = await zygote.spawn([*forked.PREFIX, "deputy", "--help"], output.fileno(), ())
        print(await asyncio.to_thread(child.wait))
    zygote.close()
    print(Path(f"/proc/{forked_already[0]}").exists())
asyncio.run(main())
"""


def test_a_forked_program_does_the_same_as_an_executed_one(tmp_path: Path) -> None:
    words = [sys.executable, "-P", "-c", FORKED, str(tmp_path / "log"), " " * TITLE_BYTES]
    environment = {**os.environ, "PYTHONPATH": str(programs.ROOT)}
    done = subprocess.run(words, env=environment, text=True, capture_output=True, timeout=60, check=False, cwd="/")
    assert (done.stdout, done.stderr) == (f"True {os.fsencode(tmp_path / 'log')!r}\nTrue True\n0\nFalse\n", "")
    assert "usage: deputy" in (tmp_path / "log").read_text()
    # Where there is no room for other command lines nothing is forked.
    words = [sys.executable, "-P", "-c", "from node.programs import forked; print(forked.begin())"]
    assert subprocess.run(words, env=environment, text=True, capture_output=True, timeout=60, check=True).stdout == "None\n"


def shown_as(lab: Lab, words: bytes) -> int:
    """The process of a lab whose command line begins so."""
    deadline = time.monotonic() + 20
    while True:
        for pid in cgroups.processes(lab.name):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(words):
                    return pid
        assert time.monotonic() < deadline, words
        time.sleep(0.02)


def memory_of(pid: int) -> bytes:
    """All that a process has written, or could have."""
    found = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if " rw" in line:
                start, end = (int(word, 16) for word in line.split()[0].split("-"))
                memory.seek(start)
                found.append(memory.read(end - start))
    return b"".join(found)


def test_the_process_that_programs_are_forked_from_has_no_secret_of_the_daemon(lab_name: Callable[[], str]) -> None:
    with Lab.up(1, name=lab_name()) as lab:
        root = lab.node("n1").root
        keeper = shown_as(lab, b"farhome: the process that deputies")
        daemon = int(Path(f"/proc/{keeper}/stat").read_text().rsplit(")", 1)[1].split()[1])
        assert Path(f"/proc/{daemon}/cmdline").read_bytes().rstrip(bytes(1)).endswith(b"/etc/farhome/node.toml")
        keys = [(root / "var/lib/farhome/pki" / name).read_bytes().split(b"\n")[1][:48] for name in ("node.key", "authority.key")]
        whole = memory_of(keeper)
        assert b"farhome: the process" in whole
        assert not any(key in whole for key in keys)
        assert Path(f"/proc/{keeper}/exe").readlink() == Path(f"/proc/{daemon}/exe").readlink()
        held = [os.readlink(entry) for entry in Path(f"/proc/{keeper}/fd").iterdir()]
        assert sum(name.startswith("socket:") for name in held) == 1
        assert {name for name in held if not name.startswith("socket:")} == {"/dev/null", "/run/farhome/mosd.log"}


@pytest.mark.parametrize("argv", [[], ["python3"], [*PREFIX]])
async def test_commands_that_are_no_programs_of_ours_are_left_alone(argv: list[str]) -> None:
    assert await Zygote().spawn(argv, 2, ()) is None
