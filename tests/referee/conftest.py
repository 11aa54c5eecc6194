"""One lab for all of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.moves.cluster import Cluster
from tests.referee.compare import Court
from tests.referee.shown import Showing


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(3)
    yield cluster
    cluster.down()


@pytest.fixture(scope="package")
def court(cluster: Cluster) -> Iterator[Court]:
    court = Court(cluster)
    yield court
    court.close()


@pytest.fixture(scope="package")
def showing(cluster: Cluster) -> Showing:
    return Showing(cluster)
