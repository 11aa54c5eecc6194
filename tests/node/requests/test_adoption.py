"""migrate takes a running process that mosrun did not start: whose it must be, what becomes of it, and what is never taken."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.nodes import ROOT, Cluster, wait_for


@pytest.fixture
def pair(kept_pair: Cluster) -> Cluster:
    return kept_pair


@contextlib.contextmanager
def running(*argv: str) -> Iterator[int]:
    child = subprocess.Popen(argv or ("sleep", "60"), stdin=subprocess.DEVNULL)
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait(10)


def test_an_adopted_process_moves_on_request_and_is_locked_against_automatic_moves(pair: Cluster) -> None:
    with running() as pid:
        assert "is on n2" in pair[1].ok("migrate", str(pid), "n2")
        row = pair[1].process(pid)
        assert (row["where"], row["adopted"], row["locked"], row["command"], row["job"]) == ("n2", True, True, "sleep 60", "")
        assert "adopted" in pair[1].ok("mosps")
        assert pair[2].guests() == [f"n1-{pid}"]
        pair[1].ok("migrate", str(pid), "home")
        pair[1].ok("migrate", str(pid), "n2")
        pair[1].ok("mosctl", "bring")
        assert pair[1].process(pid)["moves"] == 4


def test_the_balancer_takes_a_process_on_request(pair: Cluster) -> None:
    with running() as pid:
        assert "process" in pair[1].ok("migrate", str(pid), "balance")
        assert pair[1].process(pid)["locked"] is False
        pair[1].ok("migrate", str(pid), "n2")
        assert pair[1].process(pid)["locked"] is False
    mine = pair.spawn(pair[1], "-L", "sleep", "60")
    pair[1].ok("migrate", str(mine), "balance")
    assert pair[1].process(mine)["locked"] is True, "what mosrun -L said is not taken back"


def test_a_move_that_is_not_made_takes_nothing(pair: Cluster) -> None:
    with running() as pid:
        pair[1].behave(deputy="refuse")
        done = pair[1].command("migrate", str(pid), "n2")
        assert (done.returncode, done.stderr) == (75, f"migrate: process {pid} stays at home: it holds something that cannot move\n")
        assert pair[1].command("migrate", str(pid), "n9").returncode == 64
        assert "it has never left" in pair[1].ok("migrate", str(pid), "home")
        assert pair[1].processes() == []
        assert list((pair[1].run / "registry").iterdir()) == []
        pair[1].behave()
        pair[1].ok("migrate", str(pid), "n2")


def test_after_an_async_request_mosps_shows_why_the_process_did_not_move(pair: Cluster) -> None:
    with running() as pid:
        pair[1].behave(deputy="refuse")
        pair[1].ok("migrate", str(pid), "n2", "--async")
        wait_for(lambda: pair[1].process(pid)["why"] == "it holds something that cannot move")


def test_children_of_an_adopted_process_belong_to_it(pair: Cluster) -> None:
    with running("sh", "-c", "sleep 60 & wait") as pid:
        pair[1].ok("migrate", str(pid), "n2")
        pair[1].ok("migrate", str(pid), "home")
        wait_for(lambda: len(pair[1].processes()) == 2)
        assert all(row["adopted"] and row["locked"] for row in pair[1].processes())
        for row in pair[1].processes():
            if row["pid"] != pid:
                os.kill(row["pid"], signal.SIGKILL)


def test_a_daemon_after_this_one_knows_it_and_its_history(pair: Cluster) -> None:
    with running() as pid:
        pair[1].behave(deputy="refuse")
        pair[1].ok("migrate", str(pid), "n2", "--async")
        wait_for(lambda: pair[1].process(pid)["why"])
        pair[1].behave()
        pair[1].ok("migrate", str(pid), "n2")
        pair[1].ok("migrate", str(pid), "home")
        pair[1].ok("migrate", str(pid), "n2")
        before = json.loads(pair[1].ok("mosps", "--why", str(pid), "--json"))
        pair[1].restart()
        after = json.loads(pair[1].ok("mosps", "--why", str(pid), "--json"))
        assert {key: after[key] for key in ("adopted", "locked", "taken_home", "failed", "recent", "moves")} == {
            key: before[key] for key in ("adopted", "locked", "taken_home", "failed", "recent", "moves")
        }
        assert [count["reason"] for count in after["failed"]] == ["it holds something that cannot move"]
        assert pair[1].command("migrate", str(pair[1].programs()[0]), "n2").returncode == 75, "a deputy of the daemon before"


def test_farhomes_own_and_absent_processes_are_refused_in_one_sentence(pair: Cluster) -> None:
    with running() as pid:
        pair[1].ok("migrate", str(pid), "n2")
        daemon = pair[1].daemon
        assert daemon is not None
        deputy, remote = pair[1].programs()[0], pair[2].programs()[0]
        for node, process, reason in (
            (1, 1, "on which all others hang"), (1, daemon.pid, "it is part of farhome"), (1, deputy, f"deputy of process {pid}"),
            (2, remote, f"it belongs to guest n1-{pid}, which only its home moves"),
        ):  # fmt: skip
            done = pair[node].command("migrate", str(process), "n2" if node == 1 else "n1")
            assert (done.returncode, done.stderr.count("\n")) == (75, 1), done.stderr
            assert reason in done.stderr
            assert json.loads(pair[node].command("moscheck", str(process), "--json").stdout)["can_move"] is False
        assert len(pair[1].processes()) == 1
        assert pair[2].processes() == []
    threads = threading.Thread(target=threading.Event().wait, args=(20,), daemon=True)
    threads.start()
    done = pair[1].command("migrate", str(threads.native_id), "n2")
    said = f"migrate: process {threads.native_id} stays at home: it is a thread of process {os.getpid()}\n"
    assert (done.returncode, done.stderr) == (75, said)


def test_kernel_threads_and_those_that_have_ended(pair: Cluster) -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    done = pair[1].command("migrate", str(child.pid), "n2")
    assert (done.returncode, "it has ended" in done.stderr) == (75, True)
    child.wait()
    assert pair[1].command("migrate", str(child.pid), "n2").returncode == 75
    kernel = [int(path.name) for path in Path("/proc").glob("[0-9]*") if _is_of_the_kernel(path)]
    for pid in kernel[:2]:
        done = pair[1].command("migrate", str(pid), "n2")
        assert (done.returncode, "it is part of the kernel" in done.stderr) == (75, True)


def _is_of_the_kernel(path: Path) -> bool:
    try:
        status = (path / "status").read_text()
    except OSError:
        return False
    return "VmSize" not in status and "State:\tZ" not in status and path.name != "1"


STOPS_MOSRUN = """#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <string.h>
__attribute__((constructor)) static void stop(void) { if (!strcmp(program_invocation_short_name, "mosrun")) raise(SIGSTOP); }
"""


def test_a_mosrun_that_is_slow_to_register_is_waited_for_and_not_taken(pair: Cluster, tmp_path: Path) -> None:
    """Stops mosrun before it registers, for longer than the time in which a process counts as just begun."""
    library = tmp_path / "stops.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-xc", "-", "-o", library], input=STOPS_MOSRUN.encode(), check=True, timeout=60)
    environment = {**pair[1].environment, "LD_PRELOAD": str(library)}
    words = [ROOT / "bin" / "mosrun", "-J", "slow", "sleep", "60"]
    child = subprocess.Popen(words, env=environment, cwd="/", stdin=subprocess.DEVNULL)
    try:
        wait_for(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        threading.Timer(3.0, os.kill, (child.pid, signal.SIGCONT)).start()
        assert "is on n2" in pair[1].ok("migrate", str(child.pid), "n2")
        row = pair[1].process(child.pid)
        assert (row["job"], row["adopted"], row["locked"]) == ("slow", False, False)
    finally:
        child.kill()
        child.wait()
