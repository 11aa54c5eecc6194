"""A timer of any speed: the process goes on, is told of all that expired, and has nothing more once the timer stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.running import Running
from tests.moves.cluster import Cluster
from tests.moves.test_directed import natively

pytestmark = pytest.mark.timeout(120)


def test_timers_of_any_speed(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    expected = natively(tmp_path, "ticks")
    assert "not told" not in expected
    with Running(cluster, "ticks", "") as ticks:
        ticks.works()
        ticks.moved("n2")
        (ticks.directory / "go").touch()
        assert ticks.end() == f"{expected}status 0\n"
