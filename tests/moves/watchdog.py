"""Finds hangs: runs while programs are moved, and detects guest threads that wait for an answer that no thread at home is working on.

A guest's thread that made a forwarded call waits in the kernel until its remote answers (with the reference interceptor: in a
ptrace stop). That may take for ever if the call does: the stub's thread of the same number is in the kernel in that call, or
stopped with its job. It may also be that the process is on its way. Where there is no such reason and nothing changes for PATIENCE
seconds, the answer has been lost. All of it is read from /proc and the registry of home's daemon; nothing is asked of the
processes that are watched.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.state import LabError
from tests.moves.cluster import HOME, Cluster

PATIENCE = 30.0
FUTEX = "202"
GONE = (FileNotFoundError, ProcessLookupError, LabError)
"""The process being checked, or the node that it is on, may end at any time."""


class Hang(AssertionError):
    """A list of hangs, each with what the kernel shows of both sides."""


@dataclass(frozen=True)
class Thread:
    """The state of a thread in /proc. `call` is the line of its file `syscall`; `switches` how often it has left the processor by
    itself: as long as that is the same it has not gone on."""

    state: str
    call: str
    waits_in: str
    switches: int


@dataclass(frozen=True)
class Wait:
    """A thread of a guest that waits for its remote. Equal as long as it is the same wait."""

    pid: int
    tid: int
    node: str
    thread: Thread


def read_thread(task: Path) -> Thread:
    """Errors: OSError, those of GONE if it has ended."""
    status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
    call, waits_in = (task / "syscall").read_text().strip(), (task / "wchan").read_text().strip()
    return Thread(status["State"][0], call, waits_in, int(status["voluntary_ctxt_switches"]))


def why_it_waits(stub: Thread | None) -> str:
    """The reason why the thread of that stub is not answered; "" there is none."""
    if stub is None:
        return ""
    if stub.state == "T":
        return "its job is stopped"
    if stub.call == "running":
        return "its call is being made at home"
    number, _, operation = stub.call.split()[:3]
    # The resident loop of a stub waits for its next call by FUTEX_WAIT; what a program waits for has FUTEX_PRIVATE_FLAG or is no futex.
    return "" if stub.state == "t" or number == "-1" or (number, operation) == (FUTEX, "0x0") else "its call waits at home"


def waits(cluster: Cluster) -> Iterator[tuple[Wait, str]]:
    """All threads of all guests whose home is the home node that wait for their remote, each with the reason."""
    registry = cluster.home.root / "run" / "farhome" / "registry"
    for path in sorted(registry.glob("*.json")):
        try:
            entry = json.loads(path.read_bytes())
            if entry["where"] != "home" or entry["state"] not in ("home", "starting"):
                yield from waits_of(cluster, entry["pid"], entry["where"], entry["state"])
        except (*GONE, ValueError):
            continue


def waits_of(cluster: Cluster, pid: int, node: str, state: str) -> Iterator[tuple[Wait, str]]:
    """Yields the waits of one process."""
    guest = guest_of(cluster.place(node).root, pid) if node in cluster.names else None
    for task in sorted((guest / "task").iterdir()) if guest is not None else ():
        try:
            thread = read_thread(task)
            tid = last_number(task)
        except GONE:
            continue
        if thread.state == "t" or thread.waits_in.startswith("seccomp_do_user_notification"):
            reason = "it is on its way" if state != "away" else why_it_waits(stub_thread(cluster, pid, tid))
            if thread.state == "t" and has_child_there(cluster, pid, node):
                reason = "its child may have its memory (vfork)"
            yield Wait(pid, tid, node, thread), reason


def has_child_there(cluster: Cluster, pid: int, node: str) -> bool:
    """Whether a child of the process is a guest of the same node: a parent is held in a stop as long as its child of vfork needs."""
    try:
        tasks = (cluster.home.root / "proc" / str(pid) / "task").iterdir()
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except GONE:
        return False
    return any(guest_of(cluster.place(node).root, int(child)) for child in children)


def stub_thread(cluster: Cluster, pid: int, tid: int) -> Thread | None:
    """The same thread at home; None if it has ended."""
    try:
        return read_thread(cluster.home.root / "proc" / str(pid) / "task" / str(tid))
    except GONE:
        return None


def guest_of(root: Path, pid: int) -> Path | None:
    """Returns its directory in the node's /proc. Its control group is named after its home and its own pid, or an ancestor's."""
    for process in (root / "proc").glob("[0-9]*"):
        try:
            if f"/guests/{HOME}-" in (process / "cgroup").read_text() and last_number(process) == pid:
                return process
        except GONE:
            continue
    return None


def last_number(process: Path) -> int:
    """Returns its pid in the innermost namespace. Errors: as read_thread."""
    return int((process / "status").read_text().split("NSpid:", 1)[1].split("\n", 1)[0].split()[-1])


class Watchdog(threading.Thread):
    """Polls every second until stop() is called. `hangs` lists the hangs found, once for each wait."""

    def __init__(self, cluster: Cluster, patience: float = PATIENCE, every: float = 1.0) -> None:
        super().__init__(name="watchdog", daemon=True)
        self.cluster, self.patience, self.every = cluster, patience, every
        self.hangs: list[str] = []
        self.failure: Exception | None = None
        self._since: dict[Wait, float] = {}
        self._reported: set[Wait] = set()
        self.over = threading.Event()

    def run(self) -> None:
        try:
            while not self.over.wait(self.every):
                for wait in self.overdue(dict(waits(self.cluster)), time.monotonic()):
                    self.hangs.append(self.describe(wait))
        except Exception as failure:  # stop() raises it in the test
            self.failure = failure

    def overdue(self, seen: Mapping[Wait, str], now: float) -> list[Wait]:
        """Takes what waits at this moment (seconds), with its reason or "". Returns those that have none for too long, once each."""
        self._since = {wait: self._since.get(wait, now) for wait, reason in seen.items() if not reason}
        found = [wait for wait, since in self._since.items() if now - since >= self.patience and wait not in self._reported]
        self._reported.update(found)
        return found

    def describe(self, wait: Wait) -> str:
        """Describes both sides of a wait as the kernel shows them."""
        home = stub_thread(self.cluster, wait.pid, wait.tid)
        return f"process {wait.pid}, thread {wait.tid}, on {wait.node}: no answer for {self.patience:g} s: {wait.thread}; at home: {home}"

    def stop(self) -> None:
        """Ends the watch. Errors: Hang, and any failure of the watchdog itself."""
        self.over.set()
        self.join(30)
        if self.failure:
            raise self.failure
        if self.hangs:
            raise Hang("\n".join(self.hangs))
