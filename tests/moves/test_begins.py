"""`mosrun -r NODE`: the program begins on that node, however short it is, or its user gets the reason why it did not."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.moves.cluster import Cluster, until
from tests.moves.workloads import USER
from tests.programs.build import BUILD

pytestmark = pytest.mark.timeout(120)
OLD = 'void _start(void) { __asm__ volatile ("mov $1, %eax; mov $6, %ebx; int $0x80"); }'
"""exit(6), of 32 bits."""
FIVE = "int main(void) { volatile long n; for (n = 0; n < 5000000; n++) ; return 5; }"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a program: its exit status, its standard error, and the history of its process as home knows it."""

    status: int
    said: str
    happened: list[tuple[str, str]]
    output: str


def run(cluster: Cluster, options: str, program: str, user: str = "", least: int = 1) -> Outcome:
    """least: how many happenings are awaited. What the deputy reports may be heard after the end, before which it stands then."""
    done = cluster.home.run("sh", "-c", f"echo $$; exec mosrun {options} {program}", user=user)
    pid, _, output = done.stdout.partition("\n")
    row = until("its end is known", lambda: ended(cluster, pid, least))
    return Outcome(done.returncode, done.stderr, [(h["what"], h["target"]) for h in row], output)


def ended(cluster: Cluster, pid: str, least: int = 1) -> list[dict[str, str]] | None:
    shown = cluster.home.run("mosps", "--why", pid, "--json")
    row = json.loads(shown.stdout) if shown.returncode == 0 else {}
    recent: list[dict[str, str]] = row.get("recent", [])
    return recent if len(recent) >= least and recent[-1]["what"] == "ended" else None


def compiled(cluster: Cluster, name: str, *options: str) -> str:
    built = BUILD / f"begins-{name}"
    built.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-x", "c", "-", "-o", built, *options], input=FIVE.encode(), check=True, timeout=60)
    return placed(cluster, name, built.read_bytes())


def placed(cluster: Cluster, name: str, content: bytes) -> str:
    path = cluster.home.root / "tmp" / f"begins-{name}"
    path.write_bytes(content)
    path.chmod(0o755)
    return str(Path("/tmp") / path.name)


@pytest.mark.parametrize("kind", ["true", "shell", "script", "static", "dynamic, of a user"])
def test_a_short_program_runs_on_the_node_that_is_named_each_time(cluster: Cluster, kind: str) -> None:
    program, status = {
        "true": ("/bin/true", 0), "shell": ("sh -c 'exit 3'", 3), "script": (placed(cluster, "script", b"#!/bin/sh\nexit 4\n"), 4),
        "static": (compiled(cluster, "static", "-static"), 5), "dynamic, of a user": (compiled(cluster, "dynamic"), 5),
    }[kind]  # fmt: skip
    for _ in range(3):
        outcome = run(cluster, "-r n2", program, USER if "user" in kind else "")
        assert outcome == Outcome(status, "", [("moved", "n2"), ("ended", "n2")], "")


def test_the_calls_of_the_program_are_made_on_that_node(cluster: Cluster) -> None:
    """Checks with the node's own records instead of home's registry."""
    outcome = run(cluster, "-r n2 --trace=/tmp/begins-calls", "/bin/true")
    assert (outcome.status, outcome.said) == (0, "")
    calls = (cluster.home.root / "tmp/begins-calls").read_text().splitlines()
    assert any("on n2>" in line for line in calls)
    assert any("exit_group(0)" in line for line in calls)


def test_a_refusing_node_is_reported_and_the_program_runs_at_home(cluster: Cluster) -> None:
    assert cluster.place("n3").run("mosctl", "block").returncode == 0
    try:
        outcome = run(cluster, "-r n3", "sh -c 'echo here; exit 7'")
    finally:
        cluster.place("n3").run("mosctl", "unblock")
    assert (outcome.status, outcome.output) == (7, "here\n")
    assert outcome.happened == [("failed", "n3"), ("ended", "home")]
    assert outcome.said == "mosrun: it does not begin on n3: n3 refuses it: the node is blocked for guests; sh runs at home\n"


def test_a_program_that_cannot_leave_is_reported_on_standard_error(cluster: Cluster) -> None:
    built = BUILD / "begins-old"
    subprocess.run(["gcc", "-m32", "-nostdlib", "-static", "-x", "c", "-", "-o", built], input=OLD.encode(), check=True, timeout=60)
    program = placed(cluster, "old", built.read_bytes())
    if subprocess.run([built], check=False, timeout=10).returncode != 6:
        pytest.skip("this kernel runs no 32-bit programs")
    outcome = run(cluster, "-r n2", program, least=2)
    assert (outcome.status, [what for what, _ in outcome.happened]) == (6, ["failed", "ended"])
    assert re.fullmatch(r"mosrun: it does not begin on n2: it is (not a 64-bit|a 32-bit) [\w ]*program; it runs at home\n", outcome.said)


def test_a_program_that_is_not_there_is_said_once(cluster: Cluster) -> None:
    done = cluster.home.run("mosrun", "-r", "n2", "no-such-program")
    assert (done.returncode, done.stderr) == (127, "mosrun: no-such-program: not found\n")


def test_a_program_requested_at_home_runs_there(cluster: Cluster) -> None:
    assert run(cluster, "-r n1", "true") == Outcome(0, "", [("ended", "home")], "")


@pytest.mark.soak
def test_mosrun_away_begins_where_it_is_and_goes_on_to_the_node_that_is_named(cluster: Cluster) -> None:
    line = "echo $$; exec mosrun -J inner -r n3 sleep 60"
    with cluster.home.popen(["mosrun", "-L", "-r", "n2", "sh", "-c", line], "", stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        pid = int(shell.stdout.readline())
        try:
            until("it is on n3", lambda: (row := cluster.process(pid, "inner")) is not None and row["where"] == "n3", seconds=30)
        finally:
            cluster.home.run("kill", "-KILL", str(pid))
