"""Calls that the kernel has restarted after a stop show as restart_syscall: which they are is found out all the same."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.calls import restarts, standstill
from kernel_helpers.process.seizing import Frozen, seize
from kernel_helpers.process.syscalls import SYS, signed
from tests.programs.build import program

SOURCE = Path(__file__).resolve().parents[1] / "programs" / "restarted.c"


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[tuple[int, dict[int, int]]]:
    """A process whose threads wait, stopped once already: its id; and by thread the number of the call."""
    program = tmp_path / "restarted"
    subprocess.run(["gcc", "-O1", "-pthread", "-o", program, SOURCE], check=True, timeout=60)
    process = subprocess.Popen([program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        calls = {}
        for line in process.stdout:
            if line == "ready\n":
                break
            tid, number = map(int, line.split())
            calls[tid] = number
        assert len(calls) == 13
        await_sleep(process.pid, calls)
        seize(process.pid).detach()
        await_sleep(process.pid, calls)
        yield process.pid, calls
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


def await_sleep(pid: int, calls: dict[int, int]) -> None:
    for _ in range(20):
        restarts.await_places(pid, calls)


def named(frozen: Frozen, calls: dict[int, int]) -> dict[int, int]:
    return {tid: signed(frozen.threads[tid].registers.orig_rax) for tid in calls}


def test_the_place_where_a_thread_waited_identifies_its_call(waiting: tuple[int, dict[int, int]]) -> None:
    pid, calls = waiting
    places = restarts.waiting_places(pid)
    with seize(pid) as frozen:
        assert set(named(frozen, calls).values()) == {SYS.restart_syscall}
        restarts.name_restarted_calls(frozen, places)
        assert named(frozen, calls) == calls


def test_without_a_place_the_arguments_identify_the_call(waiting: tuple[int, dict[int, int]]) -> None:
    pid, calls = waiting
    with seize(pid) as frozen:
        restarts.name_restarted_calls(frozen, {})
        assert named(frozen, calls) == calls


def test_threads_not_yet_back_in_their_wait_are_checked_again(waiting: tuple[int, dict[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    pid, calls = waiting
    monkeypatch.setattr(restarts, "_by_arguments", lambda pid, registers: SYS.getpid)
    frozen, ends = standstill.stop(pid, dict.fromkeys(calls, "0"), {})
    with frozen:
        assert named(frozen, calls) == calls
        assert ends == {}


def test_of_a_wait_that_came_to_another_processor_nothing_is_known() -> None:
    """That processor has a clock of its own. A thread that just went to sleep is still moved to others (sched/fair.c, DELAY_DEQUEUE)."""
    mine = os.sched_getaffinity(0)
    first, last = min(mine), max(mine)
    os.sched_setaffinity(0, {first})  # which it inherits
    with subprocess.Popen([program("dozes")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as dozes:
        assert dozes.stdin is not None and dozes.stdout is not None
        try:
            os.sched_setaffinity(0, {last})
            for _ in range(80):
                assert dozes.stdout.read(1)
                while Path(f"/proc/{dozes.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
                    pass
                os.sched_setaffinity(dozes.pid, {last})
                for wait in restarts.timed_waits(dozes.pid, {dozes.pid: "ep_poll"}).values():
                    assert wait.number == SYS.epoll_wait
                    assert 0 < wait.deadline - time.monotonic_ns() <= 60_000_000_000
                os.sched_setaffinity(dozes.pid, {first})
                dozes.stdin.write(b"x")
        finally:
            os.sched_setaffinity(0, mine)
            dozes.kill()
