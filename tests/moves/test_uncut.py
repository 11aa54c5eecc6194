"""A write is cut short by signals that the program hears, and by no others, wherever it is."""

from __future__ import annotations

import pytest

from tests.faults.running import Running
from tests.moves.cluster import Cluster, until

pytestmark = pytest.mark.timeout(120)
KINDS = 5


def test_signals_that_are_ignored_or_blocked_do_not_cut_a_write_short(cluster: Cluster) -> None:
    with Running(cluster, "uncut", "", mosrun="mosrun -L -r n2") as one:
        until("it goes through all calls", lambda: len(one.lines()) >= KINDS, seconds=60)
        assert one.where() == "n2"
        (one.directory / "enough").touch()
        assert one.end() == "nothing was cut\nstatus 0\n"
