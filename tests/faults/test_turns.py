"""A guest that arrives or leaves has a processor before the other guests: its process stands still for it."""

from __future__ import annotations

import pytest

from node.guests.cgroups import BASE, FIRST_WEIGHT, FULL_WEIGHT, hierarchies
from tests.faults.running import HOME, Running
from tests.faults.stops import Stop
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(120)


def weight(process: Running) -> tuple[str, str] | None:
    """Returns the name and content of the file with the weight of its guest on n2."""
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


def test_arriving_and_leaving_guests_have_full_weight_and_others_do_not(stoppable: Cluster) -> None:
    with Running(stoppable, "kinds", "beats 8 20") as process:
        arriving = weight_at(process, "n2", "n2", "arrival: vessel")
        if arriving is None:
            pytest.skip("no cpu controller in the nodes")
        file, _ = arriving
        until("it is one of them", lambda: weight(process) == (file, FULL_WEIGHT[file]))
        leaving = weight_at(process, "home", HOME, "home: restored")
        assert arriving == leaving == (file, FIRST_WEIGHT[file])
        (process.directory / "enough").touch()
        assert process.end().endswith("status 0\n")


def guests(cluster: Cluster) -> set[int]:
    """Returns the guests on n2, by their pids at home."""
    return {one["pid"] for one in cluster.guests("n2")}


WORKS = "until [ -e enough ]; do sleep 0.05; done"
FAMILY = f"until [ -e go ]; do sleep 0.05; done; (touch born; {WORKS}) & {WORKS}; wait"


def test_children_that_stay_do_not_come_first_for_good(stoppable: Cluster) -> None:
    """They are in the group of the one that has left."""
    with Running(stoppable, "kinds", "", command=f"sh -c '{FAMILY}'") as process:
        process.moved("n2")
        (process.directory / "go").touch()
        until("it has a child that stays", (process.directory / "born").exists)
        process.moved(HOME)
        until("it has left", lambda: process.pid not in guests(stoppable))
        until("its child does not come first", lambda: (weight(process) or ("", ""))[1] not in FIRST_WEIGHT.values())
        assert guests(stoppable)
        (process.directory / "enough").touch()
        assert process.end().endswith("status 0\n")
