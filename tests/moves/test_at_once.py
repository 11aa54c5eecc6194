"""A `migrate` that starts at the same moment as mosrun finds its process."""

from __future__ import annotations

from tests.moves.cluster import Cluster


def test_migrate_waits_for_mosrun_to_register(cluster: Cluster) -> None:
    done = cluster.home.run("bash", "-c", "mosrun -L sleep 600 & migrate $! n2; kill $!; wait $!; echo status $?")
    assert "is on n2" in done.stdout + done.stderr, done
    assert done.stdout.endswith("status 143\n"), done
