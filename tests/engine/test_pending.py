"""Signals that a move takes along keep the order in which they came."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.context.capture import pending_signals
from engine.signals.pending import put, put_first, settled, take
from engine.signals.ticks import overruns_of
from kernel_helpers.process import seizing, tracing
from kernel_helpers.process.injection.native import SIGINFO_SIZE
from kernel_helpers.process.syscalls import SYS

USR1, STOP, TSTP, CONT = signal.SIGUSR1, signal.SIGSTOP, signal.SIGTSTP, signal.SIGCONT
pytestmark = pytest.mark.timeout(120)


def info(number: int) -> bytes:
    return number.to_bytes(4, "little").ljust(SIGINFO_SIZE, b"\0")


@pytest.mark.parametrize(
    ("came", "left"),
    [
        ([], []), ([USR1, CONT], [USR1, CONT]), ([USR1, STOP], [USR1, STOP]), ([STOP, USR1, CONT], [USR1, CONT]), ([CONT, STOP], [STOP]),
        ([TSTP, STOP, CONT, TSTP, USR1], [TSTP, USR1]), ([STOP, CONT, STOP, CONT], [CONT]),
    ],
)  # fmt: skip
def test_the_last_of_stops_and_continuations_counts(came: list[int], left: list[int]) -> None:
    assert [int.from_bytes(one[:4], "little") for _, one in settled([(7, info(number)) for number in came])] == left


def test_whom_a_signal_is_for_is_kept() -> None:
    assert settled([(1, info(STOP)), (2, info(USR1)), (0, info(CONT))]) == [(2, info(USR1)), (0, info(CONT))]


@pytest.mark.parametrize("sent", [(STOP, CONT), (STOP,), (STOP, CONT, USR1)])
def test_signals_taken_from_a_process_and_put_back_have_their_effect(sent: tuple[int, ...]) -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        try:
            frozen = seizing.seize(process.pid)
            for number in sent:
                os.kill(process.pid, number)
                frozen.call(SYS.getpid)  # at the end of a call it is there, if it cannot be blocked
            taken = take(frozen)
            numbers = [int.from_bytes(one[:4], "little") for _, one in taken]
            assert numbers[0] == STOP
            assert sorted(numbers) == sorted(sent)
            put(frozen, taken)
            frozen.detach()
            time.sleep(0.1)
            if USR1 in sent:
                assert process.wait(5) == -USR1
            else:
                assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == ("S" if CONT in sent else "T")
        finally:
            process.kill()


def test_a_stop_that_is_put_back_after_a_continuation_is_over() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        try:
            frozen = seizing.seize(process.pid)
            os.kill(process.pid, STOP)
            frozen.call(SYS.getpid)
            taken = take(frozen)
            os.kill(process.pid, CONT)
            put(frozen, taken)
            frozen.detach()
            time.sleep(0.1)
            assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
        finally:
            process.kill()


def test_a_stop_that_waits_is_not_void() -> None:
    assert not tracing.SignalState(0, 1 << STOP - 1, 0, 0, 0).voids(STOP)
    assert tracing.SignalState(0, 1 << CONT - 1, 0, 0, 0).voids(TSTP)
    assert not tracing.SignalState(1 << CONT - 1, 0, 0, 0, 0).voids(USR1)


@contextmanager
def standing() -> Iterator[seizing.Frozen]:
    with subprocess.Popen(["sleep", "100"]) as process:
        try:
            yield seizing.seize(process.pid)
        finally:
            process.kill()


def send(pid: int, value: int, code: int = tracing.SI_QUEUE) -> None:
    """sigqueue(3) of a signal that is kept as often as it comes."""
    fields = signal.SIGRTMIN, 0, code, 0, os.getpid(), os.getuid(), value
    assert tracing.queue_signal(pid, None, signal.SIGRTMIN, struct.pack("<iiiiiiQ", *fields).ljust(SIGINFO_SIZE, b"\0"))


def values(pid: int) -> list[int]:
    return [int.from_bytes(one[24:32], "little") for one in pending_signals(pid, True)]


def test_all_pending_signals_are_found_although_the_examiner_gets_signals() -> None:
    """Each signal ends the kernel's listing of the queue early (ptrace_peek_siginfo)."""
    came = []
    before = signal.signal(USR1, lambda number, frame: came.append(number))
    sends = f"while kill -USR1 {os.getpid()}; do :; done"
    with standing() as frozen, subprocess.Popen(["sh", "-c", sends], stderr=subprocess.DEVNULL) as sender:
        try:
            for value in range(20):
                send(frozen.pid, value)
            while len(came) < 500:
                assert values(frozen.pid) == list(range(20))
        finally:
            sender.kill()
            sender.wait()
            signal.signal(USR1, before)


def test_taken_signals_come_before_those_that_arrived_meanwhile() -> None:
    with standing() as frozen:
        send(frozen.pid, 1)
        send(frozen.pid, 2)
        taken = take(frozen)
        send(frozen.pid, 3)
        put_first(frozen, taken)
        assert values(frozen.pid) == [1, 2, 3]


TICKS = """if 1:
    import ctypes, signal, sys, threading, time
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    libc, timer = ctypes.CDLL(None), ctypes.c_void_p()
    libc.timer_create(1, None, ctypes.byref(timer))
    libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, int(sys.argv[1]), 0, int(sys.argv[1])), None)
    for _ in range(int(sys.argv[2])):
        threading.Thread(target=time.sleep, args=[100], daemon=True).start()
    print('up', flush=True)
    signal.pause()
"""


@pytest.mark.parametrize(("nanoseconds", "threads", "rounds"), [(20_000, 0, 50), (20_000_000, 2, 15)])
def test_a_tick_that_is_put_back_when_its_timer_has_expired_again_reports_that_too(nanoseconds: int, threads: int, rounds: int) -> None:
    """Of several threads a tick is put back in tries, each of which must be quicker than the timer, on a busy machine too."""
    with subprocess.Popen([sys.executable, "-c", TICKS, str(nanoseconds), str(threads)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"up\n"
            frozen, began = seizing.seize(process.pid), time.monotonic()
            for _ in range(rounds):
                taken = take(frozen)
                time.sleep(nanoseconds / 1e9 * 3)
                put(frozen, taken)
            expired, taken_count = (time.monotonic() - began) * 1e9 / nanoseconds, 0
            for _ in range(2):  # of each timer one is taken at a time
                taken_count += sum(1 + overruns_of(info) for _, info in take(frozen))
            frozen.detach()
            assert taken_count >= 0.98 * expired - 2
        finally:
            process.kill()


def test_signals_pending_for_an_ended_thread_are_dropped() -> None:
    with standing() as frozen:
        send(frozen.pid, 1)
        taken = take(frozen)
        put(frozen, [(frozen.pid + 1, info) for _, info in taken])
        assert values(frozen.pid) == []
