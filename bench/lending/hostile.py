"""A hostile guest beside its owner's program: what the program loses while the guest takes whatever it can get of one kind.

A guest of an ordinary user, on a node with one processor, forks, takes memory, opens descriptors, computes in 16 threads or sends signals,
without end. The owner's program computes there for ten seconds meanwhile, and alone for as long before and after. `stays`: nothing is said
of the owner, as shipped, so the guest is there all the time. `is sent home`: the owner's policy says `busy_load`, so his program brings
him back. Then the node must still answer, and of the guest nothing may be left there when it is killed from home. `others there`: processor
time of all else on the node in those ten seconds: the guest, and what farhome does for it.

As in `owner`, the two nodes have a processor of the machine each; but caches and memory they share, so the owner's program gets slower
by what the other program does on its home's processor, too. How much that is, `never leaves` says: the program is at home all the time,
and the owner's node has no guest. Guests have a fiftieth of its memory and 64 tasks, so that they meet
their bounds at once; what a fork bomb has no room for is born at home.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from statistics import fmean
from typing import TYPE_CHECKING

from bench.common.nodes import bench_lab, build, checked, rounds, wait_until
from bench.common.result import BenchFailed, Result
from bench.lending.owner import ALLOWED_SHARE, WORK, OwnersProgram, Watch, is_quiet

if TYPE_CHECKING:
    from lab import Lab, Node

KINDS = ("forks", "memory", "descriptors", "processor", "signals")
USER = "farhome-a"
ROUNDS = 1
"""Of each kind; FARHOME_BENCH_ROUNDS says otherwise."""
SETTLING = 2.0
"""Seconds for which the guest takes what it can get before the owner's program begins."""
PATIENCE = 60.0
LEND = "\n[balance]\nenabled = false\n[lend]\nmax_tasks = 64\nmemory_share = 0.02\n"
NEVER_LEAVES = "never leaves"
POLICIES = {"stays": "", "is sent home": "[lend.owner]\nbusy_load = 0.5\ncalm = 0.5\n", NEVER_LEAVES: ""}


def guests(node: Node) -> list[str]:
    """Their keys, as the node reports them. Errors: LabError if it does not."""
    return [str(row["key"]) for row in node.ask_mosd("ps", timeout=30, guests=True)["guests"]]


def _kill_all(home: Node) -> None:
    """As their user can: with all children, those born meanwhile, too."""
    with suppress(subprocess.TimeoutExpired):
        home.run(["kill", "-KILL", "--", "-1"], user=USER, timeout=20)


@contextmanager
def hostile(lab: Lab, program: str, kind: str, leaves: bool = True) -> Iterator[str]:
    """Has a guest take what it can get on n2, or at home; gives its key. Afterwards nothing is left of it. Errors: BenchFailed."""
    home, host = lab.nodes()
    ready, go = (home.root / "tmp" / f"{name}-{kind}" for name in ("ready", "go"))
    for path in (ready, go):
        path.unlink(missing_ok=True)
    argv = ["mosrun", "-L", program, kind, f"/tmp/{ready.name}", f"/tmp/{go.name}"]
    process = home.popen(argv, user=USER, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(ready.exists, "the program that is to be the guest", PATIENCE)
        pid = process.node_pid
        wait_until(lambda: is_quiet(host), "n2's lending", PATIENCE)  # the owner's program has just been there
        if leaves:
            checked(home, ["migrate", str(pid), "n2"], PATIENCE)
        go.touch()
        time.sleep(SETTLING)
        yield f"n1-{pid}"
    finally:
        end = time.monotonic() + PATIENCE
        while process.poll() is None or guests(host):
            _kill_all(home)
            if time.monotonic() > end:
                raise BenchFailed(f"a guest that takes {kind} is left on its node {PATIENCE:.0f} s after it was killed")
            time.sleep(0.2)


class Beside:
    """The owner's program while somebody else is there, or alone."""

    def __init__(self, lab: Lab, program: str) -> None:
        self._node, self._watch, self._program = lab.node("n2"), Watch(lab, []), program

    def work(self) -> tuple[list[float], float]:
        """The times of its pieces of work, and how long others have had a processor meanwhile, in ms. Errors: BenchFailed."""
        used = self._watch.cpu()
        program = OwnersProgram(self._node, self._program)
        time.sleep(WORK)
        others = self._watch.cpu() - used - program.cpu()
        return program.pieces(), 1e3 * others


def _measure(lab: Lab, policy: str, guest: str, work: str) -> list[Result]:
    results, owner = [], Beside(lab, work)
    before, _ = owner.work()
    for kind in KINDS:
        meanwhile: list[float] = []
        others: list[float] = []
        alone = list(before)
        for _ in range(rounds(ROUNDS)):
            with hostile(lab, guest, kind, leaves=policy != NEVER_LEAVES):
                times, used = owner.work()
                guests(lab.node("n2"))
            meanwhile += times
            others.append(used)
            before, _ = owner.work()
            alone += before
        case = f"{kind}, the guest {policy}: owner's program, a piece on average"
        results.append(Result.of(case, [fmean(meanwhile)], [fmean(alone)], unit="ms", baseline_name="alone"))
        allowed = 1e3 * WORK * ALLOWED_SHARE
        case = f"{kind}, the guest {policy}: others there in {WORK:.0f} s"
        results.append(Result.of(case, others, [allowed], unit="ms", baseline_name="allowed"))
    return results


def run() -> list[Result]:
    """Measure in fresh labs of two nodes. Errors: BenchFailed."""
    guest, work = build("lending/hostile"), build("processes/cpu")
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        raise BenchFailed("two nodes that share nothing need two processors")
    home, owners = {processors[0]}, {processors[-1]}
    results = []
    for policy, more in POLICIES.items():
        with bench_lab(2, configuration=LEND + more, processors={"n1": home, "n2": owners}) as lab:
            os.sched_setaffinity(0, home)
            try:
                results += _measure(lab, policy, guest, work)
            finally:
                os.sched_setaffinity(0, processors)
    return results
