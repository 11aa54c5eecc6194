"""Other people's programs under moves out, on and home give byte for byte what they give natively."""

from __future__ import annotations

import subprocess

import pytest

from tests.moves.cluster import Cluster, until
from tests.moves.outcome import PATH, kill_session
from tests.moves.storm import new_seed, storm
from tests.moves.workloads import USER, Workload, scale
from tests.suites.programs import WORKLOADS

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


def need(cluster: Cluster, *commands: str) -> None:
    for command in commands:
        if cluster.home.run("sh", "-c", f"{command} >/dev/null 2>&1").returncode:
            pytest.skip(f"not here: {command}")


@pytest.mark.parametrize(("workload", "needs"), WORKLOADS, ids=[workload.name for workload, _ in WORKLOADS])
def test_nothing_changes_under_moves(cluster: Cluster, workload: Workload, needs: tuple[str, ...]) -> None:
    need(cluster, *needs)
    verdict = storm(cluster, workload, user=workload.user, scale=scale(), every=(0.1, 0.6))
    print(verdict)
    assert not verdict.wrong, str(verdict)


def test_a_jvm_with_performance_data_stays_at_home_and_all_say_why(cluster: Cluster) -> None:
    need(cluster, "java --version")
    job = f"java-{new_seed()}"
    script = f"cd /opt/farhome/tests/programs && exec mosrun -L -J {job} -- java -XX:+UsePerfData Churn.java 2 100000"
    java = cluster.home.popen(["env", "-i", f"PATH={PATH}", "HOME=/tmp", "bash", "-c", script], USER, stdout=subprocess.PIPE)
    try:
        assert java.stdout is not None
        java.stdout.readline()  # a round is done: it has mapped what it maps
        row = until("the JVM is registered", lambda: next(iter(cluster.processes(job)), None))
        pid = row["pid"]
        why = f"it has /tmp/hsperfdata_{USER}/{pid} mapped shared and writable"
        assert cluster.migrate(pid, "n1", "n2").said == f"exit 75: migrate: process {pid} stays at home: {why}"
        checked = cluster.home.run("moscheck", str(pid))
        assert (checked.returncode, why in checked.stdout) == (1, True), checked.stdout
        assert why in cluster.home.run("mosps", "--why", str(pid)).stdout
        assert java.stdout.readline(), "it goes on"
    finally:
        kill_session(java.pid)
        java.communicate(timeout=10)
