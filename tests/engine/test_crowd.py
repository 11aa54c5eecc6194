"""Many threads dealt with at once, which must come to the same as each dealt with alone."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bench.common.nodes import build
from engine.context.capture import capture
from engine.context.context import Context
from engine.context.crowd import call_in
from engine.signals.pending import take
from kernel_helpers.inspection import tasks
from kernel_helpers.process import many, seizing
from kernel_helpers.process.injection.native import EVENT_STOP
from kernel_helpers.process.syscalls import SYS
from kernel_helpers.usage.account import FIELDS, WHOLE, Account

ROOT = Path(__file__).resolve().parents[2]
THREADS = 300
"""More than make their calls at once."""
PR_GET_TID_ADDRESS = 40

pytestmark = pytest.mark.timeout(60)


@contextmanager
def crowd(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program of so many threads, which verifies at its end what each of them has kept."""
    build("moves/crowd")
    with subprocess.Popen([ROOT / ".build" / "bench-moves-crowd", str(THREADS), path, "0"]) as process:
        try:
            while not path.exists() or path.read_text() != "ready\n":
                assert process.poll() is None
                os.sched_yield()
            yield process
        finally:
            process.kill()


def context_of(pid: int) -> Context:
    """All but which register sets each extended state counts as used (XSTATE_BV): of one that is as at first the processor says either."""
    with seizing.seize(pid, timeout=60) as frozen:
        found = capture(frozen)
    threads = (replace(one, extended_state=one.extended_state[:512] + one.extended_state[520:]) for one in found.threads)
    return replace(found, threads=tuple(threads))


def test_a_crowd_of_threads_is_captured_as_each_thread_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with crowd(tmp_path / "said") as process:
        at_once = context_of(process.pid)
        monkeypatch.setattr(many, "FEW", THREADS * 2)
        alone = context_of(process.pid)
        assert len(at_once.threads) == THREADS + 1
        for one, other in zip(at_once.threads[1:], alone.threads[1:], strict=True):  # the first one counts milliseconds
            assert one == other
        assert at_once.maps == alone.maps
        process.terminate()
        assert process.wait(30) == 0


def test_results_and_memory_are_those_of_each(tmp_path: Path) -> None:
    with crowd(tmp_path / "said") as process:
        with seizing.seize(process.pid) as frozen:
            threads = list(frozen.threads.values())
            given = [f"thread {index}".encode() for index in range(len(threads))]
            results, memory = call_in(frozen, threads, lambda index, _: [(SYS.gettid,), (SYS.close, 4096 + index)], 2, given, reported=10)
            assert [result[0] for result in results] == [thread.tid for thread in threads]
            assert {result[1] for result in results} == {-9}
            assert [text.rstrip(b"\0") for text in memory] == given
        process.terminate()
        assert process.wait(30) == 0


def test_calls_that_are_alike_are_made_with_the_memory_of_each(tmp_path: Path) -> None:
    with crowd(tmp_path / "said") as process:
        with seizing.seize(process.pid) as frozen:
            threads = list(frozen.threads.values())

            def calls(_: int, address: int) -> list[tuple[int, ...]]:
                return [(SYS.prctl, PR_GET_TID_ADDRESS, address), (SYS.gettid,), (SYS.close, -1)]

            results, memory = call_in(frozen, threads, calls, 3, reported=8, alike=True)
            assert (results, memory) == call_in(frozen, threads, calls, 3, reported=8)
            assert results == [[0, thread.tid, -9] for thread in threads]
            assert len(set(memory)) == len(threads)
        process.terminate()
        assert process.wait(30) == 0


def test_all_are_asked_to_stop_and_heard_of_at_once(tmp_path: Path) -> None:
    with crowd(tmp_path / "said") as process:
        with seizing.seize(process.pid) as frozen:
            tids = list(frozen.threads)
            frozen.resume()
            many.interrupt(tids)
            assert {status and status >> 16 for status in many.reports(tids, 10.0)} == {EVENT_STOP}
            many.capture(process.pid, list(frozen.threads.values()))
            assert not many.have_ended(tids)
        process.terminate()
        assert process.wait(30) == 0


def test_the_usage_of_each_thread_is_found(tmp_path: Path) -> None:
    with crowd(tmp_path / "said") as process:
        tids = [tid for tid in map(int, os.listdir(f"/proc/{process.pid}/task")) if tid != process.pid]  # the first one counts milliseconds
        used = Account(process.pid, {tid: tid for tid in tids}, counts=False).used()
        shown = tasks.texts(process.pid, "status", ["voluntary_ctxt_switches:"])
        found = {tid: dict(zip(FIELDS, row, strict=True))["voluntary"] for tid, *row in used}
        assert found.pop(WHOLE) == sum(found.values())
        assert found == {tid: int(shown[tid].split()[1]) for tid in tids}


def test_signals_that_wait_for_some_are_found(tmp_path: Path) -> None:
    with crowd(tmp_path / "said") as process:
        with seizing.seize(process.pid) as frozen:
            last = list(frozen.threads)[-1]
            os.kill(process.pid, signal.SIGUSR1)
            assert ctypes.CDLL(None).syscall(SYS.tgkill, process.pid, last, signal.SIGUSR2) == 0
            taken = {(tid, info[0]) for tid, info in take(frozen)}
            assert taken == {(0, signal.SIGUSR1), (last, signal.SIGUSR2)}
        process.terminate()
        assert process.wait(30) == 0


def test_statuses_are_those_of_all_threads(tmp_path: Path) -> None:
    with crowd(tmp_path / "said") as process:
        shown = tasks.texts(process.pid, "status", ["Pid:", "Seccomp:"])
        assert {tid: f"Pid:\t{tid}\nSeccomp:\t0\n".encode() for tid in map(int, os.listdir(f"/proc/{process.pid}/task"))} == shown
        assert tasks.inner_tids(process.pid, list(shown)) == {tid: tid for tid in shown}
    with pytest.raises(ProcessLookupError):
        tasks.texts(process.pid, "status")
