"""Memory that a process would share with its child."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from remote.requests.birth import shared_memory

MAPS = """
import mmap, os, sys
kind, path = sys.argv[1:]
if kind != "nothing":
    flags = {"read": mmap.PROT_READ, "written": mmap.PROT_READ | mmap.PROT_WRITE}[kind.split()[0]]
    descriptor = -1 if path == "none" else os.open(path, os.O_RDWR)
    shared = mmap.mmap(descriptor, 4096, mmap.MAP_PRIVATE if "private" in kind else mmap.MAP_SHARED, flags)
    if "deleted" in kind:
        os.unlink(path)
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("kind", "has_file", "shares"),
    [
        ("nothing", False, False), ("read", True, False), ("read deleted", True, True), ("written", True, True), ("written", False, True),
        ("written private", True, False), ("read private deleted", True, False), ("read", False, True),
    ],
)  # fmt: skip
def test_memory_that_a_child_would_share_is_found(tmp_path: Path, kind: str, has_file: bool, shares: bool) -> None:
    path = tmp_path / "a file"
    path.write_bytes(bytes(4096))
    words = [sys.executable, "-S", "-c", MAPS, kind, str(path) if has_file else "none"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None and program.stdin is not None
        assert program.stdout.readline() == b"mapped\n"
        assert shared_memory(program.pid) is shares
        program.stdin.close()
