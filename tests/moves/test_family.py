"""Children that are born away: where their parent is, with home's own ids, each to be moved on its own."""

from __future__ import annotations

import os

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until
from tests.moves.storm import storm
from tests.moves.workloads import BY_NAME, USER

pytestmark = pytest.mark.timeout(240)
SCALE = 2 if os.environ.get("FARHOME_LONG_TESTS") else 1
"""Amount of work of the storm's family."""


def test_children_are_born_away(cluster: Cluster) -> None:
    """No fork takes the parent home, and a child that moves does not take it along."""
    with Running(cluster, "family", "12 100 apart") as family:
        family.works()
        family.moved("n2")
        family.works(30)
        family.works(30)
        shown = family.shown()
        assert shown is not None
        assert (shown["where"], shown["moves"]) == ("n2", 1), shown
        child = until("a child is there", lambda: next((one for one in cluster.processes(family.job) if one["pid"] != family.pid), None))
        assert child["where"] == "n2"
        print(cluster.migrate(child["pid"], "n2", "n3"))
        family.works(30)
        family.moved("n3")
        family.works(30)
        family.moved(HOME)
        assert family.end(120) == cluster.home.run("sh", "-c", f"cd /tmp; {family.binary} 12 0 apart; echo status $?").stdout


@pytest.mark.parametrize("user", [pytest.param("", marks=pytest.mark.soak), USER], ids=["root", "ordinary user"])
def test_a_family_in_a_dense_storm(cluster: Cluster, user: str) -> None:
    verdict = storm(cluster, BY_NAME["family"], user=user, scale=SCALE, every=(0.02, 0.2), slack=30)
    print(verdict)
    assert not verdict.wrong, str(verdict)
