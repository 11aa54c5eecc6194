"""A program that is executed away is what it would be at home, and is where the one before it was."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

import pytest

from kernel_helpers.process.injection.beside import runs_anywhere
from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until
from tests.moves.outcome import PATH
from tests.moves.storm import EXCUSED, Mover, new_seed
from tests.moves.workloads import USER

pytestmark = pytest.mark.timeout(120)
SCENARIOS = (
    "plain", "argv0", "no_environment", "signals", "signal_of_thread", "descriptors", "threads", "another_thread", "without_leader",
    "by_descriptor", "in_directory", "script", "long_list", "long_strings", "attributes",
)  # fmt: skip


def output(cluster: Cluster, scenario: str, away: str | None, user: str = "", program: str = "executes.static", stays: bool = False) -> str:
    """Runs a scenario, returns its output. The program moves to `away` before it executes, and must be there afterwards; None: no move."""
    with Running(cluster, program, scenario, user) as one:
        until("it is ready", lambda: one.lines() == ["ready"])
        if away is not None:
            one.moved(away)
        (one.directory / "go").touch()
        until(f"it has reported; its output is {one.said!r}", lambda: one.lines() == ["ready", "after"], seconds=20)
        if stays:
            until("it is shown at home", lambda: (one.shown() or {}).get("where") == "home")
        shown = one.shown()
        assert shown is not None
        if away is not None and not stays:
            assert (shown["where"], shown["moves"]) == (away, 1), shown
        (one.directory / "end").touch()
        return one.end().replace(one.name, "NAME")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_program_is_executed_away(cluster: Cluster, scenario: str) -> None:
    natively = output(cluster, scenario, None)
    assert natively.endswith("status 0\n")
    assert output(cluster, scenario, "n2") == natively


def test_a_failed_exec_returns_its_error_and_the_process_stays_away(cluster: Cluster) -> None:
    natively = output(cluster, "failures", None)
    assert len(natively.splitlines()) == 26, natively
    assert output(cluster, "failures", "n2") == natively


def test_an_ordinary_users_program(cluster: Cluster) -> None:
    assert output(cluster, "signals", "n2", USER) == output(cluster, "signals", None, USER)


def test_more_arguments_than_a_call_may_have_are_given_at_home(cluster: Cluster) -> None:
    assert output(cluster, "very_long_list", "n2", stays=True) == output(cluster, "very_long_list", None)


def test_a_program_with_libraries(cluster: Cluster) -> None:
    assert output(cluster, "plain", "n2", program="executes") == output(cluster, "plain", None, program="executes")


def test_a_setuid_program_has_its_rights_and_stays_at_home(cluster: Cluster) -> None:
    def run(away: str | None) -> str:
        with Running(cluster, "executes.static", "setuid_program", USER) as one:
            until("it is ready", lambda: one.lines() == ["ready"])
            setuid = one.directory / "rights" / "setuid"
            setuid.parent.mkdir()
            there = f"/tmp/{one.name}/rights"  # where setuid counts
            assert cluster.home.run("mount", "-t", "tmpfs", "-o", "suid", "tmpfs", there).returncode == 0
            setuid.write_bytes((one.directory / one.name).read_bytes())
            os.chown(setuid, 0, 0)
            setuid.chmod(0o4755)
            if away:
                one.moved(away)
            (one.directory / "go").touch()
            until(f"it has reported; its output is {one.said!r}", lambda: one.lines() == ["ready", "after"], seconds=20)
            until("its node knows that it is at home", lambda: one.where() == HOME)  # the node is notified after the program has started
            (one.directory / "end").touch()
            said = one.end().replace(one.name, "NAME")
            assert cluster.home.run("umount", there).returncode == 0
            return said

    natively = run(None)
    assert " 0, group" in natively and "secure 1" in natively, natively
    assert run("n2") == natively


def test_the_new_name_and_the_history_of_an_executing_process_are_shown(cluster: Cluster) -> None:
    with Running(cluster, "executes.static", "argv0") as one:
        until("it is ready", lambda: one.lines() == ["ready"])
        one.moved("n2")
        (one.directory / "go").touch()
        until("it is known by its new name", lambda: str((one.shown() or {}).get("command", "")).startswith("-a strange name after"))
        assert "executed -a strange name" in cluster.home.run("mosps", "--why", str(one.pid)).stdout
        (one.directory / "end").touch()
        assert one.end().endswith("status 0\n")


BEARS = "import os, threading, time; os.read(0, 1); threading.Thread(target=time.sleep, args=(1000,)).start(); os.fork(); time.sleep(1000)"


def test_what_is_born_or_executed_away_runs_on_any_processor(cluster: Cluster) -> None:
    """Here and there: threads are bound to one for a moment, while calls are made in them."""
    with Running(cluster, "executes.static", "plain") as one:
        until("it is ready", lambda: one.lines() == ["ready"])
        one.moved("n2")
        (one.directory / "go").touch()
        until("it is another program", lambda: one.lines() == ["ready", "after"])
        until("they run anywhere", lambda: all(runs_anywhere(pid) for pid in one.host_pids()), seconds=5)
        assert len(one.host_pids()) == 2
        (one.directory / "end").touch()
        one.end()
    name = f"born{os.getpid()}"
    argv = ["env", "-i", f"PATH={PATH}", "mosrun", "-L", "-r", "n2", "-J", name, "--", "bash", "-c", f'exec -a {name} python3 -c "{BEARS}"']
    with cluster.home.popen(argv, "", stdin=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(b"x")
            process.stdin.flush()
            tasks = until("a thread and a child are born", lambda: found if len(found := tasks_of(name)) == 6 else None, seconds=20)
            until("they run anywhere", lambda: all(runs_anywhere(tid) for tid in tasks), seconds=5)
        finally:
            process.kill()
            cluster.home.run("pkill", "-KILL", "-f", name)


def test_programs_that_follow_one_another_connect_nothing(cluster: Cluster) -> None:
    """Of twenty the first comes by a conversation, since its files, and the place for it, have to be known."""

    def connections() -> int:
        names, values = (line.split() for line in cluster.home.run("cat", "/proc/net/snmp").stdout.splitlines() if line.startswith("Tcp:"))
        return int(values[names.index("ActiveOpens")])

    with Running(cluster, "executes.static", "collect 20") as one:
        one.moved("n2")
        before = connections()
        (one.directory / "go").touch()
        until("all have been executed", lambda: one.lines()[-1:] == ["0"], seconds=60)
        made = connections() - before
        assert one.where() == "n2"
        (one.directory / "end").touch()
        assert one.end() == f"{one.pid}: done, 0 signals\nstatus 7\n"
        assert made < 12, made  # two for each, if they came by conversations; a few are the daemon's


def tasks_of(name: str) -> list[int]:
    """The threads of all processes on this machine that are called so."""
    found: list[int] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(name.encode() + b"\0"):
                found += map(int, os.listdir(f"/proc/{pid}/task"))
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("steps", [50, pytest.param(200, marks=pytest.mark.soak)])
def test_a_storm_of_moves_over_programs_that_execute_one_another(cluster: Cluster, steps: int) -> None:
    """Each step is made once, and every move is."""
    seed = new_seed()
    print(f"FARHOME_SEED={seed}")
    with Running(cluster, "executes.static", f"collect {steps}") as one:
        mover = Mover(cluster, one.job, seed, (0.05, 0.4))
        mover.start()
        try:
            (one.directory / "go").touch()
            until("all steps and some moves are made", lambda: one.lines()[-1:] == ["0"] and len(mover.done()) > 2, seconds=240)
            (one.directory / "end").touch()
            said = one.end()
        finally:
            moves = mover.stop()
        print(*moves, sep="\n")
        assert one.lines() == [str(number) for number in range(steps, -1, -1)]
        assert said == f"{one.pid}: done, 0 signals\nstatus 7\n"
        assert [str(move) for move in moves if not move.done and not EXCUSED.search(move.said)] == []


def test_moves_that_meet_an_execution_are_made(cluster: Cluster) -> None:
    with Running(cluster, "executes.static", "again 100000") as one:
        one.moved("n2")
        for _ in range(4):
            one.moved("n3")
            one.moved("n2")
        one.moved(HOME)
        assert cluster.home.run("sh", "-c", f"kill -9 {one.pid}").returncode == 0
        one.end()
        assert one.lines() == [str(number) for number in range(100000, 100000 - len(one.lines()), -1)]


@pytest.mark.parametrize("children", [20, pytest.param(60, marks=pytest.mark.soak)])
def test_programs_started_by_a_shell_run_where_the_shell_is(cluster: Cluster, children: int) -> None:
    with Running(cluster, "executes.static", f"shell {children}") as one:
        until("it is ready", lambda: one.lines() == ["ready"])
        one.moved("n2")
        (one.directory / "go").touch()
        until("all have ended", lambda: one.lines() == ["ready", "after"], seconds=60)
        shown = one.shown()
        assert shown is not None
        assert (shown["where"], shown["moves"]) == ("n2", 1), shown
        log = (cluster.home.root / "run" / "farhome" / "log" / f"deputy-{one.pid}.log").read_text()
        assert log.count("executes a program on n2") == children
        (one.directory / "end").touch()
        assert one.end() == "".join(f"child {number} ended with {number}\n" for number in range(children)) + "status 0\n"


def test_pipelines_are_started_away(cluster: Cluster) -> None:
    """While one of a tree arrives the deputy connects the link of another: neither waits for the other."""
    script = "read go; for i in 1 2 3 4 5 6; do echo $i | cat | cat & done; wait; echo over"
    job = "pipelines"
    argv = ["env", "-i", f"PATH={PATH}", "mosrun", "-L", "-J", job, "--", "bash", "-c", script]
    with cluster.home.popen(argv, "", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            shell = until("it is registered", lambda: next(iter(cluster.processes(job)), None))
            move = cluster.migrate(shell["pid"], HOME, "n2")
            assert move.done, str(move)
            said, _ = process.communicate("\n", timeout=60)
        finally:
            process.kill()
    assert sorted(said.split()) == ["1", "2", "3", "4", "5", "6", "over"]
    log = (cluster.place("n2").root / "run" / "farhome" / "log" / f"remote-n1-{shell['pid']}.log").read_text()
    assert "a caller was refused" not in log
    assert "WARNING" not in log.replace("WARNING the link to n1 is broken: closed by the other side", "")


@pytest.mark.parametrize(("programs", "signals"), [(20, 100), pytest.param(60, 300, marks=pytest.mark.soak)])
def test_no_signal_is_lost_between_programs(cluster: Cluster, programs: int, signals: int) -> None:
    """Nor comes twice: those that wait go from program to program, while others come."""
    sender = "import os, time; [os.kill({pid}, 34) or time.sleep(0.005) for _ in range({signals})]"
    with Running(cluster, "executes.static", f"collect {programs}") as one:
        one.moved("n2")
        (one.directory / "go").touch()
        one.works()
        assert cluster.home.run("python3", "-c", sender.format(pid=one.pid, signals=signals)).returncode == 0
        until("it has executed all", lambda: one.lines()[-1:] == ["0"], seconds=60)
        assert one.where() == "n2"
        (one.directory / "end").touch()
        assert one.end() == f"{one.pid}: done, {signals} signals\nstatus 7\n"


@pytest.mark.parametrize(("programs", "stops"), [(150, 2), pytest.param(300, 8, marks=pytest.mark.soak)])
def test_a_stop_holds_it_between_programs_too(cluster: Cluster, programs: int, stops: int) -> None:
    with Running(cluster, "executes.static", f"again {programs}") as one:
        one.moved("n2")
        for _ in range(stops):
            one.works()
            assert cluster.home.run("sh", "-c", f"kill -STOP {one.pid}").returncode == 0
            until("it is stopped", lambda: stopped(cluster, one.pid))
            until("it stands still", lambda: stands(one))
            assert stands(one)
            assert cluster.home.run("sh", "-c", f"kill -CONT {one.pid}").returncode == 0
        one.works()
        assert one.end().endswith("status 7\n")
        assert one.lines() == [str(number) for number in range(programs, -1, -1)]


def stopped(cluster: Cluster, pid: int) -> bool:
    return (cluster.home.root / "proc" / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] in "Tt"


def stands(one: Running) -> bool:
    before = len(one.lines())
    time.sleep(0.4)
    return len(one.lines()) == before
