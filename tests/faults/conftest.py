"""Labs in which things break: each test that breaks a node or a daemon for good has its own."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.faults import stops
from tests.moves.cluster import Cluster

LINK_TIMEOUT = 8
"""Seconds until a silent peer counts as dead. Above the five that a link may be cut, and short, since tests wait for it."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(configuration=f"link_timeout = {LINK_TIMEOUT}\n")
    yield cluster
    cluster.down()


@pytest.fixture(scope="module")
def stoppable(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Whose moves can be stopped, and whose nodes wait long for one another. request: how many nodes, 2 without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*stops.ENVIRONMENT)
        cluster = Cluster(getattr(request, "param", 2), configuration="link_timeout = 60\n")
        try:
            stops.prepare(cluster)
            for name in cluster.names:
                cluster.lab.node(name).stop_mosd(signal.SIGKILL)
                cluster.lab.node(name).start_mosd()
            yield cluster
        finally:
            cluster.down()
