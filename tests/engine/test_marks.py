"""Guards of a process whose mappings have been read already."""

from __future__ import annotations

import mmap
import subprocess
import sys

import pytest

from engine.context.marks import guards_of
from engine.mappings.address_space import read_mappings_quickly
from engine.mappings.mappings import read_mappings
from kernel_helpers.pages.pages import guards, knows_guards

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(not knows_guards(), reason="this kernel knows no guards (Linux 6.13)"),
]
GUARDED = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
for at, pages in ((0x100000000, 4), (0x100100000, 4), (0x110000000, 512)):
    assert libc.mmap(at, pages * 4096, 3, 0x100022, -1, 0) == at
    ctypes.memset(at, 1, pages * 4096)
for at in map(int, sys.argv[1:]):
    assert libc.madvise(at, 4096, 102) == 0
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("places", [[], [0x100001000], [0x110080000], [0x100101000, 0x110000000]], ids=["none", "small", "large", "both"])
def test_all_guards_are_found_by_the_mappings(places: list[int]) -> None:
    """Small mappings report with their pages whether they may have guards; large ones are looked through."""
    command = [sys.executable, "-c", GUARDED, *map(str, places)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == "ready\n"
        quickly = read_mappings_quickly(child.pid)
        expected = [(place, place + mmap.PAGESIZE) for place in places]
        assert guards_of(child.pid, quickly) == tuple(expected) == guards_of(child.pid, read_mappings(child.pid))
        assert set(expected) <= set(guards(child.pid))
        if not any(place < 0x110000000 for place in places):
            assert not quickly.may_have_guards
        child.stdin.close()
