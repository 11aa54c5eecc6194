"""The flags of mappings from one system call equal those in smaps."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine.mappings.address_space import read_mappings_quickly
from engine.mappings.mappings import PAGE, Mapping, read_mappings
from kernel_helpers.pages.tables import vmas

SCRIPT = """
import mmap, sys, time
kept = [mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(40)]
for number, (m, advice) in enumerate(zip(kept, [mmap.MADV_DONTFORK, mmap.MADV_DONTDUMP, mmap.MADV_HUGEPAGE, mmap.MADV_NOHUGEPAGE,
                                                mmap.MADV_SEQUENTIAL, mmap.MADV_RANDOM, mmap.MADV_MERGEABLE, 18] * 5)):
    m.madvise(advice)
    if number % 2:
        m[4096] = 1
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def other() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


def as_quickly(m: Mapping) -> Mapping:
    return replace(m, own=PAGE if m.own and m.private and not m.special else 0)


def test_quickly_is_as_smaps_says(other: int) -> None:
    assert read_mappings_quickly(other) == tuple(as_quickly(m) for m in read_mappings(other))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs BPF")
@pytest.mark.skipif(not os.path.exists("/sys/kernel/btf/vmlinux"), reason="the kernel does not describe itself")
def test_the_kernel_can_be_asked_here(other: int) -> None:
    """Else the test before compares smaps with itself."""
    assert vmas.flags(other) is not None
    assert vmas.flags(other, room=2) == vmas.flags(other)


def test_smaps_is_read_if_the_system_call_is_missing(other: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vmas, "layout", lambda: None)
    assert read_mappings_quickly(other) == read_mappings(other)


def test_bits_that_mean_something_else_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vmas.BITS, "dc", 18)
    vmas.layout.cache_clear()
    vmas.names.cache_clear()
    try:
        assert vmas.layout() is None
    finally:
        monkeypatch.undo()
        vmas.layout.cache_clear()
        vmas.names.cache_clear()


def test_signals_do_not_keep_the_program_from_being_loaded() -> None:
    """A kernel gives up its check of a program when a signal waits."""
    where = vmas.layout()
    if where is None:
        pytest.skip("this kernel cannot be asked")
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        for _ in range(500):
            program = vmas._native().farhome_vmas_open(ctypes.byref(where))
            assert program >= 0, os.strerror(-program)
            os.close(program)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_process_that_has_ended_is_an_error() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
        with pytest.raises(OSError):
            read_mappings_quickly(process.pid)
    assert mmap.PAGESIZE == PAGE
