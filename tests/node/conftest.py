"""Clusters of nodes for tests of the node daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.cluster.keys.pki import KeyStore
from node.guests import cgroups
from tests.groups import own_points
from tests.node.nodes import Cluster

if os.geteuid() != 0:
    collect_ignore_glob = ["*/test_*.py"]


@pytest.fixture
def new_pair(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes, nothing balanced."""
    tmp_path.chmod(0o755)
    cluster = Cluster(tmp_path, 2)
    yield cluster
    cluster.down()


@pytest.fixture
def pair(new_pair: Cluster) -> Cluster:
    """The same; files whose tests leave all as it was have `kept_pair` in its place."""
    return new_pair


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes, nothing balanced."""
    tmp_path.chmod(0o755)
    cluster = Cluster(tmp_path, 3)
    yield cluster
    cluster.down()


@pytest.fixture
def own_groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Path]]:
    """Makes nodes of this process put their guests into groups that no other test's nodes bound; yields these, by controller."""
    with own_points() as points:
        monkeypatch.setattr(cgroups, "hierarchies", lambda: points)
        yield points


class Keeper:
    """Holds one cluster of so many nodes for the tests of a file, and makes another after a test that failed."""

    def __init__(self, factory: pytest.TempPathFactory, count: int) -> None:
        self._factory, self._count = factory, count
        self._held: Cluster | None = None

    def lend(self, session: pytest.Session) -> Iterator[Cluster]:
        if self._held is None:
            base = self._factory.mktemp("nodes")
            base.chmod(0o755)
            self._held = Cluster(base, self._count)
        failed = session.testsfailed
        yield self._held
        if session.testsfailed > failed:
            self.drop()
        else:
            self._held.clear()

    def drop(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.down()


@pytest.fixture(scope="module")
def keepers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Keeper]]:
    made = {count: Keeper(tmp_path_factory, count) for count in (2, 3)}
    yield made
    for keeper in made.values():
        keeper.drop()


@pytest.fixture
def kept_pair(keepers: dict[int, Keeper], request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """As pair, but with nodes shared by the tests of a file."""
    yield from keepers[2].lend(request.session)


@pytest.fixture
def kept_three(keepers: dict[int, Keeper], request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """As three, shared likewise."""
    yield from keepers[3].lend(request.session)


@pytest.fixture
def first(tmp_path: Path) -> KeyStore:
    """The keys of n1, which has made a cluster."""
    keys = KeyStore(tmp_path / "first")
    keys.init("test", "n1")
    return keys
