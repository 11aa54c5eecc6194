"""Who takes memory that follows a process, and who sees to it that all of it comes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deputy.pledge import Pledge
from engine import postcopy, precopy
from engine.layout import Span
from kernel_helpers import inject
from tests.engine.test_precopy import BIG, process
from wire.waking import ready

pytestmark = [pytest.mark.timeout(60), pytest.mark.skipif(os.geteuid() != 0, reason="needs ptrace of any process")]


@contextmanager
def watched() -> Iterator[tuple[int, int, list[Span]]]:
    """A process that runs, its userfaultfd, and areas of it."""
    with process(BIG) as big:
        areas = [(area.start, area.end) for area in precopy.areas_of(big.pid)]
        frozen = inject.seize(big.pid)
        try:
            userfaultfd = postcopy.userfaultfd(frozen)
        finally:
            frozen.detach()
        yield big.pid, userfaultfd, areas


def test_a_taker_may_be_closed_while_it_is_looked_after() -> None:
    with watched() as (pid, userfaultfd, areas):
        taker, over = postcopy.Taker(pid, userfaultfd), threading.Event()
        taker.guard(areas)
        taker.start(60.0, over.set)
        taker.close()
        assert over.wait(10)
        assert (taker.is_over, taker.left, taker.failure) == (True, 0, "")
        taker.close()


@pytest.mark.parametrize("follows", [False, True])
def test_a_deputy_that_dies_takes_with_it_only_a_process_that_lacks_memory(follows: bool) -> None:
    with watched() as (pid, userfaultfd, areas):
        pledge = Pledge(pid, userfaultfd, areas, may_follow=True)
        keeper = pledge._keeper
        assert keeper is not None
        assert keeper.stdin is not None
        if follows:
            pledge._arm()
        keeper.stdin.close()  # as the end of the deputy does
        assert keeper.wait(10) == 0
        with os.fdopen(os.pidfd_open(pid)) as handle:
            assert bool(ready([handle.fileno()], 10.0 if follows else 0.5)) is follows
        assert keeper.stdout is not None
        keeper.stdout.close()
        pledge._keeper = None
        pledge.forgo()
