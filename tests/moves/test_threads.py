"""Threads that end while the process is away."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until
from tests.programs.build import program

pytestmark = pytest.mark.timeout(120)
ROUNDS = 150 if os.environ.get("FARHOME_LONG_TESTS") else 80


def test_a_thread_ends_away_and_the_process_moves_on_and_home(cluster: Cluster) -> None:
    with Running(cluster, "leaver", "400") as leaver:
        leaver.works()
        leaver.moved("n2")
        leaver.works()
        tasks = cluster.home.root / "proc" / str(leaver.pid) / "task"
        assert len(list(tasks.iterdir())) == 2
        (leaver.directory / "go").touch()
        until("the thread ends at home, too", lambda: len(list(tasks.iterdir())) == 1)
        until("it is joined", lambda: "joined" in leaver.lines())
        leaver.works()
        leaver.moved("n3")
        leaver.works()
        leaver.moved(HOME)
        leaver.works()
        leaver.moved("n2")
        leaver.works()
        assert leaver.end() == "status 0\n"
        assert [line for line in leaver.lines() if line != "joined"] == [str(number) for number in range(400)]


def test_threads_are_born_away(cluster: Cluster) -> None:
    """They do not take the process home, and go along when it moves."""
    with Running(cluster, "births", str(ROUNDS)) as births:
        births.moved("n2")
        births.works()
        births.works()
        shown = births.shown()
        assert shown is not None
        assert (shown["where"], shown["moves"]) == ("n2", 1), shown
        births.moved("n3")
        births.works()
        births.moved("n1")
        births.works()
        assert births.end().endswith(f"{ROUNDS} rounds of births\nstatus 0\n")


def test_a_stop_holds_threads_that_are_being_born(cluster: Cluster) -> None:
    with Running(cluster, "births", "400") as births:
        births.moved("n2")
        for _ in range(6):
            births.works()
            assert cluster.home.run("sh", "-c", f"kill -STOP {births.pid}").returncode == 0
            until("the stub is stopped", lambda: {"t", "T"} >= states(births.cluster.home.root / "proc" / str(births.pid)))
            until("all of it stands still", births.stands)
            assert births.stands()
            assert cluster.home.run("sh", "-c", f"kill -CONT {births.pid}").returncode == 0
        births.works()


def states(process: Path) -> set[str]:
    """Returns the states of all threads of a process, which is /proc/PID."""
    found = set()
    for task in (process / "task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            found.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return found


def test_threads_born_away_inherit_from_their_maker(cluster: Cluster, tmp_path: Path) -> None:
    """Priority, processors, rights and the like of the thread that makes it, which is not the first."""
    (tmp_path / "go").touch()
    expected = subprocess.run([program("inherits")], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60).stdout
    with Running(cluster, "inherits", "") as inherits:
        until("it waits", inherits.lines)
        inherits.moved("n2")
        (inherits.directory / "go").touch()
        said = inherits.end()
    assert said.replace(inherits.name, "inherits") == f"{expected}status 0\n"
