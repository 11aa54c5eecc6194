"""A thousand moves in a row of a mixed set: nothing is lost, and nodes have afterwards what they had before."""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until

MOVES = int(os.environ.get("FARHOME_SOAK_MOVES", "1000"))
NODES = (HOME, "n2", "n3")
GROWTH = 16 << 10
"""KiB that a daemon's memory may grow by: what it keeps of each process that has ended, and what its allocator keeps."""
KINDS = ("threads 4", "threads 16", "maps 500", "advised", "altstack", "pending")


def figures(cluster: Cluster, node: str) -> dict[str, int]:
    """What a node has: of its daemon, and in all."""
    root = cluster.place(node).root
    (daemon,) = (process for process in (root / "proc").glob("[0-9]*") if b"cli.mosd" in read(process / "cmdline"))
    status = dict(line.split(":", 1) for line in read(daemon / "status").decode().splitlines())
    processes = [process for process in (root / "proc").glob("[0-9]*") if read(process / "cmdline")]
    return {
        "memory of mosd, KiB": int(status["VmRSS"].split()[0]), "descriptors of mosd": len(list((daemon / "fd").iterdir())),
        "threads of mosd": int(status["Threads"]), "processes": len(processes),
        "namespaces": len({link for process in processes for link in namespaces(process)}),
        "mounts": len(read(root / "proc/1/mounts").splitlines()),
        "files": sum(1 for path in (root / "run/farhome").rglob("*") if path.suffix != ".log"),
    }  # fmt: skip


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def namespaces(process: Path) -> list[str]:
    try:
        return [os.readlink(link) for link in (process / "ns").iterdir()]
    except OSError:
        return []


def wandering(cluster: Cluster, moves: int, chosen: random.Random) -> Counter[str]:
    """So many moves of all of them, who all end well. Returns how many there were of each kind."""
    made: Counter[str] = Counter()
    with ExitStack() as stack:
        running = [stack.enter_context(Running(cluster, "kinds", kind, command="")) for kind in KINDS]
        counter = stack.enter_context(Running(cluster, "counter", "lines 1000000 20 32"))
        for process in (*running, counter):
            process.works(60)
        while sum(made.values()) < moves:
            process = chosen.choice([*running, counter])
            here = process.where()
            move = cluster.migrate(process.pid, here, chosen.choice([node for node in NODES if node != here]))
            made[move.kind if move.done else f"not done: {move.said}"] += move.done
        for process in running:
            process.works(60)
            (process.directory / "enough").touch()
            assert process.end(60) == "all is as it was\nstatus 0\n"
        counter.works()
        cluster.home.run("kill", "-TERM", str(counter.pid))
        assert counter.end().endswith("status 143\n")
    return made


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_moves_leave_nothing_behind() -> None:
    cluster = Cluster()
    chosen = random.Random(1)
    try:
        wandering(cluster, 60, chosen)
        before = settled(cluster)
        made = wandering(cluster, MOVES, chosen)
        print(f"{dict(made)}")
        after = settled(cluster, before)
        for node in NODES:
            for what in before[node]:
                print(f"{node}, {what}: {before[node][what]} before, {after[node][what]} after {sum(made.values())} moves")
        for node in NODES:
            grown = after[node].pop("memory of mosd, KiB") - before[node].pop("memory of mosd, KiB")
            assert grown < GROWTH, f"mosd of {node} has grown by {grown} KiB"
        more = {f"{what} of {node}" for node in NODES for what in before[node] if after[node][what] > before[node][what]}
        assert not more
    finally:
        cluster.down()


def settled(cluster: Cluster, wanted: dict[str, dict[str, int]] | None = None) -> dict[str, dict[str, int]]:
    """Figures of all nodes, when no deputy or remote is left; and when they are as wanted, if that comes."""

    def now() -> dict[str, dict[str, int]]:
        return {node: figures(cluster, node) for node in NODES}

    def quiet() -> bool:
        return not any(
            b"deputy" in command or b"remote" in command
            for node in NODES for process in (cluster.place(node).root / "proc").glob("[0-9]*")
            if (command := read(process / "cmdline")) and b"that deputies" not in command
        )  # fmt: skip

    until("deputies and remotes have gone", quiet, seconds=40)
    if wanted is not None:
        try:
            until("nothing is more than it was", lambda: no_more(now(), wanted), seconds=20, every=0.5)
        except TimeoutError:
            pass
    return now()


def no_more(found: dict[str, dict[str, int]], before: dict[str, dict[str, int]]) -> bool:
    return all(found[node][what] <= before[node][what] for node in before for what in before[node] if "memory" not in what)
