"""A traced thread that is brought to a stop for a moment."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.calls.link_pair import wait_for
from deputy.stub.traced import Traced
from kernel_helpers.process import tracing
from kernel_helpers.process.seizing import seize
from kernel_helpers.process.tracing import Cause
from tests.deputy.test_stub import _state

pytestmark = pytest.mark.timeout(120)

COUNTS = """
import mmap, signal, struct, sys
signal.signal(signal.SIGUSR1, lambda *_: None)
with open(sys.argv[1], "r+b") as file:
    count = mmap.mmap(file.fileno(), 8)
number = 0
while True:
    number += 1
    struct.pack_into("Q", count, 0, number)
"""


@contextmanager
def counting(path: Path) -> Iterator[tuple[int, Callable[[], int]]]:
    """A program that counts, and how far it has come."""
    path.write_bytes(bytes(8))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 8) as count, subprocess.Popen([sys.executable, "-c", COUNTS, path]) as program:

        def number() -> int:
            return int(struct.unpack_from("Q", count)[0])

        try:
            wait_for(lambda: number() > 0, 60, "it does not count")
            yield program.pid, number
        finally:
            os.kill(program.pid, signal.SIGKILL)
            while not os.WIFSIGNALED(os.waitpid(program.pid, 0)[1]):
                pass  # stops that were before that
            program.returncode = -signal.SIGKILL


@pytest.mark.parametrize("cause", ["asked", "signal"])
def test_a_thread_in_a_stop_that_nobody_has_waited_for_runs_once_it_is_let_go(tmp_path: Path, cause: str) -> None:
    with counting(tmp_path / "count") as (pid, number):
        seize(pid).resume()
        traced = Traced(pid, {pid: pid})
        traced.on_stop = lambda stop: tracing.proceed(stop.tid, stop.number if stop.cause is Cause.SIGNAL else 0)
        for _ in range(3):
            if cause == "asked":
                tracing.interrupt(pid)
            else:
                os.kill(pid, signal.SIGUSR1)
            wait_for(lambda: _state(pid) == "t", 30, "it does not stop")
            assert traced.interrupt(pid, 30) is not None
            before = number()
            traced.let_go(pid)
            wait_for(lambda: number() > before, 30, "it does not run")  # noqa: B023
