"""The operation `watch`: what a monitor is told, and that of others' processes it is told no more than `mosps -a` tells."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from monitor.picture import picture_of
from node.tally import Tally
from node.watching import utilisability
from tests.access import needs_ordinary_users_here
from tests.node.nodes import ROOT, Cluster, Node, wait_for

ASK = "import json; from cli.client import Client; print(json.dumps(Client().call('watch')))"


def watched(node: Node, user: str = "") -> dict[str, object]:
    become = ["setpriv", "--reuid", user, "--regid", user, "--init-groups"] if user else []
    done = subprocess.run(
        [*become, sys.executable, "-P", "-c", ASK], env={**node.environment, "PYTHONPATH": str(ROOT)}, cwd="/", capture_output=True,
        text=True, timeout=30, check=True,
    )  # fmt: skip
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_a_picture_has_nodes_processes_guests_moves_and_counts(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[1].ok("migrate", str(pid), "n2")
    seen = picture_of(watched(pair[1]))
    assert [one.name for one in seen.nodes] == ["n1", "n2"]
    own, other = seen.nodes
    assert own.self
    assert own.closed_why == ""
    assert other.utilisability is None
    process = seen.process(pid)
    assert process is not None
    assert (process.where, process.state, process.moves) == ("n2", "away", 1)
    assert [(event.pid, event.source, event.target) for event in seen.events] == [(pid, "home", "n2")]
    assert (seen.counters.out, seen.counters.home, seen.counters.moved_bytes) == (1, 0, 4096)
    (guest,) = wait_for(lambda: picture_of(watched(pair[2])).guests)
    assert (guest.home, guest.pid) == ("n1", pid)
    pair[1].ok("migrate", str(pid), "home")
    pair[2].ok("mosctl", "block")
    assert pair[1].command("migrate", str(pid), "n2").returncode == 75
    counters = picture_of(watched(pair[1])).counters
    assert (counters.out, counters.home, counters.failed) == (1, 1, 1)
    assert picture_of(watched(pair[2])).nodes[1].closed_why != ""


def test_others_see_the_process_but_not_what_was_decided(pair: Cluster) -> None:
    needs_ordinary_users_here()
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[1].ok("migrate", str(pid), "n2")
    seen = picture_of(watched(pair[1], "farhome-a"))
    process = seen.process(pid)
    assert process is not None
    assert process.decision == ""
    assert seen.events == ()


def test_a_node_that_was_known_and_is_forgotten_is_dead(pair: Cluster) -> None:
    pair[2].kill()
    wait_for((pair[1].run / "peers.json").exists)
    pair[1].restart()
    seen = picture_of(watched(pair[1]))
    assert [(one.name, one.state) for one in seen.nodes] == [("n1", "lends"), ("n2", "dead")]


def test_counts_are_by_the_kind_of_move() -> None:
    tally = Tally()
    for source, target in (("home", "n2"), ("n2", "n3"), ("n3", "home"), ("home", "n2")):
        tally.made(source, target, 250.0, 1000)
    tally.not_made()
    row = tally.row()
    assert (row["out"], row["hop"], row["home"], row["failed"]) == (2, 1, 1, 1)
    assert (row["frozen_seconds"], row["moved_bytes"]) == (1.0, 4000)


def test_utilisability_is_what_waiting_for_memory_leaves(tmp_path: Path) -> None:
    file = tmp_path / "memory"
    file.write_text("some avg10=40.00 avg60=1.00 avg300=0.00 total=7\nfull avg10=12.50 avg60=1.00 avg300=0.00 total=5\n")
    assert utilisability(file) == 0.875
    file.write_text("nonsense\n")
    assert utilisability(file) is None
    assert utilisability(tmp_path / "none") is None
