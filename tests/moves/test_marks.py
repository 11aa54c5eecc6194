"""Marks of memory that are no pages go along: guards, and that all is locked that is mapped later."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from engine.context.marks import TOO_LITTLE, lockable
from kernel_helpers.pages.pages import knows_guards
from kernel_helpers.process.syscalls import U64
from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(120)
needs_guards = pytest.mark.skipif(not knows_guards(), reason="this kernel knows no guards (Linux 6.13)")


@needs_guards
@pytest.mark.parametrize(("size", "memory"), [(1, ""), (24, "precopy"), (24, "postcopy")])
def test_guards_are_where_they_were_and_nowhere_else(cluster: Cluster, size: int, memory: str) -> None:
    """Checks guards set before it left, and guards set and removed while it is away."""
    with Running(cluster, "guarded", f"{size} 3") as one:
        one.works()
        for target in ("n2", "n3", HOME, "n2", HOME):
            one.moved(target, memory)
            one.works()
        (one.directory / "end").touch()
        assert one.end() == "every guard is one\nstatus 0\n"


@pytest.fixture
def slow_links() -> Iterator[Cluster]:
    """Links by which memory would follow for a second."""
    cluster = Cluster(bandwidth="200mbit")
    yield cluster
    cluster.down()


@needs_guards
def test_memory_discarded_by_a_guard_does_not_come_back(slow_links: Cluster) -> None:
    """Away, a guard waits for the memory; at home the program runs by itself and no guard reports."""
    with Running(slow_links, "guarded", "24 3") as one:
        one.works()
        one.moved("n2", "postcopy")
        one.works()
        one.moved(HOME, "postcopy")
        (one.directory / "throw").touch()
        one.works(150)
        (one.directory / "end").touch()
        assert one.end() == "every guard is one\nstatus 0\n"


@needs_guards
def test_guards_are_no_reason_to_come_home(cluster: Cluster) -> None:
    with Running(cluster, "peculiar", "guard 0 late") as one:
        until("it is ready", lambda: "ready" in one.said)
        one.moved("n2")
        (one.directory / "go").touch()
        until("it has guards", lambda: "set" in one.said)
        assert one.where() == "n2"
        said = cluster.home.run("migrate", str(one.pid), "n3", "--engine", "criu").stderr
        assert "it has guards in its memory" in said
        one.moved(HOME)
        assert "it has guards in its memory" in cluster.home.run("moscheck", str(one.pid)).stdout
        (one.directory / "end").touch()
        assert one.end() == "ready\nset\nstatus 0\n"


@pytest.mark.parametrize("sets", [HOME, "n2"])
def test_later_mappings_are_locked(cluster: Cluster, sets: str) -> None:
    with Running(cluster, "peculiar", "future 0 late", "farhome-a") as one:
        until("it is ready", lambda: "ready" in one.said)
        if sets != HOME:
            one.moved(sets)
        (one.directory / "go").touch()
        until("it is set", lambda: "set" in one.said)
        assert one.where() == sets
        for target in ("n3", HOME, "n2"):
            one.moved(target)
        (one.directory / "end").touch()
        assert one.end() == "ready\nset\nstatus 0\n"


def _limits_can_be_raised() -> bool:
    child = subprocess.Popen(["sleep", "60"])
    try:
        return lockable(child.pid) == U64
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("how", ["future", "locked"])
def test_a_node_that_lets_lock_less_is_not_tried(cluster: Cluster, how: str) -> None:
    """Root may lock all at home, and a guest is not root to its node's kernel."""
    if _limits_can_be_raised():
        pytest.skip("root may let guests lock any memory on this machine")
    with Running(cluster, "peculiar", f"{how} 0 late") as one:
        until("it is ready", lambda: "ready" in one.said)
        one.moved("n2")
        one.moved(HOME)
        (one.directory / "go").touch()
        until("it is set", lambda: "set" in one.said)
        said = cluster.home.run("migrate", str(one.pid), "n3").stderr
        assert said == f"migrate: process {one.pid} stays at home: {TOO_LITTLE}\n"
        assert one.where() == HOME
        (one.directory / "end").touch()
        assert one.end() == "ready\nset\nstatus 0\n"
