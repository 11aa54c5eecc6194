"""Memory protection keys go along: those that are allocated, the memory that has one, and what each thread may do by them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.common.exit_codes import REFUSED
from engine.context import keys
from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until
from tests.programs.build import program

pytestmark = [
    pytest.mark.timeout(240), pytest.mark.skipif(not keys.exist(), reason="this processor, or its kernel, has no protection keys")
]  # fmt: skip


@pytest.fixture
def keyed(cluster: Cluster) -> Iterator[Running]:
    with Running(cluster, "pkeys", "") as one:
        one.works(30)
        yield one
        (one.directory / "enough").touch()


def test_calls_obey_them_wherever_the_process_is(cluster: Cluster, tmp_path: Path) -> None:
    """A call that concerns memory with a key is made at home, by the thread, whose rights no other process can read."""
    with subprocess.Popen([str(program("keyed_calls"))], cwd=tmp_path) as native:
        until("it has made its calls", lambda: (tmp_path / "lines").exists() and (tmp_path / "lines").read_text().count("\n") > 2)
        (tmp_path / "enough").touch()
        assert native.wait(30) == 0
    expected = set((tmp_path / "lines").read_text().splitlines())
    assert len(expected) == 1 and "EFAULT" in str(expected)
    with Running(cluster, "keyed_calls", "") as one:
        one.works(5)
        for target in ("n2", "n3", "n2"):
            before = len(one.lines())
            assert one.move(target).done
            until("it has gone home with a call", lambda: one.where() == HOME, seconds=30)
            until("it goes on", lambda before=before: len(one.lines()) > before + 3, seconds=30)
        (one.directory / "enough").touch()
        assert one.end() == "status 0\n"
        assert set(one.lines()) == expected


def said_of(line: str) -> tuple[str, str]:
    who, _, has = line.partition(": ")
    return who, has


def test_keys_go_out_on_and_home(keyed: Running) -> None:
    expected = set(keyed.lines())
    assert len(expected) == 1 and "allocated 000c" in str(expected) and "keys 23 faults 1" in str(expected)
    for target in ("n2", "n3", HOME, "n2", HOME, "n3"):
        keyed.moved(target)
        keyed.works(30)
        keyed.works(30)
    assert set(keyed.lines()) == expected


def test_a_child_has_them_too_and_a_program_that_is_executed_has_none(keyed: Running) -> None:
    keyed.moved("n2")
    (keyed.directory / "child").touch()
    until("the child has said it", lambda: any(line.startswith("child") for line in keyed.lines()), seconds=30)
    keyed.moved("n3")
    keyed.works(30)
    (keyed.directory / "next").touch()
    assert keyed.end() == "status 0\n"
    found = {said_of(line) for line in keyed.lines()}
    process = next(has for who, has in found if who == "process")
    assert found == {("process", process), ("child", process), ("anew", "first key 1")}


def test_images_and_checkpoints_do_not_hold_them(cluster: Cluster, keyed: Running) -> None:
    refused = cluster.home.run("migrate", str(keyed.pid), "n2", "--engine", "criu")
    assert refused.returncode == REFUSED
    assert "protection keys" in refused.stderr
    keyed.works(30)
