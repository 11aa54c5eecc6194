"""Processes of many kinds, each moved fifty times: each compares all of its memory with what it wrote, and its state with what it was."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster

NODES = (HOME, "n2", "n3")
MOVES = 50
KINDS = {
    "4 threads": "threads 4", "64 threads": "threads 64", "2,000 mappings": "maps 2000", "guard pages": "guards",
    "advised and locked memory": "advised", "a handler on its alternate stack": "altstack", "pending signals": "pending",
    "sleeps": "sleep",
}  # fmt: skip


def wander(process: Running, moves: int, chosen: random.Random, every: Callable[[], object]) -> None:
    """Makes that many moves, each to another node than the present one."""
    done = 0
    for _ in range(3 * moves):
        here = process.where()
        done += process.move(chosen.choice([node for node in NODES if node != here])).done
        every()
        if done == moves:
            return
    raise AssertionError(f"only {done} of {moves} moves were made")


@pytest.mark.parametrize(
    "arguments", [pytest.param(words, id=name, marks=pytest.mark.soak if name == "4 threads" else ()) for name, words in KINDS.items()]
)
@pytest.mark.timeout(300)
def test_a_few_moves(cluster: Cluster, arguments: str) -> None:
    moved(cluster, arguments, 3)


@pytest.mark.soak
@pytest.mark.parametrize("arguments", KINDS.values(), ids=KINDS.keys())
@pytest.mark.timeout(900)
def test_fifty_moves(cluster: Cluster, arguments: str) -> None:
    moved(cluster, arguments, MOVES)


def moved(cluster: Cluster, arguments: str, moves: int) -> None:
    with Running(cluster, "kinds", arguments) as process:
        process.works(30)
        wander(process, moves, random.Random(arguments), lambda: process.works(30))
        (process.directory / "enough").touch()
        assert process.end(60) == "all is as it was\nstatus 0\n"


PYTHON = """
import hashlib, os
block = bytearray(os.urandom(1 << 20) * 200)
digest = hashlib.md5(block).digest()
lines = open("lines", "a")
while not os.path.exists("enough"):
    assert hashlib.md5(block).digest() == digest
    print(1, file=lines, flush=True)
print("all is as it was")
"""
NODE = """
const fs = require("fs"), crypto = require("crypto"), all = [];
for (let i = 0; i < 400; i++) all.push({i, bytes: crypto.randomBytes(65536)});
function sum() { const hash = crypto.createHash("md5"); for (const one of all) hash.update(one.bytes); return hash.digest("hex"); }
const first = sum();
function round() {
    if (sum() !== first) process.exit(3);
    fs.appendFileSync("lines", "1\\n");
    if (fs.existsSync("enough")) console.log("all is as it was"); else setTimeout(round, 1);
}
round();
"""
JAVA = ("-XX:-UsePerfData", "-XX:+UseG1GC", "-XX:ParallelGCThreads=2", "-Xmx64m", "/opt/farhome/tests/programs/Keeps.java")
"""The options choose a collector with threads of its own, which move the heap while the program runs."""
RUNTIMES = {
    "Python, 200 MB": f"python3 -c '{PYTHON}'", "node.js": f"node -e '{NODE}'", "JVM": " ".join(("java", *JAVA, "3")),
}  # fmt: skip


@pytest.mark.timeout(300)
def test_a_few_moves_of_a_jvm(cluster: Cluster) -> None:
    runtime_moved(cluster, RUNTIMES["JVM"], 3)


@pytest.mark.soak
@pytest.mark.parametrize("command", RUNTIMES.values(), ids=RUNTIMES.keys())
@pytest.mark.timeout(900)
def test_fifty_moves_of_a_runtime(cluster: Cluster, command: str) -> None:
    runtime_moved(cluster, command, MOVES)


def runtime_moved(cluster: Cluster, command: str, moves: int) -> None:
    name = command.split(maxsplit=1)[0]
    if cluster.home.run("which", name).returncode:
        pytest.skip(f"{name} is not installed")
    with Running(cluster, "kinds", "", command=command) as process:
        process.works(60)
        wander(process, moves, random.Random(command), lambda: process.works(60))
        (process.directory / "enough").touch()
        assert process.end(60) == "all is as it was\nstatus 0\n"
