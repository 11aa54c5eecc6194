"""Labs in which things break: each test that breaks a node or a daemon for good has its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.moves.cluster import Cluster

LINK_TIMEOUT = 8
"""Seconds until a silent peer counts as dead. Above the five that a link may be cut, and short, since tests wait for it."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(configuration=f"link_timeout = {LINK_TIMEOUT}\n")
    yield cluster
    cluster.down()
