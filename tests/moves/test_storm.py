"""Every workload under moves out, on and home gives byte for byte what it gives natively."""

from __future__ import annotations

import pytest

from tests.moves.cluster import Cluster
from tests.moves.storm import storm
from tests.moves.workloads import WORKLOADS, Workload, scale

OF_A_KIND = {
    "xz", "sort", "awk", "perl", "bc", "memory", "threads", "births", "quiet", "python", "signals", "itself", "appender", "poll server",
    "bash", "counter", "rare",
}  # fmt: skip
"""Programs that compute over a pipe or a file, as sqlite3 does, write to memory or have threads, as in test_precopy.py and test_kinds.py,
have children, as family, serve connections, as the epoll server does, check themselves, as in test_itself.py, make calls that
tests/link/test_rare_calls.py makes away, or are moved as much in test_counter.py, test_engines.py and test_interceptors.py."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "workload", [pytest.param(one, id=one.name, marks=[pytest.mark.soak] if one.name in OF_A_KIND else []) for one in WORKLOADS]
)
def test_nothing_changes_under_moves(cluster: Cluster, workload: Workload) -> None:
    verdict = storm(cluster, workload, user=workload.user, scale=scale())
    print(verdict)
    assert not verdict.wrong, str(verdict)
