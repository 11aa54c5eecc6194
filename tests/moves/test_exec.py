"""A program that is executed away is what it would be at home, and is where the one before it was."""

from __future__ import annotations

import os

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until
from tests.moves.workloads import USER

pytestmark = pytest.mark.timeout(120)
SCENARIOS = (
    "plain", "argv0", "no_environment", "signals", "signal_of_thread", "descriptors", "threads", "another_thread", "by_descriptor",
    "in_directory", "script", "long_list", "long_strings", "attributes",
)  # fmt: skip


def told(cluster: Cluster, scenario: str, away: str | None, user: str = "", program: str = "executes.static", stays: bool = False) -> str:
    """What it says, having gone to a node before it executes, and been seen there after it has; away None: it never goes."""
    with Running(cluster, program, scenario, user) as one:
        until("it is ready", lambda: one.lines() == ["ready"])
        if away is not None:
            one.moved(away)
        (one.directory / "go").touch()
        until(f"it has told; it said {one.said!r}", lambda: one.lines() == ["ready", "after"], seconds=20)
        shown = one.shown()
        assert shown is not None
        if away is not None and not stays:
            assert (shown["where"], shown["moves"]) == (away, 1), shown
        elif stays:
            assert shown["where"] == "home", shown
        (one.directory / "end").touch()
        return one.end().replace(one.name, "NAME")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_program_is_executed_away(cluster: Cluster, scenario: str) -> None:
    natively = told(cluster, scenario, None)
    assert natively.endswith("status 0\n")
    assert told(cluster, scenario, "n2") == natively


def test_what_cannot_be_executed_says_why_and_takes_nobody_home(cluster: Cluster) -> None:
    natively = told(cluster, "failures", None)
    assert len(natively.splitlines()) == 26, natively
    assert told(cluster, "failures", "n2") == natively


def test_an_ordinary_users_program(cluster: Cluster) -> None:
    assert told(cluster, "signals", "n2", USER) == told(cluster, "signals", None, USER)


def test_more_arguments_than_a_call_may_have_are_given_at_home(cluster: Cluster) -> None:
    assert told(cluster, "very_long_list", "n2", stays=True) == told(cluster, "very_long_list", None)


def test_a_program_with_libraries(cluster: Cluster) -> None:
    natively = told(cluster, "plain", None, program="executes")
    with Running(cluster, "executes", "plain") as one:
        until("it is ready", lambda: one.lines() == ["ready"])
        one.moved("n2")
        (one.directory / "go").touch()
        (one.directory / "end").touch()
        assert one.end().replace(one.name, "NAME") == natively


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
            until(f"it has told; it said {one.said!r}", lambda: one.lines() == ["ready", "after"], seconds=20)
            assert one.where() == HOME
            (one.directory / "end").touch()
            said = one.end().replace(one.name, "NAME")
            assert cluster.home.run("umount", there).returncode == 0
            return said

    natively = run(None)
    assert " 0, group" in natively and "secure 1" in natively, natively
    assert run("n2") == natively


def test_what_it_is_and_where_it_was_is_seen(cluster: Cluster) -> None:
    with Running(cluster, "executes.static", "argv0") as one:
        until("it is ready", lambda: one.lines() == ["ready"])
        one.moved("n2")
        (one.directory / "go").touch()
        until("it is known by its new name", lambda: str((one.shown() or {}).get("command", "")).startswith("-a strange name after"))
        assert "executed -a strange name" in cluster.home.run("mosps", "--why", str(one.pid)).stdout
        (one.directory / "end").touch()
        assert one.end().endswith("status 0\n")
