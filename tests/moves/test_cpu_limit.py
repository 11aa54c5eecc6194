"""A limit on processor time (ulimit -t) counts what is used away, and is met there as it would be at home."""

from __future__ import annotations

import pytest

from tests.faults.running import Running
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(120)
LIMIT = 3
"""Seconds."""
EXCESS = 128 + 24
"""The shell's message for SIGXCPU."""


@pytest.mark.parametrize(
    ("how", "end"),
    [pytest.param("compute", EXCESS, marks=pytest.mark.soak), pytest.param("reader", EXCESS, marks=pytest.mark.soak), ("handler", 5)],
)
def test_the_limit_is_met_away(cluster: Cluster, how: str, end: int) -> None:
    with Running(cluster, "limited", how, mosrun=f"ulimit -S -t {LIMIT} && mosrun -L") as program:
        program.works()
        program.moved("n2")
        here = used(program)
        until("it has computed there", lambda: used(program) > here + 400, seconds=20)
        program.moved("n3")
        (program.directory / "go").touch()
        assert f"status {end}\n" in program.end()
        assert used(program) > LIMIT * 1000 - 600, "too early"
        assert used(program) < LIMIT * 1000 + 1500, "too late"


def test_the_hard_limit_kills(cluster: Cluster) -> None:
    with Running(cluster, "limited", "handler", mosrun="ulimit -t 2 && mosrun -L") as program:
        program.works()
        program.moved("n2")
        (program.directory / "go").touch()
        assert f"status {128 + 9}\n" in program.end()


def used(program: Running) -> int:
    """Milliseconds of processor time as it knows."""
    return int(([*program.lines(), "0"] if not program.lines() else program.lines())[-1])
