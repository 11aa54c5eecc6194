"""Slurm on the nodes of a lab: munged and slurmd in each node, in its namespaces and control groups; slurmctld beside them, outside of
all quotas. One slot for each node, the fastest preferred, as its administrator would have it.

All of it is process or file of a node, and goes with the lab, whatever becomes of the bench.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

from bench.common.nodes import wait_until
from bench.common.peers import find
from bench.common.result import BenchFailed
from bench.sharing.batch import ENDS, await_ends
from kernel_helpers.common.library import build_directory

if TYPE_CHECKING:
    from lab import Lab, Node

DIRECTORY = "/run/slurm"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo", "scancel")
START = 60.0
"""Seconds."""
ENVIRONMENT = {"SLURM_CONF": f"{DIRECTORY}/slurm.conf"}
CONFIGURATION = f"""
ClusterName=lab
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation={DIRECTORY}/state
SlurmdSpoolDir={DIRECTORY}/spool
SlurmctldPidFile={DIRECTORY}/slurmctld.pid
SlurmdPidFile={DIRECTORY}/slurmd.pid
SlurmctldLogFile={DIRECTORY}/slurmctld.log
SlurmdLogFile={DIRECTORY}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1
"""
"""Jobs are looked at when they come and each second; as Slurm comes it takes some seconds for each."""


def _configuration(lab: Lab) -> str:
    states = [node.state for node in lab.nodes()]
    fastest = max(one.cpus * one.speed for one in states)
    lines = [CONFIGURATION, f"SlurmctldHost={states[0].name}({states[0].address})"]
    for one in states:
        weight = round(10 * fastest / (one.cpus * one.speed))  # the least is taken first
        lines.append(f"NodeName={one.name} NodeAddr={one.address} CPUs=1 Weight={weight} State=UNKNOWN")
    names = ",".join(one.name for one in states)
    return "\n".join([*lines, f"PartitionName=lab Nodes={names} Default=YES MaxTime=INFINITE State=UP", ""])


class Slurm:
    """Runs batches in the nodes of a lab."""

    name = "Slurm"

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._head = lab.nodes()[0]

    def going(self) -> AbstractContextManager[None]:
        """It costs nothing while it has nothing to do."""
        return nullcontext()

    def run(self, program: str, work: Sequence[int], bound: float) -> list[float]:
        """Seconds from the start to the end of each job. Errors: BenchFailed."""
        script = "\n".join(["#!/bin/sh", "set -- " + " ".join(map(str, work)), 'shift "$SLURM_ARRAY_TASK_ID"',
                            f'exec {program} "$1" "$SLURM_ARRAY_TASK_ID" {ENDS}', ""])  # fmt: skip
        begun = time.time()
        submitted = self._head.run(["sbatch", "--quiet", f"--array=0-{len(work) - 1}", "--output=/dev/null"], input=script, text=True,
                                   env=ENVIRONMENT, timeout=60)  # fmt: skip
        if submitted.returncode != 0:
            raise BenchFailed(f"Slurm takes no jobs: {submitted.stderr.strip()}")
        try:
            return await_ends(self._lab.nodes(), len(work), begun, bound, self.name)
        finally:
            self._head.run(["scancel", "--quiet", "--user=root"], env=ENVIRONMENT, timeout=60)


def _outside(node: Node, command: Sequence[str]) -> list[str]:
    """A command line in the node's namespaces, and so to its end, but without its quota."""
    return [str(build_directory() / "enter"), str(node.state.pid), "0", "0", "/", "--", *command]


def _prepare(node: Node, configuration: str, key: bytes) -> None:
    directory, munge = node.root / DIRECTORY.lstrip("/"), node.root / "run/munge"
    for path in (directory, directory / "state", directory / "spool", munge):
        path.mkdir(exist_ok=True)
    (directory / "slurm.conf").write_text(configuration)
    # Of version 2 it would want the hierarchy of systemd; it uses neither.
    (directory / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    path = munge / "key"
    path.touch(mode=0o600)
    path.write_bytes(key)


def _is_up(head: Node, count: int) -> bool:
    states = head.run(["sinfo", "--noheader", "--Node", "--format=%T"], env=ENVIRONMENT, text=True, timeout=60).stdout.split()
    return bool(states == ["idle"] * count)


@contextmanager
def slurm(lab: Lab) -> Iterator[Slurm]:
    """Starts Slurm in the nodes of a lab, and ends it. Errors: BenchFailed if it is not installed or does not come up."""
    if missing := [name for name in PROGRAMS if find(name) is None]:
        raise BenchFailed(f"{missing[0]} of Slurm is not installed: tools/peers does that")
    nodes, configuration, key = lab.nodes(), _configuration(lab), secrets.token_bytes(128)
    munged = ["munged", "--foreground", "--key-file=/run/munge/key", "--log-file=/run/munge/log", "--pid-file=/run/munge/pid",
              "--seed-file=/run/munge/seed"]  # fmt: skip
    with ExitStack() as stack:

        def start(process: subprocess.Popen[bytes]) -> None:
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)

        for node in nodes:
            _prepare(node, configuration, key)
            start(node.popen(munged, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        sockets = [node.root / "run/munge/munge.socket.2" for node in nodes]
        wait_until(lambda: all(path.exists() for path in sockets), "the sockets of munged", START)
        head = _outside(nodes[0], ["slurmctld", "-D"])
        start(subprocess.Popen(head, env=os.environ | ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL))  # fmt: skip
        for node in nodes:
            start(node.popen(["slurmd", "-D"], cwd="/", env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        wait_until(lambda: _is_up(nodes[0], len(nodes)), "Slurm on all nodes", START)
        yield Slurm(lab)
