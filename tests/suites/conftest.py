"""A lab for other people's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.moves.cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.down()
