"""A guest that arrives or leaves has a processor before the other guests: its process stands still for it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from node.cgroups import BASE, FIRST_WEIGHT, FULL_WEIGHT, hierarchies
from tests.faults import stops
from tests.faults.running import HOME, Running
from tests.faults.stops import Stop
from tests.moves.cluster import Cluster

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def stoppable() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*stops.ENVIRONMENT)
        cluster = Cluster(2)
        try:
            stops.prepare(cluster)
            for name in cluster.names:
                cluster.lab.node(name).stop_mosd(signal.SIGKILL)
                cluster.lab.node(name).start_mosd()
            yield cluster
        finally:
            cluster.down()


def weight(process: Running) -> tuple[str, str] | None:
    """Which file tells the weight of its guest on n2, and what."""
    root = process.cluster.place("n2").root
    group = f"{BASE}/{HOME}-{process.pid}"
    paths = [root / str(point).lstrip("/") / group / name for point in set(hierarchies().values()) for name in FULL_WEIGHT]
    return next(((path.name, path.read_text().strip()) for path in paths if path.exists()), None)


def weight_at(process: Running, target: str, node: str, step: str) -> tuple[str, str] | None:
    """While its move there stands at that step."""
    with Stop(process.cluster, node, step) as stop:
        waiting = process.cluster.home.popen(["migrate", str(process.pid), target], "", stdout=-1, stderr=-1)
        stop.wait(lambda: None if waiting.poll() is None else waiting.communicate())
        found = weight(process)
        stop.go_on()
        _, said = waiting.communicate(timeout=60)
        assert waiting.returncode == 0, said
    return found


def test_who_arrives_or_leaves_comes_first_and_who_is_there_does_not(stoppable: Cluster) -> None:
    with Running(stoppable, "kinds", "beats 8 20") as process:
        arriving = weight_at(process, "n2", "n2", "arrival: vessel")
        there = weight(process)
        if there is None:
            pytest.skip("no cpu controller in the nodes")
        leaving = weight_at(process, "home", HOME, "home: refill")
        assert (arriving, there, leaving) == tuple((there[0], weights[there[0]]) for weights in (FIRST_WEIGHT, FULL_WEIGHT, FIRST_WEIGHT))
        (process.directory / "enough").touch()
        assert process.end().endswith("status 0\n")
