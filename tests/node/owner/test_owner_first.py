"""Daemons whose owners come back, whose guests make room for others, and that keep a ledger.

Their deputies and remotes are the tests' own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from node.guests.cgroups import REMOTES, RESTING, hierarchies
from tests.node.nodes import Cluster, Node, wait_for


@pytest.fixture
def lender(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes; the owner of n2 has not used it for an hour."""
    tmp_path.chmod(0o755)
    (tmp_path / "input").touch()
    os.utime(tmp_path / "input", (time.time() - 3600,) * 2)
    cluster = Cluster(tmp_path, 2)
    yield cluster
    cluster.down()


def lend(node: Node, lines: str, *of_owner: str) -> None:
    owner = "\n".join((f'input = ["{node.base.parent}/input"]', "logins = false", "freeze_after = 0.05", "evict_after = 0.05", *of_owner))
    node.configure(f"[lend]\n{lines}\n[lend.owner]\n{owner}")
    node.ok("mosctl", "reload")


def stage(node: Node) -> str:
    return str(json.loads(node.ok("mosctl", "owner", "--json"))["stage"])


def groups_of(pid: int) -> set[str]:
    """Paths of the control groups of a process, in all hierarchies."""
    return {line.rpartition(":")[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()}


def remote_of(node: Node, key: str) -> int:
    """The process that supervises a guest, by what its command line says of its socket."""

    def is_it(line: bytes) -> bool:
        return str(node.base).encode() in line and f"/{key}.sock".encode() in line

    found: list[int] = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            found += [int(process)] if is_it(Path(f"/proc/{process}/cmdline").read_bytes()) else []
    (pid,) = found
    return pid


def test_a_guests_supervisor_shares_the_lent_part_until_the_guest_is_evicted(lender: Cluster) -> None:
    n1, n2 = lender.nodes
    lend(n2, "enabled = true", 'then = "keep"')
    if not any((point / RESTING).exists() for point in hierarchies().values()):
        pytest.skip("no cpu controller here")
    n2.behave(remote="stay")
    pid = lender.spawn(n1, "sleep", "60")
    n1.ok("migrate", str(pid), "n2")
    remote = remote_of(n2, f"n1-{pid}")
    wait_for(lambda: f"/{RESTING}" in groups_of(remote), message="its remote is beside the guests")
    n2.ok("mosctl", "owner", "back")
    wait_for(lambda: f"/{REMOTES}" in groups_of(remote), message="it is beside the owner's programs")
    assert f"/{RESTING}" not in groups_of(remote)
    n2.ok("mosctl", "owner", "away")
    wait_for(lambda: f"/{RESTING}" in groups_of(remote), message="it rests again")


def test_guests_go_home_when_the_owner_uses_his_node_or_says_so(lender: Cluster) -> None:
    n1, n2 = lender.nodes
    lend(n2, "idle_after = 60")
    wait_for(lambda: stage(n2) == "lending")
    pids = [lender.spawn(n1, "sleep", "60") for _ in range(2)]
    for pid in pids:
        n1.ok("migrate", str(pid), "n2")
    (lender.base / "input").touch()
    wait_for(lambda: all(n1.process(pid)["where"] == "home" for pid in pids), message="they go home")
    assert "the owner used the node" in n1.process(pids[0])["why"]
    assert "the owner used the node" in n1.command("migrate", str(pids[0]), "n2").stderr
    wait_for(lambda: stage(n2) == "owner")
    lend(n2, "enabled = true")
    wait_for(lambda: stage(n2) == "lending")
    n1.ok("migrate", str(pids[0]), "n2")
    n2.ok("mosctl", "owner", "back")
    wait_for(lambda: n1.process(pids[0])["where"] == "home", message="it goes home")
    n2.restart()
    assert "has the node" in n2.ok("mosctl", "owner")
    assert "mosctl owner back" in n1.command("migrate", str(pids[0]), "n2").stderr
    n2.ok("mosctl", "owner", "away")
    n1.ok("migrate", str(pids[0]), "n2")


def test_a_guest_that_does_not_leave_in_time_is_killed_only_if_the_policy_says_so(lender: Cluster) -> None:
    n1, n2 = lender.nodes
    lend(n2, "enabled = true", "deadline = 0.3", 'then = "keep"')
    n2.behave(remote="stay")
    pid = lender.spawn(n1, "sleep", "60")
    n1.ok("migrate", str(pid), "n2")
    n2.ok("mosctl", "owner", "back")
    wait_for(lambda: stage(n2) == "late")
    assert n2.guests() == [f"n1-{pid}"]
    lend(n2, "enabled = true", "deadline = 0.3", 'then = "kill"')
    wait_for(lambda: n2.guests() == [], message="it is killed")
    assert lender.children[-1].wait(10) == -9
    wait_for(lambda: stage(n2) == "owner")


def test_a_guest_that_does_not_leave_in_time_comes_home_from_a_checkpoint(lender: Cluster) -> None:
    n1, n2 = lender.nodes
    lend(n2, "enabled = true", "deadline = 0.3")
    n2.behave(remote="stay")
    pid = lender.spawn(n1, "sh", "-c", "exec sleep 60 > /dev/null 2>&1")
    n1.ok("migrate", str(pid), "n2")
    n2.ok("mosctl", "owner", "back")
    wait_for(lambda: n1.process(pid)["where"] == "home", 30, "its home takes it")
    wait_for(lambda: "checkpoint" in n1.process(pid), 30, "a checkpoint is made, or tried")
    assert n1.process(pid)["checkpoint"]["why"] == ""
    assert (n1.base / "state" / "checkpoints" / "0" / str(pid) / "farhome.json").exists()


def test_guests_of_a_lower_class_make_room_and_their_usage_is_in_the_ledger(three: Cluster) -> None:
    n1, n2, n3 = three.nodes
    lend(n2, 'max_guests = 1\n[[lend.class]]\nname = "ours"\npriority = 5\nnodes = ["n1"]')
    low, high, another = three.spawn(n3, "sleep", "60"), three.spawn(n1, "sleep", "61"), three.spawn(n1, "sleep", "62")
    n3.ok("migrate", str(low), "n2")
    burn(f"n3-{low}")
    assert f"n3-{low} would make room" in n2.ok("mosctl", "policy", "explain", "--as", "root@n1")
    n1.ok("migrate", str(high), "n2")
    assert n2.guests() == [f"n1-{high}"]
    assert n3.process(low)["where"] == "home"
    assert n3.process(low)["why"] == "n2 has a guest of a higher class"
    assert "at most 1 guests" in n1.command("migrate", str(another), "n2").stderr
    assert "at most 1 guests" in n3.command("migrate", str(low), "n2").stderr
    lend(n2, 'max_guests = 1\n[lend.deny]\nnodes = ["n1"]')
    wait_for(lambda: n1.process(high)["why"] == "the node denies node n1", message="who is denied goes home")
    before = ledger(n2)
    assert before["lent", "root", "n3"] >= 0.1
    n2.restart()
    assert ledger(n2)["lent", "root", "n3"] == before["lent", "root", "n3"]


def burn(key: str) -> None:
    """Uses some time of a processor in a guest's group."""
    code = "import time\nwhile time.process_time() < 0.2: pass"
    groups = list(Path("/sys/fs/cgroup").rglob(f"farhome/guests/{key}"))
    joins = "".join(f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n" for group in groups)
    subprocess.run([sys.executable, "-c", joins + code], check=True, timeout=30)


def ledger(node: Node) -> dict[tuple[str, str, str], float]:
    entries = json.loads(node.ok("mosctl", "ledger", "--json"))
    return {(entry["direction"], entry["user"], entry["node"]): entry["seconds"] for entry in entries}
