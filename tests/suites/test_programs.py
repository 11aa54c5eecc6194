"""Other people's programs under moves out, on and home give byte for byte what they give natively."""

from __future__ import annotations

import pytest

from tests.moves.cluster import Cluster
from tests.moves.storm import storm
from tests.moves.workloads import Workload, scale
from tests.suites.programs import WORKLOADS

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("workload", "needs"), WORKLOADS, ids=[workload.name for workload, _ in WORKLOADS])
def test_nothing_changes_under_moves(cluster: Cluster, workload: Workload, needs: tuple[str, ...]) -> None:
    for command in needs:
        if cluster.home.run("sh", "-c", f"{command} >/dev/null 2>&1").returncode:
            pytest.skip(f"not here: {command}")
    verdict = storm(cluster, workload, user=workload.user, scale=scale(), every=(0.1, 0.6))
    print(verdict)
    assert not verdict.wrong, str(verdict)
