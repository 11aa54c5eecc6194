"""A timer of any speed: the process continues, receives every expiration, and receives none after the timer has stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.running import Running
from tests.moves.cluster import HOME, Cluster
from tests.moves.test_directed import natively

pytestmark = pytest.mark.timeout(120)


def test_timers_of_any_speed(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    expected = natively(tmp_path, "ticks")
    assert "not reported" not in expected
    with Running(cluster, "ticks", "") as ticks:
        ticks.works()
        ticks.moved("n2")
        (ticks.directory / "go").touch()
        assert ticks.end() == f"{expected}status 0\n"


@pytest.mark.parametrize("arguments", ["20000 10 0 1", "200000 10 2 1", "50000 40 2 1"])
def test_timer_expirations_during_a_move_are_delivered(cluster: Cluster, arguments: str) -> None:
    """10: SIGUSR1, which is queued once per process. 40: a real-time signal, which is queued as often as it is sent."""
    with Running(cluster, "expires", arguments) as expires:
        for target in ("n2", "n3", HOME, "n2", HOME, "n3", HOME):
            expires.works()
            expires.moved(target)
        expires.works()
        (expires.directory / "enough").touch()
        lost, status = expires.end().splitlines()
        assert status == "status 0"
        assert -2 <= int(lost.split()[1]) <= 5, lost


@pytest.mark.parametrize("arguments", ["1000000 10 0 1", "1000000 40 2 1", "1000000 10 0 4"])
def test_timer_expirations_away_are_delivered_as_at_home(cluster: Cluster, arguments: str) -> None:
    """With one timer, and with several that share a signal that is queued once."""
    with Running(cluster, "expires", arguments) as expires:
        expires.works()
        expires.moved("n2")
        expires.works()
        (expires.directory / "settled").touch()
        for _ in range(20):
            expires.works()
        (expires.directory / "enough").touch()
        said, status = expires.end().splitlines()
        words = said.replace(",", "").split()
        assert status == "status 0"
        assert abs(int(words[1])) < 0.1 * int(words[3]), said  # what is on its way when it ends, which takes longer on a busy machine
        assert words[5] == "0", said
