"""Descriptors, files and sockets of a program that is moved at every system call that it makes: see objects.py."""

from __future__ import annotations

import subprocess

import pytest

from tests.moves.cluster import Cluster
from tests.moves.objects import (
    NEEDED,
    OF_A_KIND,
    REFUSALS,
    SOURCES,
    built,
    move_at_every_step,
    move_once_at_each_step,
    one_of_each_kind,
    parameters,
)
from tests.moves.objects import SCENARIOS as ALL

HERE = ("objects_descriptors", "objects_files", "objects_sockets")


@pytest.mark.parametrize("scenario", one_of_each_kind(*HERE))
def test_moved_at_every_step(cluster: Cluster, scenario: str) -> None:
    move_at_every_step(cluster, scenario)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", parameters(*HERE))
def test_moved_once_at_each_step(cluster: Cluster, scenario: str) -> None:
    move_once_at_each_step(cluster, scenario)


def test_there_are_forty_and_more() -> None:
    assert len(ALL) >= 40
    assert set(ALL) >= {*REFUSALS, *OF_A_KIND, *NEEDED}
    for source in SOURCES:
        listed = subprocess.run([built(source), "--list"], capture_output=True, text=True, check=True, timeout=10).stdout.split()
        assert sorted(listed) == sorted(name for name, where in ALL.items() if where == source)
