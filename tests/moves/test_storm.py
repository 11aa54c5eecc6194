"""Every workload under moves out, on and home gives byte for byte what it gives natively."""

from __future__ import annotations

import pytest

from tests.moves.cluster import Cluster
from tests.moves.storm import storm
from tests.moves.workloads import WORKLOADS, Workload, scale

OF_A_KIND = {"xz", "awk", "perl", "bc", "births"}
"""Programs that compute over a pipe or a file, as sort and sqlite3 do, or have children, as family and bash."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "workload", [pytest.param(one, id=one.name, marks=[pytest.mark.soak] if one.name in OF_A_KIND else []) for one in WORKLOADS]
)
def test_nothing_changes_under_moves(cluster: Cluster, workload: Workload) -> None:
    verdict = storm(cluster, workload, user=workload.user, scale=scale())
    print(verdict)
    assert not verdict.wrong, str(verdict)
