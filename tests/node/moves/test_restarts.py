"""A node daemon starts: it knows the work of its predecessor, finishes half-done work, and notifies systemd and peers that it runs."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.node.nodes import Cluster, Node, wait_for


def test_a_new_daemon_knows_the_nodes_that_the_old_one_knew_though_none_of_them_answers(pair: Cluster) -> None:
    n1, n2 = pair.nodes
    wait_for((n1.run / "peers.json").exists)
    n2.kill()
    n1.restart()
    pid = pair.spawn(n1, "sleep", "60")
    done = n1.command("migrate", str(pid), "n2")
    assert (done.returncode, "n2 cannot be reached" in done.stderr) == (75, True)


def test_a_place_that_its_home_has_forgotten_does_not_stand_in_the_way(pair: Cluster) -> None:
    """The state after the home's daemon was killed between the reservation and the move."""
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


def test_systemd_is_notified_when_mosd_is_ready_and_when_it_stops(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(tmp_path / "notify"))
    listener.settimeout(15)
    node = Node(tmp_path, "n1", "127.0.0", 1)
    node.environment["NOTIFY_SOCKET"] = str(tmp_path / "notify")
    node.start()
    try:
        assert node.daemon is not None
        assert listener.recv(1024).decode() == f"READY=1\nMAINPID={node.daemon.pid}"
        assert node.command("mosctl", "status").returncode == 0
    finally:
        node.kill(signal.SIGTERM)
    assert listener.recv(1024) == b"STOPPING=1"
    assert not (node.run / "mosd.sock").exists()
    listener.close()
