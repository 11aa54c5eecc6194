"""Resources of a node of the lab, so that tests can report what moves leave behind on it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tests.moves.cluster import Cluster, until

Figures = dict[str, dict[str, int]]
"""The resources of each node."""
LISTENS, WAITS = "0A", "06"
"""States in /proc/net/tcp: a socket that listens; one that is closed, of which the kernel keeps the address for a while."""


def figures(cluster: Cluster, node: str) -> dict[str, int]:
    """Counts the resources of the node's daemon, and of the whole node. Zombies count as processes."""
    root = cluster.place(node).root
    processes = list((root / "proc").glob("[0-9]*"))
    daemons = {process.name: process for process in processes if b"cli.mosd" in read(process / "cmdline")}
    # What it starts has its words for a moment, too.
    (daemon,) = (process for process in daemons.values() if (by := parent(process)) and by not in daemons)
    status = dict(line.split(":", 1) for line in read(daemon / "status").decode().splitlines())
    sockets = [line.split() for line in read(root / "proc/1/net/tcp").decode().splitlines()[1:]]
    return {
        "memory of mosd, KiB": int(status["VmRSS"].split()[0]), "descriptors of mosd": len(list((daemon / "fd").iterdir())),
        "threads of mosd": int(status["Threads"]), "processes": len(processes),
        "namespaces": len({link for process in processes for link in namespaces(process)}),
        "mounts": len(read(root / "proc/1/mounts").splitlines()),
        "cgroups": sum("cgroup.procs" in names for _, _, names in os.walk(root / "sys/fs/cgroup")),   # some go meanwhile
        "listening sockets": sum(1 for fields in sockets if fields[3] == LISTENS),
        "connections": sum(1 for fields in sockets if fields[3] not in (LISTENS, WAITS)),
        "unix sockets": len(read(root / "proc/1/net/unix").splitlines()) - 1,
        "files": sum(1 for path in (root / "run/farhome").rglob("*") if path.suffix != ".log"),
    }  # fmt: skip


def parent(process: Path) -> str:
    """Returns its pid; nothing when the process has gone."""
    fields = read(process / "stat").rpartition(b")")[2].split()
    return fields[1].decode() if fields else ""


def read(path: Path) -> bytes:
    """Nothing when it has gone."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def namespaces(process: Path) -> list[str]:
    try:
        return [os.readlink(link) for link in (process / "ns").iterdir()]
    except OSError:
        return []


def settled(cluster: Cluster, wanted: Figures | None = None) -> Figures:
    """Figures of all nodes that are up, when no deputy or remote is left; and when they are as wanted, if that comes."""

    nodes = [node for node in cluster.names if cluster.lab.node(node).is_alive()]

    def now() -> Figures:
        return {node: figures(cluster, node) for node in nodes}

    def quiet() -> bool:
        return not any(
            b"deputy" in command or b"remote" in command
            for node in nodes for process in (cluster.place(node).root / "proc").glob("[0-9]*")
            if (command := read(process / "cmdline")) and b"that deputies" not in command
        )  # fmt: skip

    until("deputies and remotes have gone", quiet, seconds=40)
    if wanted is not None:
        before = wanted
        with suppress(TimeoutError):
            until("nothing is more than it was", lambda: not more(now(), before), seconds=20, every=0.5)
    return now()


def more(found: Figures, before: Figures) -> list[str]:
    """Lists what has grown; but not memory, some of which a daemon keeps for later."""
    return [
        f"{what} of {node}: {before[node][what]} before, {found[node][what]} now"
        for node in before for what in before[node] if "memory" not in what and found[node][what] > before[node][what]
    ]  # fmt: skip
