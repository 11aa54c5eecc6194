"""A node daemon that is new on a node where another was: what it knows, and what the old one left half done."""

from __future__ import annotations

import subprocess
import sys

from tests.node.nodes import Cluster, wait_for


def test_a_new_daemon_knows_the_nodes_that_the_old_one_knew_though_none_of_them_answers(pair: Cluster) -> None:
    n1, n2 = pair.nodes
    wait_for((n1.run / "peers.json").exists)
    n2.kill()
    n1.restart()
    pid = pair.spawn(n1, "sleep", "60")
    done = n1.command("migrate", str(pid), "n2")
    assert (done.returncode, "n2 cannot be reached" in done.stderr) == (75, True)


def test_a_place_that_its_home_has_forgotten_does_not_stand_in_the_way(pair: Cluster) -> None:
    """As when the home's daemon is killed between the reservation and the move."""
    n1, n2 = pair.nodes
    pid = pair.spawn(n1, "sleep", "60")
    n1.behave(deputy="hang")
    waiting = subprocess.Popen(
        [sys.executable, "-P", "-m", "cli.migrate", str(pid), "n2"], env=n1.environment, cwd="/", stderr=subprocess.DEVNULL
    )
    wait_for(lambda: n2.guests() == [f"n1-{pid}"])
    n1.kill()
    waiting.wait(20)
    n1.behave()
    n1.restart()
    n1.ok("migrate", str(pid), "n2")
    assert n1.process(pid)["where"] == "n2"
