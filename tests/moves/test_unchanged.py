"""Calls that ask for nothing new, and children that are reaped by the kernel, do not need a process at home."""

from __future__ import annotations

import pytest

from tests.faults.running import Running
from tests.moves.cluster import Cluster

pytestmark = pytest.mark.timeout(120)


def stays(cluster: Cluster, name: str, user: str = "") -> None:
    """It goes on away, and ends as it should."""
    with Running(cluster, name, "", user=user) as program:
        program.works(30)
        program.moved("n2")
        for _ in range(3):
            program.works(30)
        assert program.where() == "n2"
        (program.directory / "enough").touch()
        assert program.end() == "status 0\n"


@pytest.mark.parametrize("user", ["", "farhome-a"])
def test_ids_that_it_has_already_and_policies_of_memory(cluster: Cluster, user: str) -> None:
    stays(cluster, "unchanged", user)


def test_children_without_a_waiting_parent(cluster: Cluster) -> None:
    stays(cluster, "reaps")
