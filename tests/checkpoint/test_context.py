"""The context read from a checkpoint equals the process's: field by field the same as engine/context/capture.py takes from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from checkpoint import context
from checkpoint.directory import Opened
from checkpoint.errors import BadCheckpoint
from checkpoint.record import MOST, NAME, Record
from checkpoint.take import take
from engine.context.capture import capture
from engine.context.context import Context, ThreadContext
from kernel_helpers.process.seizing import seize
from kernel_helpers.process.syscalls import SYS, Registers, normalise_restart
from tests.moves.cluster import until

WAITING = """
import faulthandler, mmap, signal, threading, time
faulthandler.enable()
signal.signal(signal.SIGUSR1, lambda number, frame: None)
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
event = threading.Event()
for number in range(3):
    threading.Thread(target=event.wait, daemon=True).start()
areas = [mmap.mmap(-1, 1 << 16, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(4)]
areas[0].madvise(mmap.MADV_DONTDUMP)
areas[1][:] = b"x" * (1 << 16)
print("ready", flush=True)
event.wait()
"""


def read(saved: Path) -> Context:
    opened = Opened(saved, 0)
    try:
        return context.read(opened, Record.from_json(opened.read(NAME, MOST)))[0]
    finally:
        opened.close()


def plain(thread: ThreadContext) -> ThreadContext:
    """The context of the copy: at the call that the stop interrupted. What XSAVE leaves out is in its first state."""
    registers = Registers.from_buffer_copy(thread.registers)
    normalise_restart(registers)
    used = int.from_bytes(thread.extended_state[512:520], "little")
    area = bytearray(thread.extended_state)
    for bit in range(2, 10):
        offset, size = context._component(bit)
        if not used >> bit & 1:
            area[offset : offset + size] = bytes(size)
    area[512:520] = bytes(8)
    area[24:32] = area[464:512] = bytes(0)
    return replace(thread, registers=bytes(registers), extended_state=bytes(area[:464]))


@pytest.mark.timeout(90)
def test_a_context_out_of_images_is_that_of_the_process(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        tasks = list(Path(f"/proc/{process.pid}/task").iterdir())
        until("all wait", lambda: all((task / "syscall").read_text().split()[0] == str(SYS.futex) for task in tasks))
        os.kill(process.pid, signal.SIGTERM)  # waits, being blocked in one thread; the others were made after that, and block it as well
        with seize(process.pid) as frozen:
            wanted = capture(frozen, regs_carried=False)
        answer = take(process.pid, 0, tmp_path / "saved", tmp_path / "images", tmp_path / "journal")
        assert answer["bytes"] > 1 << 20
        assert not (tmp_path / "images").exists()
        found = read(tmp_path / "saved")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)
    assert found.pid == wanted.pid
    assert found.memory == wanted.memory
    assert found.identity == wanted.identity
    assert found.signal_actions == wanted.signal_actions
    assert found.kernel_code == wanted.kernel_code
    assert found.barriers == wanted.barriers
    assert found.pending == wanted.pending
    assert len(found.pending) == 1
    assert [plain(thread) for thread in found.threads] == [plain(thread) for thread in wanted.threads]
    kept = [replace(m, own=0, path=m.path if m.is_file or m.special else "") for m in wanted.maps]
    assert [replace(m, own=0, prot=m.prot if not m.special else 0) for m in found.maps] == [
        replace(m, prot=m.prot if not m.special else 0) for m in kept
    ]
    # Every area that has pages of its own has them in the images; of program text CRIU may have written one page and put it back.
    assert {m.start for m in wanted.maps if m.own and not m.special} <= {m.start for m in found.maps if m.own}


@pytest.mark.parametrize("size", [0, 1, 100, 5000])
def test_a_record_that_is_cut_off_is_none(size: int) -> None:
    with pytest.raises(BadCheckpoint):
        Record.from_json(b'{"version": 1, "pid": 5, "tids": ["' + b"x" * size)
