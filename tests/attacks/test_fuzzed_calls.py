"""After a guest that makes random system calls, and after one that takes all it can get, its node is as it was before."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.moves.cluster import Cluster, until
from tests.programs.build import program

ROOT = Path(__file__).resolve().parents[2]
STATE = Path(__file__).with_name("host_state.py")
SECONDS = 600 if os.environ.get("FARHOME_LONG_TESTS") else 4
USER = "farhome-a"


@pytest.fixture
def pair() -> Iterator[Cluster]:
    cluster = Cluster(2)
    yield cluster
    cluster.down()


def state(cluster: Cluster) -> dict[str, Any]:
    done = cluster.place("n2").run("/usr/bin/python3", "-I", "-c", STATE.read_text())
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Lists the differences, one per line."""
    found = []
    for kind in ("settings", "files", "users"):
        for name in before[kind].keys() | after[kind].keys():
            was, now = before[kind].get(name), after[kind].get(name)
            if was != now:
                found.append(f"{name} was {was!r} and is {now!r}")
    for kind, was, now in (
        ("mount", before["mounts"], after["mounts"]),
        ("process", before["processes"]["commands"], after["processes"]["commands"]),
        ("namespace", before["processes"]["namespaces"], after["processes"]["namespaces"]),
    ):
        if kind == "mount":  # programs of farhome's own end, and so do their sandboxes
            found += [f"{kind} {one} is gone" for one in set(was) - set(now)]
        found += [f"{kind} {one} is new" for one in set(now) - set(was)]
    return found


def away(cluster: Cluster, argv: list[str], directory: Path) -> subprocess.Popen[bytes]:
    """The program, when it has said that it is ready and has been moved to n2."""
    out = open(directory / "out", "wb")  # noqa: SIM115
    with out:
        process = cluster.home.popen(["mosrun", "-J", "hostile", *argv], USER, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/tmp")
    until("it is ready", lambda: (directory / "out").read_text().startswith("ready"), seconds=30)
    pid = until("it is registered", lambda: cluster.processes("hostile"), seconds=30)[0]["pid"]
    moved = cluster.migrate(pid, "home", "n2")
    assert moved.done, moved.said
    return process


@pytest.mark.timeout(SECONDS + 170)
def test_calls_at_random_change_nothing_of_the_host(pair: Cluster, tmp_path: Path) -> None:
    fuzzed = Path("/opt/farhome") / program("fuzzed").relative_to(ROOT)
    seed = int(os.environ.get("FARHOME_FUZZ_SEED", "1"))
    until("n2 has the file tree of n1", lambda: "/mfs/n1 " in "\n".join(state(pair)["mounts"]), seconds=30)
    calm = state(pair)
    time_of_its_own = set(changes(calm, before := state(pair)))
    process = away(pair, [str(fuzzed), str(SECONDS + 3), str(seed)], tmp_path)
    try:
        process.wait(SECONDS + 90)
    finally:
        process.kill()
        process.wait(20)
    assert process.returncode == 3, "it made no calls"
    end = time.monotonic() + 30

    def left() -> set[str]:
        return set(changes(before, state(pair))) - time_of_its_own

    # Leftovers of ours are there at each check; processes of others come and go.
    found = left()
    while found and time.monotonic() < end:
        found &= left()
    assert not found, f"seed {seed}: " + "\n".join(sorted(found))
    assert pair.home.run("mosctl", "nodes").stdout.count("lends") == 2
