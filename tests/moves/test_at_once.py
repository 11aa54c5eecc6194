"""`migrate` as a command: it finds a process whose mosrun starts at the same moment, and lists what a move was made of."""

from __future__ import annotations

from tests.faults.running import Running
from tests.moves.cluster import Cluster


def test_migrate_waits_for_mosrun_to_register(cluster: Cluster) -> None:
    done = cluster.home.run("bash", "-c", "mosrun -L sleep 600 & migrate $! n2; kill $!; wait $!; echo status $?")
    assert "is on n2" in done.stdout + done.stderr, done
    assert done.stdout.endswith("status 143\n"), done


def test_the_steps_of_each_kind_of_move_are_listed(cluster: Cluster) -> None:
    expected = {
        "n2": ("place reserved", "connected", "place there", "memory ahead", "stopped", "captured", "sent", "running there"),
        "n3": ("place reserved", "connected", "place there", "memory ahead", "stopped", "captured and sent there", "running there"),
        "home": ("memory ahead", "stopped", "captured there", "restored", "running"),
    }
    with Running(cluster, "counter", "lines 100000 50 4") as counter:
        for target, wanted in expected.items():
            counter.works()
            said = cluster.home.run("migrate", "-v", str(counter.pid), target).stdout.splitlines()
            assert " frozen " in said[0], said
            ran, stood = said.index("while it ran:"), said.index("while it stood still:")
            names = [line.partition(" ms  ")[2] for line in said if " ms  " in line]
            assert [name for name in names if name in wanted] == list(wanted), said
            assert ran < said.index(next(line for line in said if line.endswith("memory ahead"))) < stood
            assert stood < said.index(next(line for line in said if line.endswith("  stopped"))), said
