"""The lab as benches use it: fresh nodes with their daemons, commands whose failure ends the bench in one sentence."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bench.result import BenchFailed

if TYPE_CHECKING:
    from lab import Lab, Node

#: Where a node sees the clone, whatever directory it lies in.
INSIDE = "/opt/farhome"


@contextlib.contextmanager
def bench_lab(count: int, **options: Any) -> Iterator[Lab]:
    """Give a lab of its own with a daemon in each node. Errors: BenchFailed if it does not come up."""
    from lab import Lab  # a bench that needs no nodes needs no lab

    if os.geteuid() != 0:
        raise BenchFailed("virtual nodes need root")
    with Lab.up(count, name=f"bench{os.getpid()}", **options) as lab:
        yield lab


def checked(node: Node, command: Sequence[str], timeout: float = 60) -> str:
    """Return what a command wrote in a node. Errors: BenchFailed if it failed or took more than `timeout` seconds."""
    try:
        done = node.run(list(command), timeout=timeout, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except subprocess.TimeoutExpired as error:
        raise BenchFailed(f"{' '.join(command)} took more than {timeout:.0f} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word of why"])[-1]
        raise BenchFailed(f"{' '.join(command)} ended with {done.returncode}: {last}")
    return str(done.stdout)


def wait_until(condition: Callable[[], bool], what: str, timeout: float = 30) -> None:
    """Wait for a condition, looked at a hundred times a second. Errors: BenchFailed that says what did not come."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise BenchFailed(f"{what} did not come within {timeout:.0f} s")
        time.sleep(0.01)
