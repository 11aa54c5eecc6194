"""Common properties of all commands: one sentence for a user's mistake, documented exit codes, help with examples, permissions."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from cli import migrate, mosctl, mosd, mosps
from cli.common.command import format_age, table
from lab import Lab
from tests.node.conftest import new_pair, pair  # noqa: F401
from tests.node.nodes import Cluster, wait_for

ROOT = Path(__file__).resolve().parents[2]


def run(tmp_path: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "bin" / argv[0]), *argv[1:]], text=True, capture_output=True, timeout=20, check=False,
        env={**os.environ, "FARHOME_RUN": str(tmp_path), "FARHOME_CONFIG": str(tmp_path / "x.toml")},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["migrate"], 64), (["migrate", "x", "home"], 64), (["migrate", "0", "home"], 64), (["migrate", "9" * 30, "home"], 64),
        (["mosctl", "why", "-3"], 64),
        (["migrate", "1"], 64), (["migrate", "1", "home", "--what"], 64),
        (["mosps", "--what"], 64), (["mosps", "extra"], 64), (["mosps", "-J"], 64),
        (["mosctl"], 64), (["mosctl", "dance"], 64), (["mosctl", "cluster"], 64), (["mosctl", "why"], 64), (["mosctl", "why", "n2"], 69),
        (["mosctl", "cluster", "token", "n2", "--minutes", "soon"], 64), (["mosd", "--what"], 64),
        (["migrate", "1", "home"], 69), (["mosps"], 69), (["mosps", "--guests"], 69), (["mosctl", "status"], 69), (["mosctl", "nodes"], 69),
        (["mosctl", "reload"], 69), (["mosctl", "block"], 69), (["mosctl", "expel"], 69), (["mosctl", "bring"], 69),
        (["mosctl", "why", "1"], 69), (["mosctl", "cluster", "init"], 78), (["mosd"], 78), (["mosd", "--config", "/nonexistent"], 78),
    ],
)  # fmt: skip
def test_mistakes_and_no_daemon_are_one_sentence(tmp_path: Path, argv: list[str], code: int) -> None:
    done = run(tmp_path, *argv)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done.stderr
    assert done.stderr.startswith(argv[0])


def test_the_steps_of_a_move_are_listed_by_whether_the_process_ran() -> None:
    steps = [("place reserved", 7.25, False), ("stopped", 0.5, True), ("memory ahead", 1234.5, False)]
    assert migrate.made_of([{"step": name, "ms": ms, "frozen": frozen} for name, ms, frozen in steps]) == [
        "while it ran:", "      7.2 ms  place reserved", "   1234.5 ms  memory ahead", "while it stood still:", "      0.5 ms  stopped",
    ]  # fmt: skip
    assert migrate.made_of([]) == []


@pytest.mark.parametrize("command", ["migrate", "mosps", "mosctl", "mosd", "mosrun"])
def test_help_has_examples_and_exit_codes(tmp_path: Path, command: str) -> None:
    done = run(tmp_path, command, "--help")
    assert done.returncode == 0
    assert "examples:" in done.stdout
    assert "exit codes:" in done.stdout


def test_every_parser_can_be_made() -> None:
    assert [module.parser().prog for module in (migrate, mosctl, mosd, mosps)] == ["migrate", "mosctl", "mosd", "mosps"]


@pytest.mark.parametrize(
    ("redirection", "code", "lines"), [(">/dev/full", 1, 1), (">&-", 0, 0), ("2>&- --nonsense", 64, 0), ("| true", 0, 0)]
)
def test_output_that_goes_nowhere_is_no_traceback(pair: Cluster, redirection: str, code: int, lines: int) -> None:  # noqa: F811
    line = f"{ROOT}/bin/mosps {redirection}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], env=pair[1].environment, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", lines), done.stderr


def test_an_argument_that_is_no_text_is_a_usage_error(pair: Cluster) -> None:  # noqa: F811
    done = subprocess.run(
        [ROOT / "bin" / "migrate", b"1", b"\xff"], env=pair[1].environment, capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (64, 1), done.stderr


def test_a_closed_output_pipe_gives_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{ROOT}/bin/mosctl --help | true; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True, timeout=20, check=False
    )
    assert "Traceback" not in done.stderr


def test_a_user_may_act_on_his_own_processes_only(lab3: Lab) -> None:
    node = lab3.node("n1")

    def run_as(user: str, *argv: str) -> subprocess.CompletedProcess[str]:
        return node.run(list(argv), user=user, timeout=60, text=True, capture_output=True)

    with node.popen(["mosrun", "sleep", "60"], user="farhome-a") as child:
        try:
            rows = wait_for(lambda: json.loads(run_as("root", "mosps", "--json").stdout))
            pid = str(rows[0]["pid"])
            assert rows[0]["user"] == "farhome-a"
            for argv in (["migrate", pid, "n2"], ["mosctl", "why", pid]):
                done = run_as("farhome-b", *argv)
                assert (done.returncode, done.stderr) == (77, f"{argv[0]}: process {pid} belongs to farhome-a\n")
            assert pid not in run_as("farhome-b", "mosps").stdout
            assert pid in run_as("farhome-b", "mosps", "-a").stdout
            assert pid in run_as("farhome-a", "mosps").stdout
            assert run_as("farhome-a", "mosctl", "why", pid).returncode == 0
            assert run_as("farhome-a", "migrate", pid, "home").returncode == 0
            assert run_as("farhome-b", "mosctl", "bring").stdout == "all are at home\n"
            for verb in ("block", "unblock", "expel", "reload"):
                assert run_as("farhome-a", "mosctl", verb).returncode == 77
            assert run_as("farhome-a", "mosctl", "cluster", "token", "n2").returncode == 77
        finally:
            child.kill()


def test_unknown_nodes_and_processes(pair: Cluster) -> None:  # noqa: F811
    pid = pair.spawn(pair[1], "sleep", "60")
    assert pair[1].command("migrate", str(pid), "n9").stderr == "migrate: no node n9 is known\n"
    assert pair[1].command("migrate", "1", "home").returncode == 75
    assert pair[1].command("migrate", "4194304", "home").returncode == 75
    assert pair[1].command("mosctl", "expel", "n9-1").returncode == 64
    assert pair[1].command("mosrun", "-r", "n9", "true").returncode == 64


def test_a_second_daemon_does_not_start_over_the_first(pair: Cluster) -> None:  # noqa: F811
    done = pair[1].command("mosd")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "already running" in done.stderr
    pair[1].ok("mosctl", "status")


def test_tables_line_up() -> None:
    assert table(("A", "B"), [("x", 1), ("long", 22)], frozenset({1})) == "A      B\nx      1\nlong  22"
    assert [format_age(seconds) for seconds in (0.9, 59, 61, 3600, 90000)] == ["0s", "59s", "1m01", "1h00", "1d"]
