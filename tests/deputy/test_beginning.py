"""A program that its deputy holds at its first instruction, with every event that may happen before."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deputy.moves.programs.beginning import Beginning, program_of
from engine.leaving.permission import ROOT

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A shell that executes another program after a line on its standard input."""
    with subprocess.Popen(["bash", "-c", "trap 'echo trapped' USR1; echo there; read line; exec sleep 60"], stdin=-1, stdout=-1) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"there\n"
        yield child
        child.kill()


def let_execute(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    child.stdin.write(b"now\n")
    child.stdin.flush()


def watch(beginning: Beginning, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not beginning.is_over:
        beginning.poll()
        assert time.monotonic() < end
        time.sleep(0.001)


def tracer(pid: int) -> str:
    return next(line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("TracerPid"))


def test_a_program_is_held_before_its_first_instruction_and_goes_on(child: subprocess.Popen[bytes]) -> None:
    beginning = Beginning(child.pid, program_of(child.pid))
    os.kill(child.pid, signal.SIGUSR1)
    let_execute(child)
    watch(beginning)
    frozen = beginning.take((ROOT,))
    assert frozen is not None
    assert os.readlink(f"/proc/{child.pid}/exe").endswith("sleep")
    maps = [line.split() for line in Path(f"/proc/{child.pid}/maps").read_text().splitlines()]
    at = next(line for line in maps if int(line[0].split("-")[0], 16) <= frozen.leader.registers.rip < int(line[0].split("-")[1], 16))
    assert "ld-linux" in at[-1]
    assert not any("libc.so" in line[-1] for line in maps)
    frozen.detach()
    assert tracer(child.pid) == "0"
    assert child.poll() is None


def test_a_program_that_has_already_begun_is_let_go(child: subprocess.Popen[bytes]) -> None:
    beginning = Beginning(child.pid, os.stat("/proc/self/exe"))
    assert beginning.is_over
    assert beginning.take((ROOT,)) is None
    assert tracer(child.pid) == "0"


def test_a_program_that_takes_too_long_is_let_go(child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deputy.moves.programs.beginning.PATIENCE", 0.1)
    beginning = Beginning(child.pid, program_of(child.pid))
    watch(beginning)
    assert beginning.take((ROOT,)) is None
    assert tracer(child.pid) == "0"


def test_a_program_that_ends_before_is_reported(child: subprocess.Popen[bytes]) -> None:
    beginning = Beginning(child.pid, program_of(child.pid))
    child.kill()
    watch(beginning)
    with pytest.raises(ProcessLookupError):
        beginning.take((ROOT,))
