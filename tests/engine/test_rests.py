"""A write that a stop has ended in the middle goes on at home, until it is over or a signal comes that ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.calls import rests
from engine.calls.finishing import Rests
from kernel_helpers.process.seizing import seize
from tests.programs.build import program

WRITER = """import os, signal, sys, time
ours, theirs = os.pipe()
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
os.set_inheritable(theirs, True)
print("writes", flush=True)
print(os.write(theirs, bytes(1 << 20)), flush=True)
"""
FULL = 1 << 16
"""Bytes that a pipe takes."""


def in_the_middle(pid: int, number: str) -> Rests:
    """Stops it in its call until that has been ended in the middle, and lets it go on."""
    made = Rests(pid)
    end = time.monotonic() + 10
    while not Path(f"/proc/{pid}/syscall").read_text().startswith(f"{number} "):
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(0.1)
    frozen = seize(pid)
    made.detach(frozen, rests.find(frozen))
    assert made
    return made


@pytest.mark.parametrize(("kind", "number"), [("write", 1), ("writev", 20), ("send", 44), ("sendmsg", 46), ("sendfile", 40)])
def test_an_interrupted_write_is_completed(tmp_path: Path, kind: str, number: int) -> None:
    with subprocess.Popen([str(program("gives")), kind], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as writer:
        made = in_the_middle(writer.pid, str(number))
        (tmp_path / "enough").touch()
        made.wait()
        assert writer.communicate(timeout=20)[0] == "wrote all, read the same\n"


def test_signals_end_it_that_it_hears() -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE, text=True) as writer:
        made = in_the_middle(writer.pid, "1")
        for _ in range(3):
            os.kill(writer.pid, signal.SIGUSR2)
            time.sleep(0.05)
            made.poll()
            time.sleep(0.05)
            made.poll()
            assert made
        os.kill(writer.pid, signal.SIGUSR1)
        made.wait()
        assert writer.communicate(timeout=20)[0] == f"writes\n{FULL}\n"


def test_the_rest_is_over_with_the_write_after_the_wait_was_given_up() -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE, text=True) as writer:
        in_the_middle(writer.pid, "1").wait(0.2)
        assert writer.communicate(timeout=20)[0] == f"writes\n{FULL}\n"


def test_a_stop_of_the_process_ends_it() -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE, text=True) as writer:
        made = in_the_middle(writer.pid, "1")
        os.kill(writer.pid, signal.SIGSTOP)
        made.wait()
        os.kill(writer.pid, signal.SIGCONT)
        assert writer.communicate(timeout=20)[0] == f"writes\n{FULL}\n"
