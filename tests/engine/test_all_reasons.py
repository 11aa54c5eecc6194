"""All reasons that keep a process at home are reported together, each once, each in a line of plain text."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from engine.leaving.refusal import only_poured, reasons, why_not
from tests.engine.test_refusal import python

ROOT = Path(__file__).resolve().parents[2]
THREE_THINGS = """
t = ctypes.c_void_p(); check(libc.timer_create(2, None, ctypes.byref(t))); check(libc.timer_create(2, None, ctypes.byref(t)))
i = check(libc.shmget(0, 4096, 0o1600)); libc.shmat.restype = ctypes.c_void_p
libc.shmat(i, None, 0); libc.shmat(i, None, 0); libc.shmctl(i, 0, None)
m = mmap.mmap(-1, 4096)
if not os.fork(): libc.prctl(1, 9), signal.pause()
"""


def test_several_reasons_are_reported_at_once_and_why_not_is_the_first() -> None:
    with python(THREE_THINGS) as pid:
        found = list(reasons(pid))
        for named in ("counts its processor time", "System V shared memory", "anonymous memory"):
            assert sum(named in reason for reason in found) == 1, found
        assert len(found) == 3
        assert why_not(pid) == found[0]


def test_a_process_that_may_move_has_none() -> None:
    with python("") as pid:
        assert list(reasons(pid)) == list(only_poured(pid)) == []


def test_memory_that_fork_does_not_pass_on_cannot_go_as_images() -> None:
    with python("m = mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); m.madvise(mmap.MADV_DONTFORK)") as pid:
        (reason,) = only_poured(pid)
        assert "MADV_DONTFORK" in reason


def test_a_path_that_is_no_text_is_reported_in_one_line_of_text() -> None:
    with tempfile.TemporaryDirectory() as directory:
        name = os.fsencode(directory) + b"/odd\xff\nname"
        Path(os.fsdecode(name)).write_bytes(bytes(4096))
        with python(f"f = open({name!r}, 'r+b'); m = mmap.mmap(f.fileno(), 4096)") as pid:
            (reason,) = reasons(pid)
            assert "/odd??name mapped shared and writable" in reason
            reason.encode()


def test_no_reason_is_reported_for_a_process_that_has_ended() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert list(reasons(child)) == ["it has ended"]
    os.waitpid(child, 0)


def test_a_process_that_may_not_be_inspected_is_reported_as_such() -> None:
    """The case of a daemon with bounded rights: asked by a process that has given up its capabilities."""
    source = (
        "import os, sys; from engine.leaving.refusal import reasons, only_poured; os.setresgid(1, 1, 1); os.setresuid(1, 1, 1);"
        "pid = int(sys.argv[1]); print([*reasons(pid), *only_poured(pid)])"
    )
    with python("") as pid:
        done = subprocess.run([sys.executable, "-c", source, str(pid)], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
        assert done.stdout == "['it has more rights than farhome, which may not look into it']\n"
