"""A tracer is killed at each step of a process's injected calls, and a mending process puts the process right afterwards."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deputy.stub.mending import mend
from engine.context.crowd import call_in
from engine.signals.pending import put, take
from kernel_helpers.process import pause_loop, seizing
from kernel_helpers.process.injection.beside import beside
from kernel_helpers.process.journal import Journal, children, descriptors
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS
from kernel_helpers.process.thread import Thread
from node.moves.mending import Mender

pytestmark = pytest.mark.timeout(60)

PROGRAM = """
import signal, sys, threading, time
heard = []
for wanted in signal.SIGUSR1, signal.SIGUSR2:
    signal.signal(wanted, lambda number, frame: heard.append(number))
def work():
    while True:
        held = [n * 1.5 for n in range(2000)]
        assert sum(held) == 1.5 * 1999 * 1000
        time.sleep(0.001)
        rounds[threading.get_ident()] = rounds.get(threading.get_ident(), 0) + 1
rounds = {}
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
print("there", flush=True)
for line in sys.stdin:
    before, end = dict(rounds), time.monotonic() + 20
    while len(gone_on := [ident for ident in rounds if rounds[ident] > before.get(ident, 0)]) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    print(len(heard), len(gone_on), flush=True)
"""


class Program:
    """It computes in three threads, and reports their progress."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        try:
            assert self._line() == "there"
            assert self.signals_heard() == 0
            self._blocked, self._open = self.blocked(), descriptors(self.pid)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def signals_heard(self) -> int:
        """All its threads having gone on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        heard, gone_on = self._line().split()
        assert gone_on == "3"
        return int(heard)

    def blocked(self) -> list[str]:
        tasks = sorted(Path(f"/proc/{self.pid}/task").iterdir())
        return [
            line
            for task in tasks
            for line in (task / "status").read_text().splitlines()
            if line.startswith(("SigBlk", "TracerPid", "Cpus_allowed:"))
        ]

    def is_as_it_was(self) -> bool:
        return self.process.poll() is None and (self.blocked(), descriptors(self.pid)) == (self._blocked, self._open)


@pytest.fixture
def program() -> Iterator[Program]:
    program = Program()
    yield program
    program.end()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(pid: int, journal: Path, work: Callable[[Frozen], object]) -> None:
    """A tracer that does this, and is killed."""
    tracer = os.fork()
    if not tracer:
        try:
            frozen = seizing.seize(pid)
            frozen.keep(Journal(journal))
            work(frozen)
            die()
        finally:
            os._exit(1)
    assert os.waitpid(tracer, 0)[1] == signal.SIGKILL


def all_call(frozen: Frozen) -> None:
    for thread in frozen.threads.values():
        assert thread.call(SYS.gettid) > 0


def block(frozen: Frozen) -> None:
    for thread in frozen.threads.values():
        thread.block_signals()


def one_calls(frozen: Frozen) -> None:
    list(frozen.threads.values())[-1].call(SYS.gettid)


def use_memory(frozen: Frozen) -> None:
    scratch = frozen.scratch(2048)
    frozen.write(scratch.__enter__(), b"\xaa" * 2048)
    frozen.call(SYS.getpid)
    die()


def dies_in(step: str) -> Callable[[Frozen], None]:
    """Returns a function that is killed within that step of letting go."""

    def work(frozen: Frozen) -> None:
        all_call(frozen)
        original = getattr(Thread, step)
        reached = []

        def last(thread: Thread, *arguments: object) -> None:
            original(thread, *arguments)
            reached.append(thread)
            if len(reached) == 2:
                die()

        setattr(Thread, step, last)
        frozen.detach()

    return work


def killed_soon() -> None:
    if not os.fork():
        time.sleep(0.3)
        os.kill(os.getppid(), signal.SIGKILL)
        os._exit(0)


def many_calls(frozen: Frozen, wanted: list[tuple[int, ...]]) -> None:
    with frozen.scratch(4096) as room:
        assert frozen.leader.calls(wanted, room) == [os.getppid()] * len(wanted)
        die()


def bound(frozen: Frozen) -> None:
    with beside(frozen.pid):
        frozen.call(SYS.getpid)
        die()


def open_things(frozen: Frozen) -> None:
    with frozen.scratch(64) as room:
        frozen.call(SYS.pipe2, room, 0)
        frozen.leader.call(SYS.epoll_create1, 0)


def call_at_once(frozen: Frozen, number: int) -> None:
    """All make calls without a stop in between, one of them that one last."""
    threads = list(frozen.threads.values())
    call_in(frozen, threads, lambda index, _: [(SYS.getppid,), (SYS.getpid,) if index else (number,)], 2)
    die()


WORK: dict[str, Callable[[Frozen], object]] = {
    "it has only stopped": lambda frozen: None,
    "signals are blocked": block,
    "one has made a call": one_calls,
    "all have made calls": all_call,
    "in a call that waits": lambda frozen: (killed_soon(), frozen.call(SYS.pause)),
    "many calls have been made": lambda frozen: many_calls(frozen, [(SYS.getppid,)] * 20),
    "in the midst of many calls": lambda frozen: (killed_soon(), many_calls(frozen, [(SYS.getppid,), (SYS.pause,), (SYS.getppid,)])),
    "all have called at once": lambda frozen: call_at_once(frozen, SYS.getppid),
    "in the midst of calls at once": lambda frozen: (killed_soon(), call_at_once(frozen, SYS.pause)),
    "memory is in use": use_memory,
    "descriptors are open": open_things,
    "it is bound to a processor": bound,
    "parked again": lambda frozen: (all_call(frozen), frozen.park()),
    "parked, and one more call": lambda frozen: (all_call(frozen), frozen.park(), one_calls(frozen)),
    "out of the call": dies_in("leave_call"),
    "its mask is back": dies_in("_write_mask"),
    "its section is back": dies_in("_write_section"),
    "its registers are back": dies_in("_write_registers"),
    "one is let go": dies_in("detach"),
}


@pytest.mark.parametrize("when", WORK)
def test_the_process_goes_on_as_it_was(when: str, program: Program, tmp_path: Path) -> None:
    journal = tmp_path / "1.journal"
    killed(program.pid, journal, WORK[when])
    assert program.process.poll() is None
    mend(journal)
    assert program.is_as_it_was()
    assert program.signals_heard() == 0
    assert os.listdir(tmp_path) == []
    os.kill(program.pid, signal.SIGUSR1)
    assert program.signals_heard() == 1


@pytest.mark.parametrize("again", [False, True])
def test_signals_that_were_taken_come_back(again: bool, program: Program, tmp_path: Path) -> None:
    journal = tmp_path / "1.journal"

    def work(frozen: Frozen) -> None:
        os.kill(program.pid, signal.SIGUSR1)
        taken = take(frozen)
        assert [info[0] for _, info in taken] == [signal.SIGUSR1]
        if again:
            put(frozen, taken)
        frozen.park()

    killed(program.pid, journal, work)
    mend(journal)
    assert program.is_as_it_was()
    assert program.signals_heard() == 1


def test_memory_of_one_that_went_on_is_left_alone(program: Program, tmp_path: Path) -> None:
    """It was parked: no call used it any more."""
    journal, places = tmp_path / "1.journal", tmp_path / "place"

    def work(frozen: Frozen) -> None:
        with frozen.scratch(4096) as address:
            frozen.write(address, b"\xaa" * 4096)
            frozen.call(SYS.getpid)
        places.write_text(str(address))
        frozen.park()

    killed(program.pid, journal, work)
    place = int(places.read_text())
    with open(f"/proc/{program.pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(place)
        memory.write(b"\xbb" * 16)
        mend(journal)
        memory.seek(place)
        assert memory.read(16) == b"\xbb" * 16
    assert program.is_as_it_was()


def test_a_signal_that_a_thread_was_stopped_with_comes_back(program: Program, tmp_path: Path) -> None:
    journal = tmp_path / "1.journal"

    def work(frozen: Frozen) -> None:
        info = int(signal.SIGUSR1).to_bytes(4, "little").ljust(128, b"\0")
        frozen.leader.in_hand = [info]
        with frozen.scratch(64):
            frozen.call(SYS.getpid)

    killed(program.pid, journal, work)
    mend(journal)
    assert program.is_as_it_was()
    assert program.signals_heard() == 1


def test_a_copy_that_was_being_made_is_ended(program: Program, tmp_path: Path) -> None:
    journal = tmp_path / "1.journal"
    killed(program.pid, journal, lambda frozen: frozen.call(SYS.clone, 0, 0, 0, 0, 0))
    (copy,) = children(program.pid)
    mend(journal)
    assert program.is_as_it_was()
    assert not Path(f"/proc/{copy}").exists()
    assert program.signals_heard() == 0


def test_the_mending_process_may_be_killed_too(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = tmp_path / "1.journal"
    killed(program.pid, journal, lambda frozen: (os.kill(program.pid, signal.SIGUSR1), take(frozen)))
    os.kill(program.pid, signal.SIGUSR2)  # waits beside what was taken
    for step in ("deputy.stub.mending._end_copies", "deputy.stub.mending.put_first", "engine.signals.pending.put"):
        mender = os.fork()
        if not mender:
            monkeypatch.setattr(step, lambda *arguments: (all_call(arguments[0]), die()))
            mend(journal)
            os._exit(1)
        assert os.waitpid(mender, 0)[1] == signal.SIGKILL
    mend(journal)
    assert program.is_as_it_was()
    assert program.signals_heard() == 2


def test_a_journal_of_a_process_that_has_ended_is_taken_away(program: Program, tmp_path: Path) -> None:
    journal = tmp_path / "1.journal"
    killed(program.pid, journal, all_call)
    program.process.kill()
    program.process.wait()
    mend(journal)
    assert os.listdir(tmp_path) == []
    journal.write_bytes(b"nonsense")
    mend(journal)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("starts", [lambda mender: mender.start(7), lambda mender: mender.start_all(but=set())], ids=["one", "all"])
def test_a_journal_that_was_not_written_to_its_end_is_taken_away(starts: Callable[[Mender], None], tmp_path: Path) -> None:
    """Its writer was killed before the process had made any call, or the whole one beside it says what it was."""

    async def recall(pid: int, node: str) -> None:
        raise AssertionError(f"{pid} runs on no {node}")

    async def mended() -> None:
        (tmp_path / ".7.journal").write_bytes(b"half")
        starts(Mender(tmp_path, recall))
        assert os.listdir(tmp_path) == []

    asyncio.run(mended())


def test_the_pause_loop_is_made_once_and_is_no_part_of_the_kernel_s_code(program: Program) -> None:
    with seizing.seize(program.pid) as frozen:
        address = pause_loop.make(frozen)
        assert address
        assert pause_loop.make(frozen) == address
        assert frozen.read(address, len(pause_loop.CODE)) == pause_loop.CODE
        own = next(line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[vdso]"))
        start, end = (int(bound, 16) for bound in own.split()[0].split("-"))
        with open("/proc/self/mem", "rb") as memory:
            memory.seek(start)
            ours = memory.read(end - start)
        assert pause_loop.without(frozen.read(address + 64 - len(ours), len(ours))) == pause_loop.without(ours)


def test_many_calls_are_made_in_order_and_return_their_results(program: Program, tmp_path: Path) -> None:
    with seizing.seize(program.pid) as frozen:
        frozen.keep(Journal(tmp_path / "1.journal"))
        with frozen.scratch(8192) as room:
            wanted: list[tuple[int, ...]] = [
                (SYS.getpid,), (SYS.close, -1), (SYS.dup3, 0, 50, 0), (SYS.dup3, 0, 50, 1 << 30), (SYS.close, 50)
            ]  # fmt: skip
            for thread in frozen.threads.values():
                assert thread.calls(wanted, room) == [program.pid, -errno.EBADF, 50, -errno.EINVAL, 0]
                assert thread.call(SYS.gettid) == thread.tid
                assert thread.calls([(SYS.gettid,)] * 60, room) == [thread.tid] * 60
    assert program.is_as_it_was()
    assert program.signals_heard() == 0


def test_many_calls_of_which_one_takes_too_long_leave_it_stopped(program: Program, tmp_path: Path) -> None:
    with seizing.seize(program.pid) as frozen:
        frozen.keep(Journal(tmp_path / "1.journal"))
        frozen.leader.call_timeout = 0.3
        with frozen.scratch(4096) as room, pytest.raises(TimeoutError):
            frozen.leader.calls([(SYS.getpid,), (SYS.pause,)], room)
    assert program.is_as_it_was()
    assert program.signals_heard() == 0


def test_a_stop_signal_that_comes_before_many_calls_is_not_lost(program: Program, tmp_path: Path) -> None:
    with seizing.seize(program.pid) as frozen:
        frozen.keep(Journal(tmp_path / "1.journal"))
        os.kill(program.pid, signal.SIGSTOP)
        with frozen.scratch(4096) as room:
            assert frozen.leader.calls([(SYS.getpid,)] * 9, room) == [program.pid] * 9
    end = time.monotonic() + 10
    while Path(f"/proc/{program.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(program.pid, signal.SIGCONT)
    assert program.signals_heard() == 0


def test_a_process_that_is_let_go_leaves_no_journal(program: Program, tmp_path: Path) -> None:
    with seizing.seize(program.pid) as frozen:
        frozen.keep(Journal(tmp_path / "1.journal"))
        all_call(frozen)
        assert os.listdir(tmp_path) == ["1.journal"]
    assert os.listdir(tmp_path) == []
    assert program.signals_heard() == 0
