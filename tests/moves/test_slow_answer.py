"""A call that home has made is answered, not made again, however late home comes to answer it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernel_helpers.process.thread import Thread
from tests.faults.running import Running
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("target", ["n1", "n3"], ids=["home", "hop"])
def test_a_call_that_ended_just_before_the_freeze_is_not_made_twice(cluster: Cluster, target: str) -> None:
    with Running(cluster, "copier", "", mosrun="mkfifo feed && mosrun -L") as copier, feed(copier) as descriptor:
        copier.moved("n2")
        os.write(descriptor, b"first\n")
        until("the first line is there", lambda: copier.lines() == ["first"])
        until("it waits for the second", lambda: in_read(copier))
        with ThreadPoolExecutor(1) as pool, held(finisher(copier)):
            os.write(descriptor, b"second\n")
            until("the read has ended at home", lambda: not in_read(copier))
            moving = pool.submit(copier.move, target)
            with pytest.raises(TimeoutError):
                until("the second line", lambda: "second" in copier.lines(), seconds=1.5)
        assert moving.result(60).done, moving.result()
        os.write(descriptor, b"third\n")
        until("the third line is there", lambda: "third" in copier.lines())
        assert copier.lines() == ["first", "second", "third"]


@contextmanager
def feed(copier: Running) -> Iterator[int]:
    path = copier.directory / "feed"
    until("the fifo is there", path.exists)
    descriptor = os.open(path, os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def in_read(copier: Running) -> bool:
    """Whether the stub waits in read(2)."""
    return Path(f"/proc/{copier.stub()}/syscall").read_text().split()[0] == "0"


def finisher(copier: Running) -> tuple[int, int]:
    """The thread of the deputy that answers calls which take long: (tid, pid)."""
    status = Path(f"/proc/{copier.stub()}/status").read_text()
    tracer = int(status.split("TracerPid:", 1)[1].split()[0])
    process = int(Path(f"/proc/{tracer}/status").read_text().split("Tgid:", 1)[1].split()[0])
    for task in Path(f"/proc/{process}/task").iterdir():
        if (task / "comm").read_text().strip() == "link-finish":
            return int(task.name), process
    raise LookupError("link-finish")


@contextmanager
def held(thread: tuple[int, int]) -> Iterator[None]:
    """The thread stands still meanwhile."""
    seized = Thread.seize(*thread, 0, 5.0)
    try:
        yield
    finally:
        seized.restore()
        seized.detach()
