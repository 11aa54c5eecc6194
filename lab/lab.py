"""A lab: several virtual nodes on this machine, each in namespaces of its own."""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from kernel_helpers.common.library import build_directory
from lab import cgroups, cluster, knowledge, limits, network, state
from lab.helpers import starting
from lab.node import ROOT, Node
from lab.state import Cut, LabError, LabState, NodeState

PORT = 7226
MOST_NODES = 250
NO_FILES = "\n[mfs]\nenabled = false\n"
ALL_FILES = '\n[mfs]\nexports = ["/"]\nroot = "root"\n'
"""Unless a lab's configuration says more: its nodes are of one administration."""
MOST_WITH_FILES = 16
"""Nodes of a lab that see one another's files unless its configuration says more: each has a program for each other one."""


@dataclass(frozen=True)
class _Links:
    """What each node's link is like: bits per second, None: as fast as it can; seconds."""

    rate: int | None
    delay: float
    jitter: float


class Lab:
    """A lab by its name. ``Lab.up`` makes one; ``Lab(name)`` names one that is there. A context manager: leaving is ``down``."""

    def __init__(self, name: str = "default") -> None:
        self.name = state.check_name(name)

    @classmethod
    def up(
        cls,
        count: int,
        name: str = "default",
        *,
        cpus: float = 1.0,
        period: float = cgroups.PERIOD,
        speed: Mapping[str, float] | None = None,
        clock: Mapping[str, int] | None = None,
        bandwidth: str | None = None,
        delay: float = 0.0,
        jitter: float = 0.0,
        processors: Mapping[str, Set[int]] | None = None,
        mosd: bool = True,
        configuration: str = "",
        stays: bool = False,
    ) -> Lab:
        """Start a lab of ``count`` nodes n1, n2, ….

        ``cpus``: processors that each node may use; ``period``: seconds in each of which it gets that share; ``speed``: share of them by
        node, 0.5 is half as fast; ``clock``: seconds by node that its monotonic clock and uptime are ahead of the host's, as on
        machines that were started at other times;
        ``bandwidth``: ``100mbit``, per node and direction; ``delay``: seconds that a packet takes from one node to another, ``jitter``:
        as much more or less at most; ``processors``: those of the machine that a node runs on, by node, and
        without a quota: nodes on different ones take nothing from each other, as real machines do not; ``mosd``: make the cluster's
        keys and start the daemons;
        ``configuration``: TOML text added to every node.toml; ``stays``: the lab outlives the process that starts it, else it is taken
        down when that ends, by whatever signal.
        Errors: LabError; nothing is left then.
        """
        lab = cls(name)
        speeds = lab._check(count, cpus, period, speed or {}, clock or {}, bandwidth, processors or {})
        try:
            network.check_delay(delay, jitter)
        except ValueError as error:
            raise LabError(f"{error}.") from error
        _compile()
        with state.locked(lab.name, create=True) as directory:
            if state.load(lab.name) is not None and any(one.is_alive() for one in lab.state.nodes.values()):
                raise LabError(f"lab {name} is up already: 'lab down' ends it.")
            lab._remove(keep=directory)
            try:
                if not stays:
                    starting.start_keeper(lab.name)
                if mosd and cluster.is_available():
                    configuration = cluster.measured_speed(configuration) + configuration
                links = _Links(network.parse_rate(bandwidth) if bandwidth else None, delay, jitter)
                lab._start(directory, cpus, period, speeds, clock or {}, links, processors or {}, configuration)
            except BaseException:
                lab._remove()
                raise
        if mosd and cluster.is_available():
            try:
                cluster.start(lab.nodes())
            except BaseException:
                lab.down()
                raise
        return lab

    @staticmethod
    def _check(
        count: int, cpus: float, period: float, speed: Mapping[str, float], clock: Mapping[str, int], bandwidth: str | None,
        processors: Mapping[str, Set[int]],
    ) -> dict[str, float]:  # fmt: skip
        names = [f"n{number}" for number in range(1, count + 1)]
        if not 1 <= count <= MOST_NODES:
            raise LabError(f"a lab has 1 to {MOST_NODES} nodes, not {count}.")
        if os.geteuid():
            raise LabError("a lab needs root.")
        if not 0 < cpus <= 1024:
            raise LabError(f"{cpus:g} is no number of processors for a node.")
        if not 0.001 <= period <= 1:
            raise LabError(f"a share of the processors is given for 0.001 to 1 s at a time, not for {period:g}.")
        for name in (*speed, *clock, *processors):
            if name not in names:
                raise LabError(f"something is given for {name}, but the nodes are {names[0]} to {names[-1]}.")
        for name, value in speed.items():
            if not 0.01 <= value <= 1:
                raise LabError(f"the speed of {name} is a share between 0.01 and 1, not {value:g}.")
        for name, numbers in processors.items():
            if not numbers or not numbers <= os.sched_getaffinity(0):
                raise LabError(f"{name} cannot run on processors {sorted(numbers)}: there are {sorted(os.sched_getaffinity(0))}.")
        if bandwidth:
            try:
                network.parse_rate(bandwidth)
            except ValueError as error:
                raise LabError(f"{error}.") from error
        for program in ("node_init", "enter", "delay"):
            if not (build_directory() / program).exists():
                raise LabError(f"the program {program} has not been built: run tools/setup.")
        return {name: speed.get(name, 1.0) for name in names}

    def _start(
        self,
        directory: Path,
        cpus: float,
        period: float,
        speeds: Mapping[str, float],
        clock: Mapping[str, int],
        links: _Links,
        processors: Mapping[str, Set[int]],
        configuration: str,
    ) -> None:
        for point in ("/opt/farhome", "/etc/farhome", "/var/lib/farhome", "/mfs"):
            Path(point).mkdir(parents=True, exist_ok=True)
        if "mfs" not in tomllib.loads(configuration):
            configuration += NO_FILES if len(speeds) > MOST_WITH_FILES else ALL_FILES
        prefix = network.subnet(self.name)
        addresses = {name: f"{prefix}.{number}" for number, name in enumerate(speeds, 1)}
        hosts = "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in addresses.items())
        limits.raise_them()
        cgroups.create(self.name, cgroups.HELPERS)
        held = [str(build_directory() / "delay"), network.DELAY, *(str(round(seconds * 1e9)) for seconds in (links.delay, links.jitter))]
        switch = starting.start_switch(self.name, held if links.delay else ["sleep", "infinity"])  # it holds packets that are delayed
        current = LabState(self.name, switch, state.start_time(switch) or 0, links.rate, links.delay, links.jitter)
        begun: dict[str, subprocess.Popen[str]] = {}
        for name, address in addresses.items():
            files = directory / name
            files.mkdir(exist_ok=True)
            (files / "hosts").write_text(hosts)
            knowledge.hand_over(files)
            seeds = [f"{other}:{PORT}" for other in addresses.values() if other != address]
            (files / "node.toml").write_text(_node_configuration(name, address, seeds, configuration))
            cgroups.create(self.name, name, None if name in processors else cpus * speeds[name], period)
            begun[name] = self._start_node(name, files, clock.get(name, 0), processors.get(name))
        for name, process in begun.items():
            output, errors = process.communicate(timeout=30)
            if process.returncode:
                raise LabError(f"node {name} does not come up: {' '.join(errors.split()) or 'no reason given'}")
            pid = int(output)
            cgroups.settle(self.name, name, pid)
            start = state.start_time(pid)
            if start is None:
                raise LabError(f"node {name} died at once.")
            share = len(processors[name]) if name in processors else cpus
            current.nodes[name] = NodeState(name, pid, start, addresses[name], share, speeds[name])
            state.save(current)
        try:
            network.connect(current.switch, {one.name: (one.pid, one.address) for one in current.nodes.values()}, links.rate)
            if links.delay:
                network.delay(current.switch, {one.name: one.address for one in current.nodes.values()})
            for name, numbers in processors.items():
                network.receive_on(current.nodes[name].pid, numbers)
        except network.NetworkError as error:
            raise LabError(f"the nodes cannot be connected: {error}") from error

    def _start_node(self, name: str, files: Path, clock: int, processors: Set[int] | None) -> subprocess.Popen[str]:
        groups = cgroups.directories(self.name, name)  # the node sees them as the roots of their hierarchies
        arguments = [one.mount_argument() for one in cgroups.hierarchies()]
        with _running_on(processors):  # so do processes that enter the node later
            return subprocess.Popen(
                ["node_init", str(clock), *groups, "--", ROOT / "lab" / "node-setup", ROOT, name, files, *arguments],
                executable=build_directory() / "node_init",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

    @property
    def state(self) -> LabState:
        """As it is on disk now. Errors: LabError when the lab is not up."""
        current = state.load(self.name)
        if current is None:
            raise LabError(f"lab {self.name} is not up: 'lab up' starts it.")
        return current

    def node(self, name: str) -> Node:
        """Return the node of that name. Errors: LabError."""
        node = Node(self.name, name)
        _ = node.state
        return node

    def nodes(self) -> list[Node]:
        """Return all nodes, the dead ones too."""
        return [Node(self.name, name) for name in self.state.nodes]

    def down(self, keeper: int | None = None) -> bool:
        """End the lab and remove all that is of it, whatever has crashed before. False: there was none, or it has another keeper than
        that process.

        Errors: TimeoutError, OSError when a process does not die.
        """
        existed = state.directory(self.name).exists() or any(one.exists() for one in cgroups.directories(self.name))
        if existed:
            with state.locked(self.name, create=True):
                if keeper not in (None, (state.keeper(self.name) or (keeper,))[0]):
                    return False
                with contextlib.suppress(LabError):
                    knowledge.keep(node.root for node in self.nodes() if node.is_alive())
                self._remove()
        return existed

    def _remove(self, keep: Path | None = None) -> None:
        """Remove everything; of the directory ``keep``, which is locked, only what is in it."""
        try:
            current = state.load(self.name)
        except LabError:
            current = None
        cgroups.kill(self.name)
        keeper = state.keeper(self.name)
        if keeper and keeper[0] != os.getpid():
            starting.end("keeper", *keeper)
        if current:
            for one in current.nodes.values():
                starting.end(one.name, one.pid, one.start)
            starting.end("switch", current.switch, current.switch_start)
        cgroups.remove(self.name)
        if keep is not None:
            for entry in keep.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            return
        shutil.rmtree(state.directory(self.name), ignore_errors=True)
        limits.give_them_back()

    def kill(self, name: str, *, unplug: bool = True) -> None:
        """The node dies: everything in it at once, without a last word (``unplug=False``: its connections are closed).

        Errors: LabError when it is dead already.
        """
        with state.locked(self.name):
            current = self.state
            one = self.node(name).state
            if not one.is_alive():
                raise LabError(f"node {name} of lab {self.name} is dead already.")
            if unplug:
                network.unplug(current.switch, name)
            cgroups.kill(self.name, name)
            starting.end(name, one.pid, one.start)
            cgroups.remove(self.name, name)

    def cut(self, first: str, second: str, seconds: float | None = None) -> None:
        """Lose all packets between two nodes, silently, for ``seconds`` or until ``heal``. Errors: LabError."""
        if first == second:
            raise LabError("a cut is between two nodes.")
        ends = sorted((first, second))
        token = secrets.token_hex(8)
        with state.locked(self.name):
            network.drop_between(*self._live_pair(ends[0], ends[1]))
            since = time.monotonic()
            current = self.state
            current.cuts = [one for one in current.cuts if [one.first, one.second] != ends]
            current.cuts.append(Cut(ends[0], ends[1], token))
            state.save(current)
        if seconds is not None:
            starting.start(self.name, [sys.executable, "-I", "-m", "lab.helpers.heal", self.name, *ends, token, str(since + seconds)])

    def _live_pair(self, first: str, second: str) -> tuple[tuple[int, str], tuple[int, str]]:
        pair = (self.node(first).state, self.node(second).state)
        for one in pair:
            if not one.is_alive():
                raise LabError(f"node {one.name} of lab {self.name} is dead.")
        return (pair[0].pid, pair[0].address), (pair[1].pid, pair[1].address)

    def heal(self, first: str | None = None, second: str | None = None, *, token: str | None = None) -> int:
        """Join again what was cut (all, the cuts at one node, between two, or one by its token); how many cuts there were."""
        wanted = {name for name in (first, second) if name}
        with state.locked(self.name):
            current = self.state
            healed = [one for one in current.cuts if wanted <= {one.first, one.second} and token in (None, one.token)]
            for one in healed:
                if all(current.nodes[name].is_alive() for name in (one.first, one.second)):
                    network.join_again(*self._live_pair(one.first, one.second))
            current.cuts = [one for one in current.cuts if one not in healed]
            state.save(current)
        return len(healed)

    def status(self) -> dict[str, Any]:
        """Return what ``lab status --json`` prints. Errors: LabError when the lab is not up."""
        current = self.state
        return {
            "name": self.name,
            "bandwidth": current.bandwidth,
            "delay": current.delay,
            "jitter": current.jitter,
            "nodes": [
                {
                    "name": one.name,
                    "alive": one.is_alive(),
                    "address": one.address,
                    "cpus": one.cpus,
                    "speed": one.speed,
                    "pid": one.pid,
                    "processes": len(cgroups.processes(self.name, one.name)),
                    "mosd": one.is_alive() and Node(self.name, one.name).mosd_answers(),
                }
                for one in current.nodes.values()
            ],
            "cuts": [[one.first, one.second] for one in current.cuts],
        }

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.down()


def _compile() -> None:
    """Compile what nodes run, which see the clone read-only."""
    if os.access(ROOT, os.W_OK):
        for room in ("checkpoint", "cli", "node", "deputy", "remote", "engine", "wire", "kernel_helpers", "balancer", "lab", "mfs"):
            if (ROOT / room).is_dir():
                compileall.compile_dir(str(ROOT / room), quiet=2)


@contextlib.contextmanager
def _running_on(processors: Set[int] | None) -> Iterator[None]:
    """What is started meanwhile runs on those processors; None: on whatever we run on."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _node_configuration(name: str, address: str, seeds: list[str], more: str) -> str:
    """The text of a node.toml. JSON strings and lists are TOML too."""
    lines = [f"name = {json.dumps(name)}", f"address = {json.dumps(address)}", f"port = {PORT}", f"peers = {json.dumps(seeds)}"]
    return "\n".join([*lines, more]) + "\n"
