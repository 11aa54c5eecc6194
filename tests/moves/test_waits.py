"""Calls that wait while their process moves: they end when they would have ended at home."""

from __future__ import annotations

import itertools
import time

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(120)

EVERY = 0.1
"""Seconds between moves; far less than the programs wait."""
MOVES = 60
WAIT = 6000
"""ms: more than four moves take, of a second each on a machine that has much else to do."""


def storm(program: Running, targets: list[str]) -> int:
    """Moves it until it ends. Returns how often."""
    done = 0
    for target in itertools.islice(itertools.cycle(targets), MOVES):
        time.sleep(EVERY)
        if program.process.poll() is not None:
            return done
        shown = program.shown()
        if shown is not None:
            done += program.cluster.migrate(program.pid, program.cluster.where(shown), target).done
    raise AssertionError(f"after {MOVES} moves it waits still")


@pytest.mark.parametrize("call", ["epoll_pwait", "poll", pytest.param("epoll_wait", marks=pytest.mark.soak)])
def test_a_wait_has_one_end_however_often_it_moves(cluster: Cluster, call: str) -> None:
    with Running(cluster, "waits", f"{call} {WAIT}") as waits:
        until("it is about to wait", waits.lines)
        assert storm(waits, ["n2", "n1", "n3", "n2"]) > 3
        assert took(waits.end()) >= WAIT


@pytest.mark.parametrize(
    "call", ["semtimedop", *(pytest.param(call, marks=pytest.mark.soak) for call in ("epoll_pwait2", "rt_sigtimedwait"))]
)
def test_so_has_one_that_takes_its_time_from_memory_while_it_is_away(cluster: Cluster, call: str) -> None:
    with Running(cluster, "waits", f"{call} {WAIT}") as waits:
        until("it is about to wait", waits.lines)
        assert storm(waits, ["n2", "n3"]) > 3
        assert took(waits.end()) >= WAIT


@pytest.mark.parametrize("call", ["rt_sigtimedwait", pytest.param("epoll_wait", marks=pytest.mark.soak)])
def test_signals_that_it_blocks_do_not_make_it_longer(cluster: Cluster, call: str) -> None:
    """Each stops the process at home, and with it the call that waits there."""
    with Running(cluster, "waits", f"{call} {WAIT} blocking") as waits:
        until("it is about to wait", waits.lines)
        waits.moved("n2")
        for _ in range(MOVES):
            cluster.home.run("sh", "-c", f"kill -USR1 {waits.pid}")
            time.sleep(EVERY)
            if waits.process.poll() is not None:
                break
        assert waits.process.poll() is not None
        assert took(waits.said) >= WAIT


def test_so_has_one_that_is_stopped_for_moves_that_are_refused(cluster: Cluster) -> None:
    with Running(cluster, "waits", f"epoll_wait {WAIT} profiled") as waits:
        until("it is about to wait", waits.lines)
        assert storm(waits, ["n2", "n3"]) == 0
        assert took(waits.end()) >= WAIT


def took(said: str) -> int:
    """ms"""
    assert said.endswith("status 0\n"), said
    return int(said.split("took ", 1)[1].split(maxsplit=1)[0])


@pytest.mark.parametrize("then", [pytest.param("n1", marks=pytest.mark.soak), "n3"])
def test_a_move_waits_for_a_write_that_is_half_done(cluster: Cluster, then: str) -> None:
    with Running(cluster, "writes", "1200 0") as writes:
        for target in ("n2", then):
            before = len(writes.lines())
            until("it is about to write", lambda before=before: len(writes.lines()) > before)  # type: ignore[misc]
            time.sleep(0.3)
            writes.moved(target)
        (writes.directory / "enough").touch()
        said = writes.end()
        assert said == f"wrote {1 << 20}\n" * said.count("wrote") + "status 0\n"


@pytest.mark.soak
def test_a_write_that_is_read_bit_by_bit_is_not_cut_short_by_a_move(cluster: Cluster) -> None:
    """The thread that writes does not always wait: it runs whenever a part of it has been read."""
    with Running(cluster, "writes", "1 0 4 30") as writes:
        for target in itertools.cycle(["n2", "n3", HOME]):
            if len(writes.lines()) >= 90:
                break
            writes.moved(target)
            time.sleep(0.05)
        (writes.directory / "enough").touch()
        said = writes.end()
        assert said == f"wrote {1 << 20}\n" * said.count("wrote") + "status 0\n"
        assert said.count("wrote") >= 90


def test_a_write_is_not_cut_short_when_home_interrupts_its_stub(cluster: Cluster) -> None:
    """As soon as the process is away, its stub releases its memory, in a thread that usually waits in such a write."""
    with Running(cluster, "floods", "") as floods:
        floods.works()
        for target in ("n2", "n3"):
            floods.moved(target)
            for _ in range(3):
                floods.works()
        (floods.directory / "enough").touch()
        assert floods.end() == "cut 0\nstatus 0\n"


ON, AND_HOME = ("n2", "n3", HOME), ("n2", HOME)


def is_written_whole(cluster: Cluster, kind: str, targets: tuple[str, ...]) -> None:
    """The moves do not wait for its end: what is written stays known at home."""
    with Running(cluster, "gives", kind) as one:
        until("it is about to write", one.lines)
        time.sleep(0.2)
        for target in targets:
            one.moved(target)
        (one.directory / "enough").touch()
        assert one.end() == "wrote all, read the same\nstatus 0\n"


@pytest.mark.parametrize(
    ("kind", "targets"),
    [("write", ON), ("sendmsg", AND_HOME), *(pytest.param(kind, ON, marks=pytest.mark.soak) for kind in ("writev", "send", "sendmsg"))],
)
def test_a_write_without_a_reader_is_complete_wherever_it_moves(cluster: Cluster, kind: str, targets: tuple[str, ...]) -> None:
    is_written_whole(cluster, kind, targets)
