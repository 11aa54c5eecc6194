"""Neither an interactive python3 on a terminal nor its user nor the shell can notice that it moves."""

from __future__ import annotations

import pytest

from tests.moves.cluster import Cluster
from tests.moves.outcome import Here, first_difference
from tests.moves.sessions import python_session
from tests.moves.storm import Mover, new_seed
from tests.moves.workloads import USER

KINDS = {"out", "hop", "home"}
SESSIONS = 8
"""Largest number of sessions until each kind of move has been made: one session may be over before."""


def test_a_session_is_the_same_each_time() -> None:
    first, second = (python_session(Here(), "", "") for _ in range(2))
    assert first == second
    assert first[1] == 7


@pytest.mark.timeout(240)
@pytest.mark.parametrize("user", [pytest.param("", marks=pytest.mark.soak), USER], ids=["root", "ordinary user"])
def test_interactive_python_under_moves(cluster: Cluster, user: str) -> None:
    native, native_status = python_session(cluster.home, "", user)
    seed = new_seed()
    job = f"terminal-{seed}"
    mover = Mover(cluster, job, seed, (0.3, 0.8))
    mover.start()
    try:
        for _ in range(SESSIONS):
            moved, status = python_session(cluster.home, f"mosrun -L -J {job} --", user)
            assert moved == native, first_difference("the transcript", native, moved)
            assert status == native_status
            if {move.kind for move in mover.done()} == KINDS:
                break
    finally:
        moves = mover.stop()
        print(f"seed {seed}", *moves, sep="\n")
    assert {move.kind for move in moves if move.done} == KINDS
