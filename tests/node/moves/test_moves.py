"""The node daemon moves processes: reservation, deputy, remote, registry; and what it does when something of that fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.node.nodes import ROOT, Cluster, wait_for


@pytest.fixture
def pair(kept_pair: Cluster) -> Cluster:
    return kept_pair


@pytest.fixture
def three(kept_three: Cluster) -> Cluster:
    return kept_three


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_process_goes_out_hops_and_comes_home(three: Cluster) -> None:
    n1, n2, n3 = three.nodes
    pid = three.spawn(n1, "-J", "night", "sleep", "60")
    assert "is on n2, frozen 1.5 ms, total 12.5 ms" in n1.ok("migrate", str(pid), "n2")
    assert n2.guests() == [f"n1-{pid}"]
    row = n1.process(pid)
    assert (row["where"], row["state"], row["moves"], row["frozen_ms"], row["job"]) == ("n2", "away", 1, 1.5, "night")
    n1.ok("migrate", str(pid), "n3")
    assert n3.guests() == [f"n1-{pid}"]
    wait_for(lambda: n2.guests() == [])
    n1.ok("migrate", str(pid), "home")
    row = n1.process(pid)
    assert (row["where"], row["state"], row["moves"]) == ("home", "home", 3)
    wait_for(lambda: n3.guests() == [] and not n1.programs())
    n1.ok("migrate", str(pid), "out")
    assert n1.process(pid)["where"] in ("n2", "n3")


def test_moving_to_where_it_is_moves_nothing(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "sleep", "60")
    assert "stays at home" in pair[1].ok("migrate", str(pid), "n1")
    assert pair[1].process(pid)["moves"] == 0


def test_json_of_migrate_and_async(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "sleep", "60")
    answer = json.loads(pair[1].ok("migrate", str(pid), "n2", "--json"))
    assert (answer["where"], answer["moved"], answer["engine"], answer["bytes"]) == ("n2", True, "test", 4096)
    assert json.loads(pair[1].ok("migrate", str(pid), "home", "--async", "--json"))["started"] is True
    wait_for(lambda: pair[1].process(pid)["where"] == "home")


def test_the_deputys_refusal_is_reported_and_kept(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[1].behave(deputy="refuse")
    done = pair[1].command("migrate", str(pid), "n2")
    assert done.returncode == 75
    assert done.stderr == f"migrate: process {pid} stays at home: it holds something that cannot move\n"
    assert pair[1].process(pid)["why"] == "it holds something that cannot move"
    wait_for(lambda: pair[2].guests() == [], message="the place is given back")
    pair[1].behave()
    pair[1].ok("migrate", str(pid), "n2")
    assert pair[1].process(pid)["why"] == ""


def test_a_deputy_that_dies_before_the_commit_leaves_the_process_at_home(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[1].behave(deputy="die")
    done = pair[1].command("migrate", str(pid), "n2")
    assert done.returncode == 75
    assert "went away" in done.stderr
    wait_for(lambda: pair[2].guests() == [])
    assert is_running(pid)
    assert pair[1].process(pid)["state"] == "home"


def test_of_a_process_that_ends_while_its_move_is_asked_for_it_is_said_that_it_has_ended(pair: Cluster) -> None:
    """It was said that its deputy went away, which is nothing that the user knows of."""
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[1].behave(deputy="hang")
    waiting = subprocess.Popen(
        [sys.executable, "-P", "-m", "cli.migrate", str(pid), "n2"], env=pair[1].environment, cwd="/", stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: pair[1].process(pid)["state"] == "leaving" and pair[2].guests() != [] and pair[1].programs() != [])
    os.kill(pid, signal.SIGKILL)
    _, complaint = waiting.communicate(timeout=20)
    assert (waiting.returncode, complaint) == (75, f"migrate: process {pid} stays at home: it has ended\n")
    wait_for(lambda: pair[2].guests() == [], message="the place is given back")


def test_a_remote_that_does_not_start_is_a_refusal_with_its_own_words(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[2].behave(remote="no start")
    done = pair[1].command("migrate", str(pid), "n2")
    assert done.returncode == 75
    assert "the test does not want me to start" in done.stderr
    assert pair[2].guests() == []


def test_a_process_whose_deputy_is_killed_ends_with_a_line_in_the_log(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[1].behave(deputy="hold")
    pair[1].ok("migrate", str(pid), "n2")
    (deputy,) = pair[1].programs()
    os.kill(deputy, signal.SIGKILL)
    assert pair.children[0].wait(10) == -signal.SIGKILL
    wait_for(lambda: f"process {pid} is lost: its deputy died while it was on n2" in pair[1].log.read_text())
    assert "lost" in pair[1].ok("mosctl", "why", str(pid), "--json")
    wait_for(lambda: pair[2].guests() == [])


def test_a_process_that_its_deputy_holds_no_more_when_that_is_killed_is_at_home(pair: Cluster) -> None:
    """It has just come: before, it was ended."""
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[1].ok("migrate", str(pid), "n2")
    (deputy,) = pair[1].programs()
    os.kill(deputy, signal.SIGKILL)
    wait_for(lambda: pair[1].process(pid)["state"] == "home")
    assert is_running(pid)


@pytest.mark.parametrize("how", ["last word lost", "last word lost, others stay"])
def test_a_deputy_that_ends_in_order_has_brought_its_process_home_though_its_last_word_is_lost(pair: Cluster, how: str) -> None:
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[1].behave(deputy=how)
    pair[1].ok("migrate", str(pid), "n2")
    pair[2].ok("mosctl", "expel")
    wait_for(lambda: pair[1].process(pid)["state"] == "home")
    assert is_running(pid)


def test_a_process_that_ends_away_is_not_lost_though_its_deputys_last_word_is(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[1].behave(deputy="last word lost")
    pair[1].ok("migrate", str(pid), "n2")
    os.kill(pid, signal.SIGTERM)
    assert pair.children[0].wait(10) == -signal.SIGTERM
    wait_for(lambda: pair[2].guests() == [])
    wait_for(lambda: f"process {pid} is not lost" in pair[1].log.read_text())
    assert f"process {pid} is lost" not in pair[1].log.read_text()


def test_so_it_is_of_one_that_has_ended_when_its_deputy_has_gone_without_a_word(three: Cluster) -> None:
    n1 = three.nodes[0]
    pid = three.spawn(n1, "sleep", "60")
    n1.behave(deputy="end, last word lost")
    n1.ok("migrate", str(pid), "n2")
    done = n1.command("migrate", str(pid), "n3")
    assert (done.returncode, done.stderr) == (75, f"migrate: process {pid} stays at home: it has ended\n")


@pytest.mark.parametrize("target", ["n3", "home"])
def test_a_move_that_meets_the_homecoming_is_made_from_home(three: Cluster, target: str) -> None:
    n1 = three.nodes[0]
    pid = three.spawn(n1, "sleep", "60")
    n1.behave(deputy="last word lost")
    n1.ok("migrate", str(pid), "n2")
    n1.ok("migrate", str(pid), target)
    assert n1.process(pid)["where"] == target
    assert is_running(pid)


def test_decisions_about_a_node_are_shown_to_the_owner_of_the_process(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "-r", "n2", "sleep", "60")
    wait_for(lambda: pair[1].process(pid)["where"] == "n2", message="it goes where it is wanted")
    decided = json.loads(pair[1].ok("mosctl", "why", "n2", "--json"))
    assert decided["node"]["name"] == "n2"
    assert (pid, "n2") in [(note["pid"], note["target"]) for note in decided["decisions"]]
    assert f"process {pid} (sleep 60):" in pair[1].ok("mosctl", "why", "n2")
    refused = pair[1].command("mosctl", "why", "n9")
    assert "nothing is known of a node 'n9'" in refused.stderr
    assert refused.returncode == 64


def test_a_killed_remote_ends_the_process_and_why_still_explains_it(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[1].ok("migrate", str(pid), "n2")
    (remote,) = pair[2].programs()
    os.kill(remote, signal.SIGKILL)
    assert pair.children[0].wait(10) == -signal.SIGKILL
    wait_for(lambda: pair[1].processes() == [])
    assert "n2: is gone" in pair[1].ok("mosctl", "why", str(pid))


def test_a_process_that_ends_away_leaves_nothing(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[1].ok("migrate", str(pid), "n2")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: pair[1].processes() == [] and pair[2].guests() == [])
    wait_for(lambda: not pair[1].programs() and not pair[2].programs())
    assert list((pair[1].run / "registry").iterdir()) == []
    wait_for(lambda: not list((pair[2].run / "guests").iterdir()), message="the guest is forgotten")
    assert not list(Path("/sys/fs/cgroup").glob(f"*/farhome/guests/n1-{pid}"))


def test_a_guest_ends_with_its_process_although_its_deputy_cannot_report(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[1].ok("migrate", str(pid), "n2")
    (deputy,) = pair[1].programs()
    os.kill(deputy, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: pair[2].guests() == [] and not pair[2].programs())
    os.kill(deputy, signal.SIGKILL)


def test_daemons_killed_on_both_sides_know_their_processes_again(pair: Cluster) -> None:
    n1, n2 = pair.nodes
    away, home = pair.spawn(n1, "sleep", "60"), pair.spawn(n1, "-L", "sleep", "61")
    n1.ok("migrate", str(away), "n2")
    before = n1.process(away)
    n1.restart()
    after = n1.process(away)
    assert {key: after[key] for key in ("where", "state", "moves", "since", "command")} == {
        key: before[key] for key in ("where", "state", "moves", "since", "command")
    }
    assert n1.process(home)["locked"] is True
    n2.restart()
    assert n2.guests() == [f"n1-{away}"]
    wait_for(lambda: n1.nodes() == n2.nodes() == {"n1", "n2"})
    n1.ok("migrate", str(away), "home")
    wait_for(lambda: n2.guests() == [])
    n1.ok("migrate", str(away), "n2")
    assert n2.guests() == [f"n1-{away}"]


def test_a_process_that_came_home_while_the_daemon_was_down_is_known_to_be_home(pair: Cluster) -> None:
    n1, n2 = pair.nodes
    pid = pair.spawn(n1, "sleep", "60")
    n1.ok("migrate", str(pid), "n2")
    n1.kill()
    n2.ok("mosctl", "expel")
    wait_for(lambda: not n1.programs())
    n1.restart()
    assert n1.process(pid)["where"] == "home"


def test_expel_and_bring_send_guests_home(pair: Cluster) -> None:
    n1, n2 = pair.nodes
    first, second = pair.spawn(n1, "sleep", "60"), pair.spawn(n1, "sleep", "61")
    for pid in (first, second):
        n1.ok("migrate", str(pid), "n2")
    assert n2.ok("mosctl", "expel", f"n1-{first}") == f"n1-{first} went home\n"
    assert n2.guests() == [f"n1-{second}"]
    wait_for(lambda: n1.process(first)["where"] == "home")
    assert n1.process(first)["why"] == "n2 wants its machine back"
    assert n1.ok("mosctl", "bring") == f"process {second} is at home\n"
    assert n1.ok("mosctl", "bring") == "all are at home\n"


def test_policy_is_obeyed_and_reloaded_live(pair: Cluster) -> None:
    n1, n2 = pair.nodes
    first, second = pair.spawn(n1, "sleep", "60"), pair.spawn(n1, "sleep", "61")
    n2.configure("[lend]\nmax_guests = 1")
    n2.ok("mosctl", "reload")
    n1.ok("migrate", str(first), "n2")
    done = n1.command("migrate", str(second), "n2")
    assert (done.returncode, "n2 refuses it: the node takes at most 1 guests" in done.stderr) == (75, True)
    n2.configure("[lend]\nenabled = false")
    n2.ok("mosctl", "reload")
    wait_for(lambda: n1.process(first)["where"] == "home", message="who lends no more sends its guests home")
    n2.configure("")
    n2.ok("mosctl", "reload")
    n2.ok("mosctl", "block")
    done = n1.command("migrate", str(second), "n2")
    assert (done.returncode, "blocked" in done.stderr) == (75, True)
    n2.restart()
    assert json.loads(n2.ok("mosctl", "status", "--json"))["blocked"] is True
    n2.ok("mosctl", "unblock")
    n1.ok("migrate", str(second), "n2")


def test_a_bad_configuration_is_refused_and_the_old_one_stays(pair: Cluster) -> None:
    pair[2].configure("[lend]\nmax_gusts = 1")
    done = pair[2].command("mosctl", "reload")
    assert done.returncode == 78
    assert "max_gusts" in done.stderr and done.stderr.count("\n") == 1
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[1].ok("migrate", str(pid), "n2")


def test_guests_have_a_control_group_each(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[1].ok("migrate", str(pid), "n2")
    assert list(Path("/sys/fs/cgroup").rglob(f"farhome/guests/n1-{pid}"))


def test_children_of_a_home_process_belong_to_its_job(pair: Cluster) -> None:
    pair.spawn(pair[1], "-J", "shell", "sh", "-c", "sleep 61 & sleep 62 & wait")
    rows = wait_for(lambda: len(found := [row for row in pair[1].processes() if row["job"] == "shell"]) == 3 and found)
    child = next(row for row in rows if row["command"] == "sleep 62")
    pair[1].ok("migrate", str(child["pid"]), "n2")
    assert pair[1].process(child["pid"])["where"] == "n2"
    for row in rows:
        os.kill(row["pid"], signal.SIGKILL)
    wait_for(lambda: pair[1].processes() == [])


def test_a_process_goes_only_to_nodes_that_it_trusts_and_its_children_likewise(three: Cluster) -> None:
    n1, n2, _ = three.nodes
    pid = three.spawn(n1, "--trust", "n3,n4", "sh", "-c", "sleep 61 & sleep 62 & wait")
    rows = wait_for(lambda: len(found := n1.processes()) == 3 and found)
    for row in rows:
        assert row["trust"] == ["n3", "n4"]
        refused = n1.command("migrate", str(row["pid"]), "n2")
        assert (refused.returncode, "n2 is none of the nodes that it may be on" in refused.stderr) == (75, True)
    n1.ok("migrate", str(pid), "n3")
    assert n1.command("migrate", str(pid), "n2").returncode == 75  # a hop
    assert (n1.process(pid)["where"], n2.guests()) == ("n3", [])
    child = next(row["pid"] for row in rows if row["pid"] != pid)
    n1.ok("migrate", str(child), "out")  # of two nodes it may be on one
    assert n1.process(child)["where"] == "n3"
    assert "it may be on n3, n4 and at home, and nowhere else" in n1.ok("mosctl", "why", str(pid))
    assert "trusts n3, n4 alone" in n1.ok("mosps")
    n1.restart()
    assert n1.process(pid)["where"] == "n3"
    assert n1.command("migrate", str(pid), "n2").returncode == 75
    n1.ok("migrate", str(pid), "home")
    for row in rows:
        os.kill(row["pid"], signal.SIGKILL)
    wait_for(lambda: n1.processes() == [])


def test_trust_is_narrowed_by_those_that_a_process_starts_and_never_widened(three: Cluster) -> None:
    n1 = three.nodes[0]
    mosrun = ROOT / "bin" / "mosrun"
    pid = three.spawn(n1, "-T", "n3", "sh", "-c", f"{mosrun} -T n2,n3 sleep 61 & {mosrun} sleep 62 & wait")
    rows = wait_for(lambda: len(found := [row for row in n1.processes() if row["command"].startswith("sleep")]) == 2 and found)
    wait_for(lambda: all(row["trust"] == ["n3"] for row in n1.processes()))
    for row in [*rows, {"pid": pid}]:
        os.kill(row["pid"], signal.SIGKILL)
    wait_for(lambda: n1.processes() == [])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--trust", "n2,,n3"], "is no name for a node"),
        (["--trust", "home"], "is no name for a node"),
        (["-r", "n2", "-T", "n1"], "n2 is none of the nodes that it may be on"),
    ],
)
def test_a_list_of_trusted_nodes_that_makes_no_sense_is_refused(pair: Cluster, options: list[str], words: str) -> None:
    done = pair[1].command("mosrun", *options, "true")
    assert (done.returncode, words in done.stderr, done.stderr.count("\n")) == (64, True, 1)


def test_home_only_is_never_moved(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "-h", "sleep", "60")
    assert pair[1].command("migrate", str(pid), "n2").returncode == 75


def test_a_wanted_node_is_gone_to_at_once(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "-r", "n2", "sleep", "60")
    wait_for(lambda: pair[1].process(pid)["where"] == "n2")
    pair[1].ok("migrate", str(pid), "home")
    assert pair[1].process(pid)["where"] == "home"


def test_a_dead_target_is_a_refusal_within_seconds(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[2].kill()
    done = pair[1].command("migrate", str(pid), "n2")
    assert done.returncode == 75
    assert "n2" in done.stderr and done.stderr.count("\n") == 1
    assert is_running(pid)


def test_a_command_that_waits_survives_the_daemons_death_with_a_sentence(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[1].behave(deputy="hang")
    waiting = subprocess.Popen(
        [sys.executable, "-P", "-m", "cli.migrate", str(pid), "n2"], env=pair[1].environment, stderr=subprocess.PIPE, cwd="/", text=True
    )
    wait_for(lambda: pair[1].process(pid)["state"] == "leaving")
    pair[1].kill()
    _, complaint = waiting.communicate(timeout=10)
    assert waiting.returncode == 69
    assert complaint == "migrate: the mosd of this node went away before it answered\n"


@contextmanager
def memory_in(group: Path, megabytes: int) -> Iterator[None]:
    """Tests' guests move nothing: something else that uses so much stands in the group of one."""
    code = f"import os; os.read(0, 1); x = b'x' * ({megabytes} << 20); os.write(1, b'.'); os.read(0, 1)"
    eater = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        (group / "cgroup.procs").write_text(str(eater.pid))
        assert eater.stdin is not None and eater.stdout is not None
        eater.stdin.write(b"g")
        eater.stdin.flush()
        eater.stdout.read(1)
        yield
    finally:
        eater.kill()
        eater.communicate()


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ('max_memory = "128M"', "the guests on n2 use more memory"),
        ('[[lend.class]]\nname = "ours"\nnodes = ["n1"]\nmax_memory = "128M"', "the guests of class ours on n2 use more memory"),
    ],
    ids=["all", "a class"],
)
def test_the_greatest_guest_goes_home_when_they_use_more_memory_together_than_is_lent(pair: Cluster, policy: str, words: str) -> None:
    n1, n2 = pair.nodes
    small, great = pair.spawn(n1, "sleep", "60"), pair.spawn(n1, "sleep", "61")
    for pid in (small, great):
        n1.ok("migrate", str(pid), "n2")
    groups = {
        pid: group for pid in (small, great) for group in Path("/sys/fs/cgroup").rglob(f"farhome/guests/n1-{pid}")
        if (group / "memory.stat").exists()
    }  # fmt: skip
    if not groups:
        pytest.skip("no memory controller here")
    n2.configure(f"[lend]\n{policy}")
    n2.ok("mosctl", "reload")
    # Neither has more than it may: it is both together.
    with memory_in(groups[small], 60), memory_in(groups[great], 90):
        wait_for(lambda: n1.process(great)["where"] == "home", message="the greatest goes home")
        assert words in n1.process(great)["why"]
        assert n1.process(small)["where"] == "n2"
    wait_for(lambda: not groups[great].exists(), message="its group is removed")
