"""No room for the images of a move: nothing is lost."""

from __future__ import annotations

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster

pytestmark = pytest.mark.timeout(120)


def room(cluster: Cluster, node: str, megabytes: int) -> None:
    """Sets the size of the node's /run, which is a tmpfs and holds the images on their way."""
    done = cluster.place(node).run("mount", "-o", f"remount,size={megabytes}M", "/run")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("full", [HOME, pytest.param("n2", marks=pytest.mark.soak)], ids=["full at home", "full at the target"])
def test_disk_full_where_images_go(cluster: Cluster, full: str) -> None:
    """A program too large for the room stays where it is, or gets through in another way, and in any case goes on."""
    with Running(cluster, "counter", "lines 250 50 200") as counter:
        counter.works()
        room(cluster, full, 24)
        move = counter.move("n2")
        assert counter.where() == ("n2" if move.done else HOME)
        if not move.done:
            shown = counter.shown()
            assert shown is not None
            assert shown["why"], "mosps does not say why it could not move"
        counter.works()
        room(cluster, full, 2048)
        if not move.done:
            counter.moved("n2")
        counter.works()
        room(cluster, full, 24)
        back = counter.move(HOME)
        counter.works()
        room(cluster, full, 2048)
        if not back.done:
            counter.moved(HOME)
        counter.works()
        said = counter.end()
        assert "counted 250" in said
        assert said.endswith("status 0\n")
