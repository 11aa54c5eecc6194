"""Every workload under moves out, on and home gives byte for byte what it gives natively."""

from __future__ import annotations

import pytest

from tests.moves.cluster import Cluster
from tests.moves.storm import storm
from tests.moves.workloads import WORKLOADS, Workload, scale


@pytest.mark.timeout(300)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_nothing_changes_under_moves(cluster: Cluster, workload: Workload) -> None:
    verdict = storm(cluster, workload, user=workload.user, scale=scale())
    print(verdict)
    assert not verdict.wrong, str(verdict)
