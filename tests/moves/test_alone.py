"""Memory that is mapped shared, and that one process alone has, goes along with it and stays one memory."""

from __future__ import annotations

import re

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("kind", ["anonymous", "memfd", "file"])
def test_memory_mapped_twice_stays_one_memory(cluster: Cluster, kind: str) -> None:
    """Out, on, home, with holes and pages that no page table has; at its end it forks, which takes it home, and shares with the child."""
    with Running(cluster, "alone", f"{kind} 60 5") as one:
        one.works()
        for target in ("n2", "n3", HOME, "n2", "n3"):
            one.moved(target)
            one.works()
        (one.directory / "end").touch()
        assert one.end() == "it is all one memory\nstatus 0\n"


def test_memory_mapped_away_comes_home(cluster: Cluster) -> None:
    with Running(cluster, "alone", "late 60 6") as one:
        one.works()
        one.moved("n2")
        (one.directory / "go").touch()
        one.works()
        until("it has it", lambda: (one.directory / "lines").read_text().split()[-1] != "waits")
        assert one.where() == "n2"
        for target in ("n3", HOME, "n2", HOME):
            one.moved(target)
            one.works()
        (one.directory / "end").touch()
        assert one.end() == "it is all one memory\nstatus 0\n"


def test_images_of_criu_do_not_take_it_and_say_so(cluster: Cluster) -> None:
    with Running(cluster, "alone", "memfd 60 7") as one:
        one.works()
        assert "has memory mapped shared" in cluster.home.run("migrate", str(one.pid), "n2", "--engine", "criu").stderr
        one.works()
        (one.directory / "end").touch()
        assert one.end() == "it is all one memory\nstatus 0\n"


def test_room_of_the_node_that_it_leaves_is_given_back(cluster: Cluster) -> None:
    """The object at home holds nothing while it is away."""
    with Running(cluster, "alone", "anonymous 2000 8") as one:
        one.works()
        one.moved("n2")
        until("home has given it up", lambda: _resident(cluster, one.pid) == 0)
        one.moved(HOME)
        one.works()
        (one.directory / "end").touch()
        assert one.end() == "it is all one memory\nstatus 0\n"


def _resident(cluster: Cluster, pid: int) -> int:
    """KiB that home has of a process's anonymous shared memory, which is mapped there."""
    smaps = (cluster.home.root / "proc" / str(pid) / "smaps").read_text()
    found = [int(size) for size in re.findall(r"/dev/zero \(deleted\)\n(?:[A-Z].*\n)*?Rss: +(\d+) kB", smaps)]
    assert found
    return sum(found)
