"""The operation `watch`: what a monitor receives; of other users' processes it receives no more than `mosps -a` shows."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from balancer.decisions.decide import Decision
from monitor.drawings.timeline import is_unheard
from monitor.picture import Listing, Picture, listing_of, picture_of
from node.common import process
from node.common.config import Config, load
from node.common.paths import Paths
from node.daemon import Daemon
from node.moves.home_process import HomeProcess
from node.moves.move_counts import MoveCounts
from node.requests import watching
from node.requests.control import BadRequest, Client
from node.requests.watching import NoAnswer, Watching
from tests.node.nodes import Cluster, Node, wait_for

ASK = "import json; from cli.common.client import Client; print(json.dumps(Client().call('{}'{})))"
OWNER, OTHER = 4001, 4002


def asked(node: Node, operation: str, fields: str = "") -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", ASK.format(operation, fields)], env=node.environment, cwd="/", capture_output=True, text=True,
        timeout=30, check=True,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def watched(node: Node) -> Picture:
    return picture_of(asked(node, "watch"))


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    """A daemon that does nothing by itself; this very process is a home process of OWNER's that has moved once."""
    (tmp_path / "node.toml").write_text('name = "n1"\naddress = "127.0.0.1"\nspeed = 1.0\n')
    config: Config = load(tmp_path / "node.toml")
    paths = Paths(run=tmp_path / "run", state=tmp_path / "state", config=tmp_path / "node.toml")
    paths.make_run_directories()
    made = Daemon(paths, config)
    stat = process.read_stat(os.getpid())
    assert stat is not None
    entry = HomeProcess(os.getpid(), stat.starttime, OWNER, command="x" * 500, since=time.time())
    made.parts.registry.add(replace(entry, history=entry.history.moved(time.time(), "home", "n2", "asked")))
    made.parts.balancer.decisions = {os.getpid(): Decision(os.getpid(), None, "it is best off here")}
    yield made
    made.parts.registry.close()


async def peer_listing(daemon: Daemon, user: str, root: bool = False) -> Listing:
    return listing_of({"node": "n1"} | await Watching(daemon.parts).for_peer({"user": user, "root": root}))


async def seen_by(daemon: Daemon, uid: int) -> Picture:
    return picture_of(await Watching(daemon.parts).answer(Client(1, uid, asyncio.Event()), {}))


@pytest.mark.parametrize("uid", [0, OWNER])
async def test_owner_and_root_see_decisions_and_moves(daemon: Daemon, uid: int) -> None:
    seen = await seen_by(daemon, uid)
    assert [(one.pid, one.decision) for one in seen.processes] == [(os.getpid(), "it is best off here")]
    assert [(one.pid, one.what, one.target) for one in seen.events] == [(os.getpid(), "born", "home"), (os.getpid(), "moved", "n2")]


async def test_others_see_the_process_but_neither_moves_nor_decisions(daemon: Daemon) -> None:
    seen = await seen_by(daemon, OTHER)
    assert [(one.pid, one.decision) for one in seen.processes] == [(os.getpid(), "")]
    assert seen.events == ()


async def test_a_user_of_another_node_sees_the_same_as_the_user_of_that_name_here(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    users = {"ann": OWNER, "bob": OTHER}
    monkeypatch.setattr(watching, "_uid_of", users.get)
    for user, root, command, decision in (
        ("ann", False, "x" * 120, "it is best off here"), ("bob", False, "x" * 120, ""), ("eve", False, "", ""),
        ("root", False, "", ""), ("eve", True, "x" * 120, ""), ("root", True, "x" * 120, ""),
    ):  # fmt: skip
        (seen,) = (await peer_listing(daemon, user, root)).processes
        assert (seen.pid, seen.home, seen.command, seen.decision) == (os.getpid(), "n1", command, decision), user


async def test_a_request_for_processes_without_a_name_is_refused(daemon: Daemon) -> None:
    with pytest.raises(ValueError, match="name"):
        await Watching(daemon.parts).for_peer({"root": True})


async def test_processes_of_a_node_that_is_not_known_or_does_not_answer_are_refused_with_a_sentence(daemon: Daemon) -> None:
    client = Client(1, OWNER, asyncio.Event())
    with pytest.raises(BadRequest, match="no other node n9"):
        await Watching(daemon.parts).of_node(client, {"node": "n9"})
    daemon.parts.cluster.gossip.learn("n9", "127.0.0.1", 1)
    with pytest.raises(NoAnswer, match="n9 does not report its processes"):
        await Watching(daemon.parts).of_node(client, {"node": "n9"})


def test_another_node_lists_its_processes_and_guests(pair: Cluster) -> None:
    own, guest = pair.spawn(pair[2], "sleep", "60"), pair.spawn(pair[1], "sleep", "61")
    pair[1].ok("migrate", str(guest), "n2")
    listing = listing_of(asked(pair[1], "processes", ", node='n2'"))
    assert [(one.pid, one.home, one.command, one.where) for one in listing.processes] == [(own, "n2", "sleep 60", "home")]
    assert [(one.home, one.pid, one.command) for one in listing.guests] == [("n1", guest, "sleep 61")]


async def test_a_node_that_was_known_and_is_forgotten_is_dead(daemon: Daemon) -> None:
    daemon.parts.cluster.gossip.learn("n7", "10.0.0.7", 7226)
    daemon.parts.lending.poll()
    assert [(one.name, one.state) for one in (await seen_by(daemon, 0)).nodes] == [("n1", "lends"), ("n7", "dead")]


async def test_processes_left_out_of_a_long_listing_are_counted(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert [(event.pid, event.what, event.target) for event in seen.events] == [(pid, "born", "home"), (pid, "moved", "n2")]
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
    counts = MoveCounts()
    for source, target in (("home", "n2"), ("n2", "n3"), ("n3", "home"), ("home", "n2")):
        counts.made(source, target, 250.0, 1000)
    counts.not_made()
    row = counts.row()
    assert (row["out"], row["hop"], row["home"], row["failed"]) == (2, 1, 1, 1)
    assert (row["frozen_seconds"], row["moved_bytes"]) == (1.0, 4000)


async def test_progress_that_is_reported_late_is_not_shown_for_ever(daemon: Daemon) -> None:
    late = {"sent": 3, "total": 100, "round": 1, "left": 0}
    daemon.parts.mover.progressed(os.getpid(), late)
    assert [one.share for one in (await seen_by(daemon, 0)).processes] == [None]
    async with daemon.parts.mover.holding(os.getpid()):
        daemon.parts.mover.progressed(os.getpid(), late)
        assert [one.share for one in (await seen_by(daemon, 0)).processes] == [0.03]
    assert [one.share for one in (await seen_by(daemon, 0)).processes] == [None]


async def test_a_child_that_is_born_away_has_its_birth_there(daemon: Daemon) -> None:
    parent = daemon.parts.registry.get(os.getpid())
    assert parent is not None
    with subprocess.Popen(["sleep", "60"]) as child:
        daemon.parts.registry.take_child(parent, child.pid, state="away", where="n2", born="n2")
        (birth,) = [one for one in (await seen_by(daemon, 0)).events if one.pid == child.pid]
        child.kill()
    assert (birth.what, birth.target) == ("born", "n2")
    assert abs(birth.at - time.time()) < 60


async def test_the_end_of_a_process_that_was_never_away_is_no_event(daemon: Daemon) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        stat = process.read_stat(child.pid)
        assert stat is not None
        daemon.parts.registry.add(HomeProcess(child.pid, stat.starttime, OWNER, since=time.time()))
        child.kill()
    async with asyncio.timeout(10):
        while child.pid not in daemon.parts.registry.ended:
            await asyncio.sleep(0.01)
    assert child.pid not in {one.pid for one in (await seen_by(daemon, 0)).events}


def test_ends_losses_and_dead_nodes_are_reported(pair: Cluster) -> None:
    def happened(pid: int) -> list[tuple[str, str]]:
        return [(event.what, event.target) for event in watched(pair[1]).events if event.pid == pid]

    ended = pair.spawn(pair[1], "sleep", "60")
    pair[1].ok("migrate", str(ended), "n2")
    os.kill(ended, signal.SIGTERM)
    wait_for(lambda: happened(ended) == [("born", "home"), ("moved", "n2"), ("ended", "n2")])
    wait_for(lambda: pair[2].guests() == [] == pair[2].programs())
    lost = pair.spawn(pair[1], "sleep", "60")
    pair[1].ok("migrate", str(lost), "n2")
    (remote,) = pair[2].programs()
    os.kill(remote, signal.SIGKILL)
    wait_for(lambda: happened(lost) == [("born", "home"), ("moved", "n2"), ("lost", "n2")])
    assert watched(pair[1]).counters.lost == 1
    assert "n2: LOST: " in pair[1].ok("mosps", "--why", str(lost))
    stranded = pair.spawn(pair[1], "sleep", "60")
    pair[1].ok("migrate", str(stranded), "n2")
    begun = time.time()
    pair[2].kill()
    dead = wait_for(lambda: next((one for one in watched(pair[1]).nodes if one.dead and one.since), None), timeout=40)
    assert begun - 1 < dead.since < time.time() + 1
    assert re.search(r"^n2 +dead since \d\d:\d\d:\d\d$", pair[1].ok("mon", "--once"), re.MULTILINE)
    seen = watched(pair[1])
    process = seen.process(stranded)
    assert process is not None and is_unheard(seen, process)
