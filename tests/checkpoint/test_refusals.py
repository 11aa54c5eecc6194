"""Objects that cannot be saved are named before anything happens, and the process goes on untouched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkpoint.errors import CheckpointRefused
from checkpoint.take import take
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.process.seizing import seize
from tests.moves.cluster import until

HELD = Path(__file__).with_name("held.py")
REFUSED = {
    "pipe": "it has a pipe open that is not its standard input, output or error",
    "socket": "it has a socket open that is not its standard input",
    "epoll": "it has an epoll instance open",
    "eventfd": "it has an eventfd open",
    "timerfd": "it has a timerfd open",
    "memfd": "it has memory open as a file (/memfd:memory)",
    "inotify": "it has an inotify instance open",
    "pidfd": "it has a pidfd open",
    "proc": "it has /proc/uptime open, which shows the moment",
    "deleted": "open, which is deleted",
    "flock": "it holds a lock (flock",
    "lockf": "it holds a lock (posix",
    "async": "(O_ASYNC)",
    "terminal": "it has a terminal open that is not its standard input",
    "fifo": "it has a pipe open that is not its standard",
    "timer": "it has a timer (timer_create)",
    "namespace": "it is in a UTS namespace of its own",
    "shared": "it has memory mapped shared",
    "mapped": "mapped, which is open for writing",
    "child": "it has a child (process ",
    "subreaper": "orphans come to it",
    "directory": "its working directory is deleted",
}


@contextmanager
def held(kind: str, directory: Path, program: Path = HELD) -> Iterator[subprocess.Popen[bytes]]:
    """The program, when it holds that."""
    process = subprocess.Popen(
        [sys.executable, "-I", program, kind],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", REFUSED)
def test_objects_that_cannot_be_saved_are_named(kind: str, tmp_path: Path) -> None:
    with held(kind, tmp_path) as process:
        with pytest.raises(CheckpointRefused) as refused:
            take(process.pid, 0, tmp_path / "saved", tmp_path / "images", tmp_path / "journal")
        assert REFUSED[kind] in str(refused.value)
        assert refused.value.exit_code == 75
        assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("file")) == []
        switches = scheduled(process.pid)
        until("it goes on", lambda: scheduled(process.pid) > switches, seconds=20)


def scheduled(pid: int) -> int:
    """Returns how often it has slept."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("voluntary")))


@pytest.mark.timeout(60)
def test_a_process_that_is_traced_or_stopped_is_refused(tmp_path: Path) -> None:
    with held("nothing", tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        until("it is stopped", lambda: " T " in Path(f"/proc/{process.pid}/stat").read_text())
        with pytest.raises(CheckpointRefused, match="it is stopped"):
            take(process.pid, 0, tmp_path / "saved", tmp_path / "images", tmp_path / "journal")
        process.send_signal(signal.SIGCONT)
        frozen = seize(process.pid)
        try:
            with pytest.raises(CheckpointRefused, match="traced"):
                take(process.pid, 0, tmp_path / "saved", tmp_path / "images", tmp_path / "journal")
        finally:
            frozen.detach()


@pytest.mark.timeout(60)
def test_memory_that_its_user_may_not_read_is_not_given_to_him(tmp_path: Path) -> None:
    secret = "import ctypes, time\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\nprint('ready', flush=True)\ntime.sleep(60)"
    process = subprocess.Popen(
        ["/usr/bin/python3", "-I", "-c", secret], cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        user=65534, group=65534, extra_groups=[],
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with pytest.raises(CheckpointRefused, match="not to be read by its user"):
            take(process.pid, 65534, tmp_path / "saved", tmp_path / "images", tmp_path / "journal")
    finally:
        process.kill()
        process.wait(20)


@pytest.mark.timeout(60)
def test_a_process_that_has_ended_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FarhomeError, match="it has ended"):
        take(1 << 22, 0, tmp_path / "saved", tmp_path / "images", tmp_path / "journal")
