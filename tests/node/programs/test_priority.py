"""The daemon has the processor first, and so has a deputy during a move; programs that they start do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.programs.priority import FIRST, put_first

ROOT = Path(__file__).resolve().parents[3]
FIRST_OF_ALL = """
import os, subprocess, sys
from node.programs.priority import come_first
come_first()
child = subprocess.run([sys.executable, "-c", "import os; print(os.nice(0))"], capture_output=True, text=True)
print(os.getpriority(os.PRIO_PROCESS, 0), child.stdout)
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_programs_started_by_the_daemon_have_no_priority() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_OF_ALL], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == [str(FIRST), "0"]


def test_all_threads_of_a_program_are_put_first_and_back() -> None:
    with subprocess.Popen([sys.executable, "-c", "import threading, sys; t = threading.Thread(target=sys.stdin.read); t.start(); print()"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:  # fmt: skip
        assert program.stdout is not None
        program.stdout.readline()
        for first, nice in ((True, FIRST), (False, 0)):
            put_first(program.pid, first)
            threads = [int(name) for name in os.listdir(f"/proc/{program.pid}/task")]
            assert len(threads) == 2
            assert [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads] == [nice, nice]
        program.stdin.close()  # type: ignore[union-attr]
    put_first(program.pid)  # it has ended: no error


def test_without_the_right_everything_goes_on() -> None:
    script = "import os; os.setresuid(65534, 65534, 65534)\nfrom node.programs.priority import *\ncome_first(); put_first(os.getppid())"
    script += "\nprint(os.getpriority(os.PRIO_PROCESS, 0))"
    command = [sys.executable, "-c", "import node.programs.priority\n" + script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert int(done.stdout) >= 0
