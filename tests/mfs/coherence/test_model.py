"""The model always has a change to make, in every state of the tree."""

from __future__ import annotations

import stat

from tests.mfs.coherence.model import DIRECTORIES, NAMES, Chance, Node, Tree


def test_a_tree_of_nothing_but_symbolic_links_can_be_changed() -> None:
    tree = Tree(1)
    for directory in DIRECTORIES:
        for name in NAMES:
            tree.directories[directory][name] = Node(stat.S_IFLNK, 0o777, b"a")
    for seed in range(20):
        change = Chance(seed, attributes=True, maps=True).change(tree, 0)
        assert change[0] == "unlink"
