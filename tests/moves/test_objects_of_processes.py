"""Memory, threads, signals and children of a program that is moved at every system call that it makes: see objects.py."""

from __future__ import annotations

import pytest

from tests.moves.cluster import Cluster
from tests.moves.objects import move_at_every_step, move_once_at_each_step, one_of_each_kind, parameters

HERE = ("objects_mappings", "objects_memory", "objects_process", "objects_signals", "objects_threads")


@pytest.mark.parametrize("scenario", one_of_each_kind(*HERE))
def test_moved_at_every_step(cluster: Cluster, scenario: str) -> None:
    move_at_every_step(cluster, scenario)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", parameters(*HERE))
def test_moved_once_at_each_step(cluster: Cluster, scenario: str) -> None:
    move_once_at_each_step(cluster, scenario)
