"""Time that one process has used, reported by another, equals what its own kernel would report; and it is added to the right clock."""

from __future__ import annotations

import os
import resource
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernel_helpers.calls.numbers import NUMBERS
from kernel_helpers.usage import account
from kernel_helpers.usage.account import FIELDS, WHOLE, Account
from tests.moves.cluster import until

PROGRAM = """
import threading, time, sys
def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end: sum(range(2000))
def work():
    t = threading.Thread(target=burn, args=(0.1,)); t.start(); burn(0.2); t.join()
while sys.stdin.readline(): work(); print(time.process_time_ns(), flush=True)
"""
TID = 1000
"""Id of the first thread as the program is supposed to see it; no such process need exist."""


class Worker:
    """Computes on demand: a first thread that stays, and each time another one that ends."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.pid = process.pid

    def work(self) -> int:
        """Nanoseconds on its own clock when it has done a round."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        clock = int(self.process.stdout.readline())
        until("it waits again", lambda: Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S")
        return clock


@contextmanager
def worker() -> Iterator[Worker]:
    with subprocess.Popen(["/usr/bin/python3", "-c", PROGRAM], stdin=-1, stdout=-1) as process:
        try:
            yield Worker(process)
        finally:
            process.kill()


def fields(used: list[list[int]], tid: int) -> dict[str, int]:
    return next(dict(zip(FIELDS, row[1:], strict=True)) for row in used if row[0] == tid)


def test_only_time_used_since_the_beginning_counts_and_adds_up() -> None:
    with worker() as one:
        first = one.work()
        book = Account(one.pid, {one.pid: TID})
        assert fields(book.used(), WHOLE)["total"] == 0
        second = one.work()
        whole, thread = fields(book.used(), WHOLE), fields(book.used(), TID)
        assert abs(whole["total"] - (second - first)) < 20_000_000
        assert whole["user"] + whole["system"] == whole["total"]
        assert 0.2e9 <= thread["total"] < whole["total"]
        assert whole["peak"] > 1000
        before = [[WHOLE, *range(10, 18)], [TID, *range(20, 28)], [TID + 1, *range(30, 38)]]
        book.carry(before)
        carried = fields(book.used(), WHOLE)
        assert carried["total"] == whole["total"] + 10
        assert carried["major"] == whole["major"] + 14
        assert fields(book.used(), TID)["total"] == thread["total"] + 20
        third = one.work()
        later = fields(book.used(), WHOLE)
        assert abs(later["total"] - carried["total"] - (third - second)) < 20_000_000
        # Which part of it is the user's its kernel says, by where its ticks fell: here only that it is all of it, and never becomes less.
        parts = [later[name] - carried[name] for name in ("user", "system")]
        assert min(parts) >= 0
        assert sum(parts) == later["total"] - carried["total"]
        book.begin()
        assert fields(book.used(), WHOLE)["total"] == 10
        book.close()
        book.close()


CASES = [
    ("clock_gettime", (2,), "<qq", (1, 999_999_999), lambda whole, _: divmod(1_999_999_999 + whole, 10**9)),
    ("clock_gettime", (3,), "<qq", (1, 0), lambda _, thread: divmod(10**9 + thread, 10**9)),
    ("clock_gettime", (~TID << 3 | 2,), "<qq", (0, 0), lambda whole, _: divmod(whole, 10**9)),
    ("clock_gettime", (~0 << 3 | 2,), "<qq", (0, 0), lambda whole, _: divmod(whole, 10**9)),
    ("clock_gettime", (~TID << 3 | 6,), "<qq", (0, 0), lambda _, thread: divmod(thread, 10**9)),
    ("clock_gettime", (~1 << 3 | 2,), "<qq", (7, 8), lambda *_: (7, 8)),
    ("clock_gettime", (~5 << 3 | 3,), "<qq", (7, 8), lambda *_: (7, 8)),
]


@pytest.mark.parametrize(("name", "arguments", "layout", "reported", "expected"), CASES)
def test_a_clock_is_added_to_if_it_is_the_programs_own(name, arguments, layout, reported, expected) -> None:  # type: ignore[no-untyped-def]
    with worker() as one:
        book = Account(one.pid, {one.pid: TID})
        one.work()
        used = book.used()
        whole, thread = fields(used, WHOLE)["total"], fields(used, TID)["total"]
        call = (tuple(value & (1 << 64) - 1 for value in arguments) + (0,) * 6)[:6]
        result = book.add(one.pid, NUMBERS[name], call, struct.pack(layout, *reported))
        assert struct.unpack(layout, result) == expected(whole, thread)
        book.close()


def test_times_and_usage_are_added_to_and_children_are_not() -> None:
    with worker() as one:
        book = Account(one.pid, {one.pid: TID})
        one.work()
        whole = fields(book.used(), WHOLE)
        times = struct.unpack("<4q", book.add(one.pid, NUMBERS["times"], (0,) * 6, struct.pack("<4q", 1, 2, 3, 4)))
        assert times == (1 + whole["user"] // 10**7, 2 + whole["system"] // 10**7, 3, 4)
        usage = struct.pack("<18q", *range(18))
        for who, changes in ((0, True), (1, True), (-1, False)):
            after = book.add(one.pid, NUMBERS["getrusage"], (who & (1 << 64) - 1, 0, 0, 0, 0, 0), usage)
            assert (after != usage) == changes
            if who == 0:
                found = struct.unpack("<18q", after)
                assert found[0] * 1_000_000 + found[1] == 1 + whole["user"] // 1000
                assert found[4] == whole["peak"]
                assert found[8] == 8 + whole["minor"]
        book.close()


def test_a_process_that_has_ended_adds_nothing() -> None:
    with worker() as one:
        book = Account(one.pid, {one.pid: TID})
        one.process.kill()
        one.process.wait()
        assert book.used() == []
        kernels = struct.pack("<qq", 3, 4)
        assert book.add(one.pid, NUMBERS["clock_gettime"], (2, 0, 0, 0, 0, 0), kernels) == kernels
        book.close()


@pytest.mark.parametrize("received", [None, {}, [[1]], [[0, *range(7)]], [[0, *([-1] * 8)]], [["0", *range(8)]], [[1 << 40, *range(8)]]])
def test_nonsense_of_another_node_is_an_error(received: object) -> None:
    with pytest.raises(ValueError, match="makes no sense"):
        account.check(received)


def test_a_cpu_limit_away_is_the_remainder_at_home() -> None:
    with worker() as one:
        one.work()  # it computes no more after this: what home has left and what it has used are of the same moment
        assert account.limit_left(one.pid) is None
        resource.prlimit(one.pid, resource.RLIMIT_CPU, (100, resource.RLIM_INFINITY))
        left = account.limit_left(one.pid)
        assert left is not None
        assert 99e9 < left[0] <= 100e9
        assert left[1] == -1
        assert account.limit_guest(one.pid, left, 40_000_000_000)
        soft, hard = resource.prlimit(one.pid, resource.RLIMIT_CPU)
        assert (soft, hard) == (60, resource.RLIM_INFINITY)
        assert account.limit_guest(one.pid, [0, 0], 1)
        assert resource.prlimit(one.pid, resource.RLIMIT_CPU) == (1, 1)
        assert not account.limit_guest(one.pid, None, 0)
        for nonsense in ([1], [1, -2], "none", [1 << 63, 1]):
            with pytest.raises(ValueError, match="makes no sense"):
                account.limit_guest(one.pid, nonsense, 0)
    assert account.limit_left(1 << 22) is None


def test_reading_takes_no_time_worth_mentioning() -> None:
    book = Account(os.getpid(), {os.getpid(): TID})
    begun = time.perf_counter()
    for _ in range(1000):
        book.add(os.getpid(), NUMBERS["clock_gettime"], (2, 0, 0, 0, 0, 0), bytes(16))
    assert time.perf_counter() - begun < 1.0
    book.close()
