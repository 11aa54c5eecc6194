"""The balancer in real daemons: gossip between three nodes, load, lending, and what `mon` shows of them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from lab import Lab, Node

PATIENCE = 30.0
STAY = 10.0 if os.environ.get("FARHOME_LONG_TESTS") else 5.0
"""Seconds for which nothing moves: more than twice the time between two looks of the balancer."""


def nodes(node: Node) -> dict[str, dict[str, Any]]:
    done = node.run(["mon", "--json"], timeout=20, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)}


def dead(node: Node) -> set[str]:
    return {one["name"] for one in node.ask_mosd("watch")["dead"]}


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} did not come within {PATIENCE:.0f} s"
        time.sleep(0.3)


def log(node: Node) -> list[str]:
    return (node.root / "run/farhome/mosd.log").read_text(errors="replace").splitlines()


@pytest.mark.timeout(180)
def test_every_node_knows_all_their_loads_and_states(lab3: Lab) -> None:
    n1, n2, n3 = (lab3.node(name) for name in ("n1", "n2", "n3"))
    for node in (n1, n2, n3):
        wait_for(lambda node=node: set(nodes(node)) == {"n1", "n2", "n3"}, f"the view of {node.name}")  # type: ignore[misc]
    view = nodes(n1)
    assert view["n1"]["self"] and not view["n2"]["self"]
    assert all(row["state"] == "lends" and row["cores"] == 1 and 0.05 < row["speed"] < 20 for row in view.values())
    assert all(row["age"] < 6 for row in view.values())

    with n2.popen(["sh", "-c", "while :; do :; done"]) as busy:
        wait_for(lambda: nodes(n1)["n2"]["runnable"] > 0.8, "the load of n2 at n1")
        wait_for(lambda: nodes(n1)["n3"]["runnable"] < 0.5, "n3 at rest at n1")
        busy.kill()
    wait_for(lambda: nodes(n1)["n2"]["runnable"] < 0.3, "the end of the load of n2 at n1")

    n3.run(["mosctl", "block"], timeout=20, check=True)
    wait_for(lambda: nodes(n1)["n3"]["state"] == "blocked", "the state of n3 at n1")
    n3.run(["mosctl", "unblock"], timeout=20, check=True)
    wait_for(lambda: nodes(n1)["n3"]["state"] == "lends", "the state of n3 at n1")

    n3.stop_mosd()
    wait_for(lambda: set(nodes(n1)) == {"n1", "n2"} and not dead(n1), "n3 gone")
    # It leaves the view at once, and is reported at the next tick.
    wait_for(lambda: any("node n3 has left" in line for line in log(n1)), "the word that n3 has left")
    n3.start_mosd()
    wait_for(lambda: nodes(n1).get("n3", {}).get("state") == "lends", "n3 again at n1")

    lab3.kill("n3")
    wait_for(lambda: nodes(n1).get("n3", {}).get("state") == "silent" or "n3" in dead(n1), "silence of n3")


@pytest.mark.timeout(120)
def test_policy_is_applied_live_and_a_wrong_one_leaves_the_old_in_force(lab_name: Callable[[], str]) -> None:
    with Lab.up(2, name=lab_name(), configuration="[lend]\nmax_guests = 0\n") as lab:
        n1, n2 = lab.node("n1"), lab.node("n2")
        wait_for(lambda: nodes(n1).get("n2", {}).get("state") == "closed", "a closed n2 at n1")

        def write(policy: str) -> subprocess.CompletedProcess[str]:
            n2.run(
                ["sh", "-c", f"sed -i '/^\\[lend\\]/,$d' /etc/farhome/node.toml; printf '{policy}' >> /etc/farhome/node.toml"],
                timeout=20,
                check=True,
            )
            return n2.run(["mosctl", "reload"], timeout=20, capture_output=True, text=True)

        wrong = write('[lend]\\nhours = "25-3"\\n')
        assert wrong.returncode == 78
        assert "hours" in wrong.stderr and wrong.stderr.count("\n") == 1
        assert nodes(n1)["n2"]["state"] == "closed"
        assert write("[lend]\\nmax_guests = 3\\n").returncode == 0
        wait_for(lambda: nodes(n1)["n2"]["state"] == "lends", "a lending n2 at n1")


LOOP = "while True: pass"


def where(node: Node, job: str) -> dict[int, str]:
    # Asked from outside: a command in the node would be one more process that wants to run there.
    return {row["pid"]: row["where"] for row in node.ask_mosd("ps", job=job)["processes"]}


@pytest.mark.alone
@pytest.mark.timeout(240)
def test_three_loops_started_at_one_node_end_up_one_on_each_and_stay(lab_name: Callable[[], str]) -> None:
    """Alone: what other tests compute on the same processors is load that the nodes see, and move for."""
    with Lab.up(3, name=lab_name()) as lab, contextlib.ExitStack() as stack:
        n1 = lab.node("n1")
        for _ in range(3):
            process = stack.enter_context(n1.popen(["mosrun", "-J", "7", "/usr/bin/python3", "-c", LOOP]))
            stack.callback(process.kill)
        wait_for(lambda: sorted(where(n1, "7").values()) == ["home", "n2", "n3"], "one loop on each node")
        settled = where(n1, "7")
        watched_until = time.monotonic() + STAY
        while time.monotonic() < watched_until:
            assert where(n1, "7") == settled, [n1.run(["mosctl", "why", str(pid)], text=True).stdout for pid in settled]
            time.sleep(0.5)


def used(node: Node, pid: int) -> float:
    return float(node.ask_mosd("why", pid=pid)["cpu_seconds"])


@pytest.mark.timeout(120)
def test_home_knows_how_much_cpu_a_process_uses_away(lab_name: Callable[[], str]) -> None:
    with Lab.up(2, name=lab_name(), configuration="[balance]\nenabled = false\n") as lab, contextlib.ExitStack() as stack:
        n1 = lab.node("n1")
        pids = {}
        for program in ("while True: pass", "import time\nwhile True: time.sleep(30)"):
            process = stack.enter_context(n1.popen(["mosrun", "/usr/bin/python3", "-c", program]))
            stack.callback(process.kill)
            pids[process.node_pid] = program
        wait_for(lambda: len(n1.ask_mosd("ps")["processes"]) == 2, "both processes")
        busy, idle = pids
        before = used(n1, idle)
        for pid in pids:
            n1.run(["migrate", str(pid), "n2"], timeout=60, check=True)
        came = used(n1, busy)
        wait_for(lambda: used(n1, busy) > came + 2, "cpu time of the busy one")
        assert used(n1, idle) < before + 1
        n1.run(["migrate", str(busy), "home"], timeout=60, check=True)
        assert used(n1, busy) > came + 2


READER = """
import os
descriptor = os.open("/etc/passwd", os.O_RDONLY)
while True:
    os.pread(descriptor, 512, 0)
"""


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_process_that_reads_all_the_time_is_taken_home_to_a_busy_node_and_one_that_computes_is_not(lab_name: Callable[[], str]) -> None:
    with Lab.up(2, name=lab_name()) as lab, contextlib.ExitStack() as stack:
        n1 = lab.node("n1")
        pids = []
        for options, program in ((["-L"], LOOP), ([], READER)):
            process = stack.enter_context(n1.popen(["mosrun", *options, "/usr/bin/python3", "-c", program]))
            stack.callback(process.kill)
            pids.append(process.node_pid)
            wait_for(lambda: process.node_pid in {row["pid"] for row in n1.ask_mosd("ps")["processes"]}, "the process")  # noqa: B023
        _, reader = pids
        n1.run(["migrate", str(reader), "n2"], timeout=60, check=True)
        wait_for(lambda: n1.ask_mosd("why", pid=reader)["where"] == "home", "the reader at home")
        why = n1.ask_mosd("why", pid=reader)
        assert why["calls_rate"] > 2000
        assert any(note["target"] == "home" and "near what it reads and writes" in note["reason"] for note in why["decisions"])
        moves = why["moves"]
        end = time.monotonic() + 5
        while time.monotonic() < end:
            assert n1.ask_mosd("why", pid=reader)["moves"] == moves
            time.sleep(0.5)
