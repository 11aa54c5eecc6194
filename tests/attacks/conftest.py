"""Clusters to attack."""

from tests.node.conftest import pair, three

__all__ = ["pair", "three"]
