"""Marks of memory that are no pages go along: guards, and that all is locked that is mapped later."""

from __future__ import annotations

import pytest

from kernel_helpers.pages.pages import knows_guards
from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(120)
needs_guards = pytest.mark.skipif(not knows_guards(), reason="this kernel knows no guards (Linux 6.13)")


@needs_guards
@pytest.mark.parametrize(("size", "memory"), [(1, ""), (24, "precopy"), (24, "postcopy")])
def test_guards_are_where_they_were_and_nowhere_else(cluster: Cluster, size: int, memory: str) -> None:
    """Those that were there before it left, and those that are made and taken away where it is."""
    with Running(cluster, "guarded", f"{size} 3") as one:
        one.works()
        for target in ("n2", "n3", HOME, "n2", HOME):
            one.moved(target, memory)
            one.works()
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
def test_what_is_mapped_later_is_locked(cluster: Cluster, sets: str) -> None:
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
