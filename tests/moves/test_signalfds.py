"""Signals that a process reads by signalfds come so wherever it is, and all that a kernel promises of them holds."""

from __future__ import annotations

import itertools

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster

pytestmark = pytest.mark.timeout(120)

MOVES = 8
ROUND = ("n2", "n3", HOME, "n2")


@pytest.mark.parametrize(
    ("when", "targets"),
    [
        ("", ("n2", "n3", HOME)), ("held", ("n2", HOME)),
        pytest.param("early", ROUND, marks=pytest.mark.soak), pytest.param("held", ROUND, marks=pytest.mark.soak),
    ],
    ids=["made away", "held", "held from the beginning", "held everywhere"],
)  # fmt: skip
def test_a_process_with_signalfds_is_away_and_stays_there(cluster: Cluster, when: str, targets: tuple[str, ...]) -> None:
    """Whether it makes them there or has one as it leaves; hops with them, comes home, and leaves once more. held: executes with one."""
    with Running(cluster, "signalfds", when) as running:
        running.works(30)
        for target in targets:
            running.moved(target)
            running.works(30)
            running.works(30)
            assert running.where() == target
        assert enough(running) == "status 0\n"


def test_the_promises_hold_while_the_process_moves(cluster: Cluster) -> None:
    with Running(cluster, "signalfds", "early") as running:
        done = sum(running.move(target).done for target in itertools.islice(itertools.cycle(["n2", "n3", HOME]), MOVES))
        assert enough(running) == "status 0\n"
        assert done > MOVES // 2


def enough(running: Running) -> str:
    """Ends it. Returns what it has said."""
    (running.directory / "enough").touch()
    return running.end()
