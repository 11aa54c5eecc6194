"""Waits for processor time are made at home: only a kernel there counts it."""

from __future__ import annotations

import pytest

from tests.faults.running import Running
from tests.moves.cluster import Cluster

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(
    ("how", "call"), [("virtual", "setitimer"), pytest.param("profile", "setitimer", marks=pytest.mark.soak), ("posix", "timer_create")]
)
def test_a_process_with_such_a_timer_stays_at_home_and_says_so(cluster: Cluster, how: str, call: str) -> None:
    with Running(cluster, "cpu_timers", how) as program:
        program.works()
        move = program.move("n2")
        assert not move.done
        assert f"it has a timer that counts its processor time ({call})" in move.said
        program.works()
        (program.directory / "enough").touch()
        assert program.end() == "rang\nstatus 0\n"


def test_a_sleep_on_a_processor_time_clock_is_made_at_home(cluster: Cluster) -> None:
    with Running(cluster, "cpu_timers", "sleep") as program:
        program.works()
        print(program.move("n2"))
        assert program.end() == "rang\nstatus 0\n"
