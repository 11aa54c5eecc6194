"""A process reads its own state in /proc, wherever it is."""

from __future__ import annotations

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until
from tests.moves.workloads import USER

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("user", [pytest.param("", marks=pytest.mark.soak), USER], ids=["root", "ordinary user"])
def test_a_process_sees_itself_wherever_it_is(cluster: Cluster, user: str) -> None:
    sees_itself_wherever_it_is(cluster, user, "0 50")


def sees_itself_wherever_it_is(cluster: Cluster, user: str, arguments: str) -> None:
    with Running(cluster, "itself", arguments, user) as itself:
        itself.works(30)
        for target in ("n2", "n3", HOME, "n2"):
            itself.moved(target)
            itself.works(30)
            itself.works(30)
            assert itself.where() == target, "reading its own state has moved it"
        (itself.directory / "enough").touch()
        assert "status 0" in itself.end(), itself.said
    until("no file is left of it", lambda: not list((cluster.home.root / "run/farhome/proc").glob("*")))


def test_a_descriptor_of_its_own_memory_takes_a_process_home_and_keeps_it_there(cluster: Cluster) -> None:
    with Running(cluster, "mirror", "mem") as mirror:
        mirror.works()
        mirror.moved("n2")
        mirror.works()
        (mirror.directory / "read").touch()
        until("it is home", lambda: mirror.where() == HOME, seconds=30)
        shown = mirror.shown()
        assert shown is not None
        assert "/proc/self/mem" in str(shown["why"]), shown
        mirror.works()
        refused = mirror.move("n3")
        assert not refused.done
        assert "/proc/self/mem" in refused.said
        (mirror.directory / "enough").touch()
        assert "read 1 times\nstatus 0" in mirror.end()


def test_a_path_that_begins_in_proc_takes_it_home(cluster: Cluster) -> None:
    with Running(cluster, "mirror", "relative") as mirror:
        mirror.works()
        mirror.moved("n2")
        (mirror.directory / "read").touch()
        until("it has read its memory", lambda: not (mirror.directory / "read").exists(), seconds=30)
        until("it is known to be at home", lambda: mirror.where() == HOME)
        mirror.moved("n3")
        mirror.works()
        (mirror.directory / "enough").touch()
        assert "read 1 times\nstatus 0" in mirror.end()


def test_self_checks_continue_after_the_link_is_cut_and_remade(cluster: Cluster) -> None:
    """Each round takes several frames and the lowest descriptor: a descriptor that was opened twice would be found."""
    with Running(cluster, "itself", "0 1") as itself:
        itself.moved("n2")
        for _ in range(2):
            itself.works(40)
            cluster.lab.cut(HOME, "n2", 5)
            itself.works(40)
        itself.works(40)
        assert itself.where() == "n2"
        (itself.directory / "enough").touch()
        assert "status 0" in itself.end(), itself.said
