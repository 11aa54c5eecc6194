"""A guest that takes all it can get is held by the bounds of its node: the node answers, another guest works on and gets home, and
nothing is left of the hostile one after it has been killed from home."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import cgroups
from tests.faults.running import HOME, Running, log_lines
from tests.moves.cluster import Cluster, until

pytestmark = [pytest.mark.timeout(240), pytest.mark.skipif(os.geteuid() != 0, reason="a lab needs root")]

MOST_TASKS = 16
SHARE = 0.02
"""Share of the machine's memory that all guests of a node may have."""
HOST = "n2"
PATIENCE = 60
CONFIGURATION = f"\n[balance]\nenabled = false\n[lend]\nmax_tasks = {MOST_TASKS}\nmemory_share = {SHARE}\n"
EMFILE = 24


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(2, configuration=CONFIGURATION)
    yield made
    made.down()


@pytest.fixture
def neighbour(cluster: Cluster) -> Iterator[Running]:
    """Another guest of that node, of another user."""
    with Running(cluster, "appender", "lines 1000000 1000", "farhome-b") as other:
        other.moved(HOST)
        yield other


def guests(cluster: Cluster) -> list[str]:
    """Returns the node's guests as the node lists them; it must answer within PATIENCE."""
    done = cluster.place(HOST).run("mosps", "--guests", "--json", timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return sorted(row["key"] for row in json.loads(done.stdout))


def groups(cluster: Cluster, file: str, key: str = "") -> list[Path]:
    """Returns the paths of that file of a guest's control group, or of the group of all guests, in each hierarchy that has it."""
    group = f"{HOST}/farhome/guests/{key}"
    return [place / file for place in cgroups.directories(cluster.lab.name, group) if (place / file).exists()]


def descriptors(cluster: Cluster) -> int:
    """Counts the descriptors of all processes of the node."""
    return int(cluster.place(HOST).run("sh", "-c", "ls -d /proc/[0-9]*/fd/* | wc -l").stdout)


def pids(cluster: Cluster, job: str) -> list[int]:
    return [int(row["pid"]) for row in cluster.processes(job)]


def kill(cluster: Cluster, hostile: Running) -> None:
    """Kills it with the means of home: with all children, including those born meanwhile."""

    def is_gone() -> bool:
        left = pids(cluster, hostile.job)
        if left:
            cluster.home.run("kill", "-KILL", *map(str, left))
        return not left

    until("its processes are killed", is_gone, seconds=PATIENCE, every=0.3)


@pytest.mark.parametrize(
    "kind", ["forks", "memory", "processor", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("descriptors", "signals"))]
)
def test_the_node_of_a_hostile_guest_and_other_guests_live_on(cluster: Cluster, neighbour: Running, kind: str) -> None:
    before = guests(cluster)
    with Running(cluster, "hostile", kind, "farhome-a") as hostile:
        hostile.moved(HOST)
        (key,) = set(guests(cluster)) - set(before)
        assert groups(cluster, "cgroup.procs", key)
        open_before = descriptors(cluster)
        (hostile.directory / "go").touch()
        if kind == "memory":
            assert hostile.end(PATIENCE).endswith("status 137\n"), "it was not killed"
            assert not hostile.lines(), "it got all that it wanted"
        else:
            until("it has what it can get", hostile.lines, seconds=PATIENCE)
        if kind == "forks":
            until("all are born, wherever there is room", lambda: len(hostile.lines()) == 1 + 4 + 16, seconds=PATIENCE)
            until("all are known at home", lambda: len(pids(cluster, hostile.job)) == 1 + 4 + 16, seconds=PATIENCE)
            (current,) = groups(cluster, "pids.current", key)
            assert 1 < int(current.read_text()) <= MOST_TASKS
            assert int(current.with_name("pids.max").read_text()) == MOST_TASKS
        if kind == "descriptors":
            assert hostile.lines()[0].endswith(f", then {EMFILE}")
            assert descriptors(cluster) < open_before + 100, "it has them on the node"
        # The node and the other guest, while the hostile one goes on.
        assert "lends" in cluster.place(HOST).run("mosctl", "nodes", timeout=PATIENCE).stdout
        assert set(before) <= set(guests(cluster))
        neighbour.works(PATIENCE)
        neighbour.moved(HOME)
        neighbour.works(PATIENCE)
        kill(cluster, hostile)
        hostile.end(PATIENCE)
        until("nothing is left of it", lambda: not guests(cluster), seconds=PATIENCE)
        until("its group is gone", lambda: not groups(cluster, "cgroup.procs", key), seconds=PATIENCE)
        until("its processes are gone", lambda: not hostile.host_pids(), seconds=PATIENCE)
    assert not log_lines(cluster, HOST, "Traceback")


def test_the_bounds_are_the_kernels(cluster: Cluster) -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    bounds = [*groups(cluster, "memory.max"), *groups(cluster, "memory.limit_in_bytes")]
    assert bounds
    for bound in bounds:
        assert int(bound.read_text()) <= total * SHARE
