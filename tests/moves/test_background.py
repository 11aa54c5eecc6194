"""Programs that go into the background belong to their job: the process that started them ends before anything could observe it."""

from __future__ import annotations

import signal
import time

import pytest

from tests.moves.cluster import HOME, Cluster, until

DAEMON = """
import os, time
for _ in range(6):          # as daemons do, and more
    if os.fork():
        os._exit(0)
    os.setsid()
open("/dev/null"), time.sleep(60)
"""
WAYS = {
    "setsid -f": ["setsid", "-f", "sleep", "60"],
    "a shell that ends": ["sh", "-c", "sleep 60 & exec true"],
    "a daemon": ["python3", "-c", DAEMON],
    "two of them": ["sh", "-c", "(sleep 60 &) ; (sleep 60 &)"],
}


def remain(cluster: Cluster, job: str, count: int) -> bool:
    """Checks that `count` processes of the job are at home and still there a moment later: those about to end are shown until then."""
    found = []
    for _ in range(2):
        found.append({one["pid"] for one in cluster.processes(job) if one["where"] == "home"})
        time.sleep(0.4)
    return found[0] == found[1] and len(found[0]) == count


@pytest.mark.timeout(60)
@pytest.mark.parametrize("argv", WAYS.values(), ids=WAYS.keys())
def test_programs_left_in_the_background_belong_to_the_job(cluster: Cluster, argv: list[str], request: pytest.FixtureRequest) -> None:
    job = f"left-{list(WAYS.values()).index(argv)}"
    left = 2 if "two" in request.node.name else 1
    assert cluster.home.run("sh", "-c", 'exec "$@" > /dev/null 2>&1', "sh", "mosrun", "-L", "-J", job, *argv).returncode == 0
    until(f"{left} of {job} are left", lambda: remain(cluster, job, left), seconds=20)
    shown = cluster.processes(job)
    try:
        assert len(shown) == left
        for one in shown:
            assert not one["adopted"], one
            move = cluster.migrate(one["pid"], HOME, "n2")
            assert move.done, str(move)
        assert [one["where"] for one in cluster.processes(job)] == ["n2"] * left
    finally:
        for one in shown:
            cluster.home.run("kill", f"-{signal.SIGKILL}", str(one["pid"]))
    until("they have ended", lambda: not cluster.processes(job))
