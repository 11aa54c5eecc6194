"""The copy is whole, holds no descriptor, and its making cannot be noticed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.criu import forkcopy
from engine.criu.forkcopy import fork_copy
from kernel_helpers.common.errors import MoveRefused
from kernel_helpers.process import seizing
from tests.engine.support import counts_on, descendants, eventually, running

ROOT = Path(__file__).resolve().parent.parent.parent


def test_copy_is_stopped_whole_and_without_descriptors(counter: str) -> None:
    with running([counter, "4"]) as program:
        before = descendants()
        with seizing.seize(program.pid) as frozen:
            state = {tid: thread.registers.copy() for tid, thread in frozen.threads.items()}
            copy = fork_copy(frozen)
            assert os.listdir(f"/proc/{copy.pid}/fd") == []
            assert os.readlink(f"/proc/{copy.pid}/cwd") == "/"
            assert sorted(copy.threads) == sorted(frozen.threads)
            for source, tid in copy.threads.items():
                task = Path(f"/proc/{copy.pid}/task/{tid}")
                assert task.joinpath("comm").read_text() == Path(f"/proc/{program.pid}/task/{source}/comm").read_text()
            assert bytes(program.report(copy.pid)) == bytes(program.report())
            copy.discard()
            assert {tid: thread.registers for tid, thread in frozen.threads.items()} == state
        assert descendants() == before
        counts_on(program, threads=4)


@pytest.mark.alone
def test_every_thread_of_the_copy_has_stopped(counter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if another process has its processor: CRIU waits in vain for a thread that it seizes just before that thread stops."""
    stop, states = forkcopy._stop_and_let_go, ""

    def stop_and_record(source: seizing.Frozen, copy: seizing.Frozen) -> None:
        nonlocal states
        stop(source, copy)
        states = "".join(Path(f"/proc/{tid}/stat").read_text().rsplit(")", 1)[1].split()[0] for tid in copy.threads)

    monkeypatch.setattr(forkcopy, "_stop_and_let_go", stop_and_record)
    there = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
    with subprocess.Popen([*there, "sh", "-c", "while :; do :; done"]) as other:
        try:
            with running([*there, "chrt", "--idle", "0", counter, "8"]) as program, seizing.seize(program.pid) as frozen:
                fork_copy(frozen).discard()
        finally:
            other.kill()
    assert states == "T" * 8


def test_program_sees_no_signal_and_no_child_of_the_copy(counter: str) -> None:
    with running([counter, "2"]) as program:
        for _ in range(5):
            with seizing.seize(program.pid) as frozen:
                copy = fork_copy(frozen)
                copy.discard()
                copy.discard()  # again does no harm
        counts_on(program, threads=2)
        assert program.report().children == 0
        os.kill(program.pid, signal.SIGUSR1)
        eventually(lambda: program.report().signals == 1)


def test_copy_runs_on_as_the_process_would(counter: str) -> None:
    """Continued, the copy counts in all its threads from where the process was, memory that fork empties included."""
    with running([counter, "4"]) as program, seizing.seize(program.pid) as frozen:
        at_freeze = list(program.report().count)
        copy = fork_copy(frozen)
        try:
            os.kill(copy.pid, signal.SIGCONT)
            counts_on(program, copy.pid, threads=4)
            assert all(program.report(copy.pid).count[i] > at_freeze[i] for i in range(4))
            assert list(program.report().count) == at_freeze
        finally:
            copy.discard()


def test_death_of_the_tracer_leaves_the_process_sound_and_no_copy(counter: str) -> None:
    source = """
import os, signal, sys
from engine.criu.forkcopy import fork_copy
from kernel_helpers.process import seizing
copy = fork_copy(seizing.seize(int(sys.argv[1])))
print(copy.pid, copy.intermediate.tid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with running([counter, "4"]) as program:
        result = subprocess.run([sys.executable, "-c", source, str(program.pid)], cwd=ROOT, stdout=subprocess.PIPE, timeout=30, check=False)
        copy, intermediate = (int(word) for word in result.stdout.split())
        assert result.returncode == -signal.SIGKILL
        counts_on(program, threads=4)
        for pid in (copy, intermediate):
            eventually(lambda pid=pid: _is_gone(pid), what=f"the end of {pid}")  # type: ignore[misc]
        assert program.report().children == 0


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_process_killed_while_its_copy_exists(counter: str) -> None:
    before = descendants()
    with running([counter, "2"]) as program:
        frozen = seizing.seize(program.pid)
        copy = fork_copy(frozen)
        program.process.kill()
        copy.discard()
        frozen.detach()
        assert program.process.wait(5) == -signal.SIGKILL
        eventually(lambda: _is_gone(copy.pid))
    assert descendants() == before


def test_memory_that_fork_does_not_pass_on_is_reported() -> None:
    source = """
import mmap, time
m = mmap.mmap(-1, 65536, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); m.madvise(mmap.MADV_DONTFORK)
print('0x0', flush=True)
time.sleep(60)
"""
    process = subprocess.Popen(["/usr/bin/python3", "-c", source], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        before = descendants()
        with seizing.seize(process.pid) as frozen, pytest.raises(MoveRefused, match="MADV_DONTFORK"):
            fork_copy(frozen)
        assert descendants() == before and process.poll() is None
    finally:
        process.kill()
        process.communicate()
