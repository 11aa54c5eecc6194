"""The operation `watch`: what a monitor is told, and that of others' processes it is told no more than `mosps -a` tells."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from balancer.decide import Decision
from monitor.picture import Picture, picture_of
from node import process, watching
from node.config import Config, load
from node.control import Client
from node.daemon import Daemon
from node.paths import Paths
from node.registry import HomeProcess
from node.tally import Tally
from node.watching import Watching
from tests.node.nodes import Cluster, Node, wait_for

ASK = "import json; from cli.client import Client; print(json.dumps(Client().call('watch')))"
OWNER, OTHER = 4001, 4002


def watched(node: Node) -> Picture:
    done = subprocess.run(
        [sys.executable, "-P", "-c", ASK], env=node.environment, cwd="/", capture_output=True, text=True, timeout=30, check=True
    )
    return picture_of(json.loads(done.stdout))


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    """One that does nothing by itself; this very process is a home process of OWNER's that has moved once."""
    (tmp_path / "node.toml").write_text('name = "n1"\naddress = "127.0.0.1"\nspeed = 1.0\n')
    config: Config = load(tmp_path / "node.toml")
    paths = Paths(run=tmp_path / "run", state=tmp_path / "state", config=tmp_path / "node.toml")
    paths.make_run_directories()
    made = Daemon(paths, config)
    stat = process.read_stat(os.getpid())
    assert stat is not None
    entry = HomeProcess(os.getpid(), stat.starttime, OWNER, command="x" * 500, since=time.time())
    made.registry.add(replace(entry, history=entry.history.moved(time.time(), "home", "n2", "asked")))
    made.balancer.decisions = {os.getpid(): Decision(os.getpid(), None, "it is best off here")}
    yield made
    made.registry.close()


async def seen_by(daemon: Daemon, uid: int) -> Picture:
    return picture_of(await Watching(daemon).answer(Client(1, uid, asyncio.Event()), {}))


@pytest.mark.parametrize("uid", [0, OWNER])
async def test_owner_and_root_see_what_was_decided_and_moved(daemon: Daemon, uid: int) -> None:
    seen = await seen_by(daemon, uid)
    assert [(one.pid, one.decision) for one in seen.processes] == [(os.getpid(), "it is best off here")]
    assert [(one.pid, one.target) for one in seen.events] == [(os.getpid(), "n2")]


async def test_others_see_the_process_but_neither_moves_nor_decisions(daemon: Daemon) -> None:
    seen = await seen_by(daemon, OTHER)
    assert [(one.pid, one.decision) for one in seen.processes] == [(os.getpid(), "")]
    assert seen.events == ()


async def test_a_node_that_was_known_and_is_forgotten_is_dead(daemon: Daemon) -> None:
    daemon.balancer.gossip.learn("n7", "10.0.0.7", 7226)
    daemon.lending.look()
    assert [(one.name, one.state) for one in (await seen_by(daemon, 0)).nodes] == [("n1", "lends"), ("n7", "dead")]


async def test_of_very_many_processes_those_that_are_not_told_of_are_counted(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MOST_PROCESSES", 0)
    seen = await seen_by(daemon, 0)
    assert (seen.processes, seen.unseen) == ((), 1)


def test_a_picture_has_nodes_processes_guests_moves_and_counts(pair: Cluster) -> None:
    pid = pair.spawn(pair[1], "sleep", "60")
    pair[1].ok("migrate", str(pid), "n2")
    seen = watched(pair[1])
    assert [one.name for one in seen.nodes] == ["n1", "n2"]
    own, other = seen.nodes
    assert own.self
    assert own.closed_why == ""
    assert other.closed_why == ""
    assert (own.owner_state, other.owner_state) == ("lending", "lending")
    assert other.utilisability is not None and 0 <= other.utilisability <= 1
    process = seen.process(pid)
    assert process is not None
    assert (process.where, process.state, process.moves) == ("n2", "away", 1)
    assert [(event.pid, event.source, event.target) for event in seen.events] == [(pid, "home", "n2")]
    assert (seen.counters.out, seen.counters.home, seen.counters.moved_bytes) == (1, 0, 4096)
    (guest,) = wait_for(lambda: watched(pair[2]).guests)
    assert (guest.home, guest.pid) == ("n1", pid)
    pair[1].ok("migrate", str(pid), "home")
    pair[2].ok("mosctl", "block")
    assert pair[1].command("migrate", str(pid), "n2").returncode == 75
    counters = watched(pair[1]).counters
    assert (counters.out, counters.home, counters.failed) == (1, 1, 1)
    assert watched(pair[2]).nodes[1].closed_why != ""
    assert wait_for(lambda: watched(pair[1]).nodes[1].closed_why) == "it is blocked by hand"


def test_counts_are_by_the_kind_of_move() -> None:
    tally = Tally()
    for source, target in (("home", "n2"), ("n2", "n3"), ("n3", "home"), ("home", "n2")):
        tally.made(source, target, 250.0, 1000)
    tally.not_made()
    row = tally.row()
    assert (row["out"], row["hop"], row["home"], row["failed"]) == (2, 1, 1, 1)
    assert (row["frozen_seconds"], row["moved_bytes"]) == (1.0, 4000)
