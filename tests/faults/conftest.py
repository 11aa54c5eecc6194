"""Labs in which things break: each test that breaks a node or a daemon for good has its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults import stops
from tests.moves.cluster import Cluster

LINK_TIMEOUT = 8
"""Seconds until a silent peer counts as dead. Above the five that a link may be cut, and short, since tests wait for it."""


def a_cluster(bandwidth: str | None) -> Cluster:
    return Cluster(configuration=f"link_timeout = {LINK_TIMEOUT}\n", bandwidth=bandwidth)


@pytest.fixture(scope="module")
def bandwidth() -> str | None:
    """Bandwidth of each link; None: unlimited."""
    return None


@pytest.fixture
def breakable(bandwidth: str | None) -> Iterator[Cluster]:
    """A lab for one test alone."""
    cluster = a_cluster(bandwidth)
    yield cluster
    cluster.down()


@pytest.fixture
def cluster(breakable: Cluster) -> Cluster:
    """The same; files whose tests leave all nodes alive have `kept` in its place."""
    return breakable


class Keeper:
    """Holds one cluster for the tests of a file, and makes another after a test that failed."""

    def __init__(self, bandwidth: str | None) -> None:
        self._bandwidth = bandwidth
        self._held: Cluster | None = None

    def get(self) -> Cluster:
        self._held = self._held or a_cluster(self._bandwidth)
        return self._held

    def drop(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.down()


@pytest.fixture(scope="module")
def keeper_of_whole(bandwidth: str | None) -> Iterator[Keeper]:
    keeper = Keeper(bandwidth)
    yield keeper
    keeper.drop()


@pytest.fixture
def kept(keeper_of_whole: Keeper, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster that tests before this one of its file have had, too."""
    failed = request.session.testsfailed
    yield keeper_of_whole.get()
    if request.session.testsfailed > failed:
        keeper_of_whole.drop()


@pytest.fixture(scope="module")
def stoppable(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster whose moves can be stopped, and whose nodes wait long for one another. request: the number of nodes, 2 without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*stops.ENVIRONMENT)
        cluster = Cluster(getattr(request, "param", 2), configuration="link_timeout = 60\n")
        try:
            stops.prepare(cluster)
            yield cluster
        finally:
            cluster.down()
