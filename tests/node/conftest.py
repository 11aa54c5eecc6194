"""Clusters of nodes for tests of the node daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.cluster.keys.pki import KeyStore
from tests.node.nodes import Cluster

if os.geteuid() != 0:
    collect_ignore_glob = ["*/test_*.py"]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes, nothing balanced."""
    tmp_path.chmod(0o755)
    cluster = Cluster(tmp_path, 2)
    yield cluster
    cluster.down()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes, nothing balanced."""
    tmp_path.chmod(0o755)
    cluster = Cluster(tmp_path, 3)
    yield cluster
    cluster.down()


@pytest.fixture
def first(tmp_path: Path) -> KeyStore:
    """The keys of n1, which has made a cluster."""
    keys = KeyStore(tmp_path / "first")
    keys.init("test", "n1")
    return keys
