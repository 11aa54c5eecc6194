"""Clusters to attack."""

from tests.node.conftest import new_pair, pair, three

__all__ = ["new_pair", "pair", "three"]
