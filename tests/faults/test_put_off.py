"""Moves home that are put off when memory has come already: they are made all the same, and take no part of a call with them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.calls import writing
from tests.faults import stops
from tests.faults.running import HOME, Running
from tests.faults.stops import Stop
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*stops.ENVIRONMENT)
        cluster = Cluster()
    stops.prepare(cluster)
    yield cluster
    cluster.down()


def test_a_child_has_its_memory(cluster: Cluster) -> None:
    """Before, the move went on in the conversation that had ended when it was put off, and failed."""
    with Running(cluster, "kinds", "lends") as process, ThreadPoolExecutor(1) as pool:
        process.moved("n2")
        (process.directory / "lend").touch()
        process.works()
        until("the child is there", lambda: len(process.host_pids()) == 4)
        move = pool.submit(process.move, HOME)
        with pytest.raises(TimeoutError):
            until("the move is over", move.done, seconds=2)
        (process.directory / "back").touch()
        assert move.result(60).done, move.result()
        process.works()
        (process.directory / "enough").touch()
        assert process.end() == "all is as it was\nstatus 0\n"


LONG = 1 << 20


def test_a_write_that_is_under_way_when_memory_has_come_for_long_is_not_cut_short(cluster: Cluster) -> None:
    """Before, it was waited for from the begin of the move, however long the memory took."""
    with Running(cluster, "kinds", "writes", mosrun="mkfifo fifo && mosrun -L") as process, ThreadPoolExecutor(1) as pool:
        process.moved("n2")
        process.works()
        fifo = os.open(process.directory / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        try:
            until("it writes", lambda: writing.is_under_way(process.stub()))
            with Stop(cluster, "n2", "round") as stop:
                begun, move = time.monotonic(), pool.submit(process.move, HOME)
                stop.wait(move.done)
                until("it has taken longer than a write may", lambda: time.monotonic() > begun + writing.PATIENCE)
            with pytest.raises(TimeoutError):
                until("the write is over", lambda: not writing.is_under_way(process.stub()), seconds=0.5)
            os.set_blocking(fifo, True)
            taken = 0
            while data := os.read(fifo, 1 << 16):
                taken += len(data)
        finally:
            os.close(fifo)
        assert taken == LONG
        assert move.result(60).done, move.result()
        (process.directory / "enough").touch()
        assert process.end() == f"wrote {LONG}\nall is as it was\nstatus 0\n"
