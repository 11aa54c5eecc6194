"""Home processes: those that `mosrun` started on this node or that were adopted, and their descendants, wherever they are now.

Each is a file /run/farhome/registry/PID.json, so that a node daemon that was killed knows them again. A pidfd reports their end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from node.common import process
from node.common.paths import write_atomically
from node.common.process import ProcessStat
from node.moves.home_process import HOME, HomeProcess, from_record, to_record
from node.moves.lineage import MOST_BETWEEN, Births, Lineage

KEPT_ENDED = 200
"""How many processes that have ended `mosctl why` still knows."""
WALK_SECONDS = 0.05
"""How long one look for children may take: a program that forks without end must not have the daemon for itself."""
MOST_DESCENDANTS = 2000
"""Home processes from which on children are not taken by themselves any more: each holds a descriptor of the daemon's."""
GENERATIONS = 1000
"""How far up a process is followed to a home process that it descends from."""

log = logging.getLogger("mosd.registry")


class Registry:
    """All home processes of this node, by pid."""

    def __init__(self, directory: Path, on_end: Callable[[HomeProcess], None], births: Births | None = None) -> None:
        self._directory = directory
        self._lineage: Lineage[HomeProcess] = Lineage(births)
        self._early: dict[int, tuple[HomeProcess, int]] = {}
        """born and not taken yet: of whom, and when it was born (ticks since boot)"""
        self._on_end = on_end
        self._entries: dict[int, HomeProcess] = {}
        self._watches: dict[int, int] = {}
        self.ended: OrderedDict[int, HomeProcess] = OrderedDict()
        self._usage: dict[int, tuple[float, float]] = {}
        self._unwalked: deque[int] = deque()
        self._was_full = False

    def __iter__(self) -> Iterator[HomeProcess]:
        return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, pid: int) -> HomeProcess | None:
        """Return the home process with that pid."""
        return self._entries.get(pid)

    def load(self) -> list[HomeProcess]:
        """Reads what a daemon before this one left. Returns the processes that have ended since, which are dropped."""
        ended = []
        for path in sorted(self._directory.glob("*.json")):
            try:
                entry = from_record(json.loads(path.read_bytes()))
            except (OSError, ValueError, TypeError) as error:
                log.warning("%s is dropped: %s", path, error)
                path.unlink(missing_ok=True)
                continue
            if process.is_alive(entry.pid, entry.starttime):
                self._watch(entry)
            else:
                path.unlink(missing_ok=True)
                ended.append(entry)
        return ended

    def add(self, entry: HomeProcess) -> None:
        """Takes a new home process (or replaces what an earlier one with the same pid left). Errors: OSError."""
        if entry.pid in self._entries:
            self._remove(entry.pid)
        if self._watch(entry):
            self._save(entry)

    def lose(self, pid: int, reason: str) -> bool:
        """Notes of a process, which may have ended already, that it is lost, and why. False: that is known, or nothing is known of it."""
        entry = self._entries.get(pid) or self.ended.get(pid)
        is_new = entry is not None and entry.state != "lost"
        if entry is not None:
            self.update(pid, why=reason, state="lost", history=entry.history.lost(time.time(), entry.where, reason))
        return is_new

    def update(self, pid: int, **changes: Any) -> HomeProcess | None:
        """Changes fields of an entry and its file; None if the process has ended (then of what is remembered of it)."""
        entry = self._entries.get(pid)
        if entry is None:
            if pid in self.ended:
                self.ended[pid] = replace(self.ended[pid], **changes)
            return None
        changed = replace(entry, **changes)
        if changed != entry:
            self._entries[pid] = changed
            self._save(changed)
        return changed

    def used(self, entry: HomeProcess, cpu: float) -> None:
        """Takes what the node that a process is on has reported: seconds of cpu since it came there. Not kept in the file."""
        if entry.pid in self._entries:
            self._usage[entry.pid] = (entry.since, cpu)

    def reported_in_stay(self, entry: HomeProcess) -> float:
        """Return seconds of cpu that the node where a process is away has reported."""
        since, cpu = self._usage.get(entry.pid, (0.0, 0.0))
        return cpu if entry.where != HOME and since == entry.since else 0.0

    def cpu_of_stay(self, entry: HomeProcess, now: float) -> float:
        """Return seconds of cpu that it has used where it is away; all the time counts until that node has reported."""
        if entry.where == HOME:
            return 0.0
        since, cpu = self._usage.get(entry.pid, (0.0, 0.0))
        return cpu if since == entry.since else max(0.0, now - entry.since)

    def cpu_seconds(self, entry: HomeProcess, now: float, stat: ProcessStat | None = None) -> float:
        """Return seconds of cpu that it has used in all, here and away. stat: what /proc reports about it, if that has been read
        already."""
        stat = stat or process.read_stat(entry.pid)
        return (stat.cpu if stat else 0.0) + entry.cpu_away + self.cpu_of_stay(entry, now)

    def forget(self, pid: int) -> None:
        """Lets go of a process that is none of ours after all; it runs on."""
        self._remove(pid)

    def _save(self, entry: HomeProcess) -> None:
        try:
            write_atomically(self._directory / f"{entry.pid}.json", json.dumps(asdict(entry)).encode())
        except OSError as error:
            # The process itself is none the worse; only a restart of the daemon would forget it.
            log.error("process %d cannot be recorded: %s", entry.pid, error)

    def _watch(self, entry: HomeProcess) -> bool:
        try:
            descriptor = os.pidfd_open(entry.pid)
        except OSError:
            return False
        # A pid may be another's by the time the pidfd is there.
        if not process.is_alive(entry.pid, entry.starttime):
            os.close(descriptor)
            return False
        self._entries[entry.pid] = entry
        self._watches[entry.pid] = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._ended, entry.pid)
        return True

    def _ended(self, pid: int) -> None:
        self._take_born()
        used = self.reported_in_stay(self._entries[pid]) if pid in self._entries else 0.0
        entry = self._remove(pid)
        if entry is not None:
            entry = replace(entry, cpu_away=entry.cpu_away + used, history=entry.history.ended(time.time(), entry.where))
            self.ended[pid] = entry
            while len(self.ended) > KEPT_ENDED:
                self.ended.popitem(last=False)
            self._on_end(entry)

    def _remove(self, pid: int) -> HomeProcess | None:
        descriptor = self._watches.pop(pid, None)
        if descriptor is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
        (self._directory / f"{pid}.json").unlink(missing_ok=True)
        self._usage.pop(pid, None)
        return self._entries.pop(pid, None)

    def adopt_children(self) -> None:
        """Takes the descendants of home processes: what a program forks belongs to its job and may move as well.

        The kernel reports their births, where it can; else they are found by walking /proc, among the children of those that live.
        Where that takes longer than WALK_SECONDS the next call goes on with it. Those beyond MOST_DESCENDANTS run at home and are not
        listed.
        """
        end = time.monotonic() + WALK_SECONDS
        self._take_born()
        if not self._unwalked:
            self._unwalked.extend(entry.pid for entry in self if entry.state == "home")
        while self._unwalked:
            parent = self._entries.get(self._unwalked.popleft())
            for pid in process.children(parent.pid) if parent is not None and parent.state == "home" else ():
                if pid in self._entries or parent is None:
                    continue
                if time.monotonic() > end or self._is_full():
                    self._unwalked.append(parent.pid)  # the others' turn
                    return
                if self.take_child(parent, pid) is not None:
                    self._unwalked.append(pid)
            if time.monotonic() > end:
                return

    def _take_born(self) -> None:
        """Takes the descendants of home processes that have been born since the last time, whether or not their parents live. Those of one
        that is about to begin wait until it has begun, or ended."""
        end = time.monotonic() + WALK_SECONDS
        early, self._early = self._early, {}
        born: list[tuple[int, HomeProcess, int | None]] = [(pid, ancestor, since) for pid, (ancestor, since) in early.items()]
        born += [(pid, ancestor, None) for pid, ancestor in self._lineage.take(self._entries.get)]
        for pid, ancestor, since in born:
            if pid not in self._entries:
                self._take_one_born(pid, ancestor, since, time.monotonic() > end)
            if pid in self._entries:
                self._lineage.leave_out(pid)

    def _take_one_born(self, pid: int, ancestor: HomeProcess, since: int | None, is_late: bool) -> None:
        """since: when it was born, if it has waited; is_late: it waits for the next time."""
        now = self._entries.get(ancestor.pid)
        lives = now is not None and now.starttime == ancestor.starttime
        current = now if now is not None and lives else ancestor
        waits = is_late or (lives and current.state == "starting")
        stat = process.read_stat(pid) if waits or since is not None else None
        if since is not None and (stat is None or stat.starttime != since):
            return  # it has ended
        if stat is not None and waits and len(self._early) < MOST_BETWEEN:
            self._early[pid] = ancestor, stat.starttime
        elif not waits and current.state in ("home", "starting") and not self._is_full():
            self.take_child(current, pid)

    def adopt(self, pid: int) -> HomeProcess | None:
        """Takes one process if it descends from a home process that is at home, however many there are; None: it does not."""
        line = [pid]
        while len(line) < GENERATIONS and (stat := process.read_stat(line[-1])) is not None and stat.parent:
            ancestor = self._entries.get(stat.parent)
            if ancestor is not None:
                return self.take_child(ancestor, pid) if ancestor.state == "home" else None
            line.append(stat.parent)
        return None

    def take_child(self, parent: HomeProcess, pid: int, **differences: Any) -> HomeProcess | None:
        """Takes a child of a home process, which is of its job; None if it has ended."""
        stat, uid = process.read_stat(pid), process.real_uid(pid)
        if stat is None or uid is None or stat.state in "ZX":
            return None
        child = HomeProcess(
            pid, stat.starttime, uid, job=parent.job, command=process.command_line(pid), home_only=parent.home_only,
            locked=parent.locked, memory=parent.memory, since=time.time(), adopted=parent.adopted,
            trace=parent.trace, trust=parent.trust, owner=parent.owner or to_record(parent.registered_by()),
        )  # fmt: skip
        child = replace(child, **differences)
        self.add(child)
        return self.get(pid)

    def _is_full(self) -> bool:
        full = len(self._entries) >= MOST_DESCENDANTS
        if full and not self._was_full:
            log.warning("there are %d home processes: children of them are not taken any more", MOST_DESCENDANTS)
        self._was_full = full
        return full

    def refresh_commands(self) -> None:
        """Reads the commands of processes at home anew: they may have called exec."""
        for pid, command in process.command_lines([entry.pid for entry in self if entry.state == "home"]).items():
            if command:
                self.update(pid, command=command)

    def close(self) -> None:
        """Stops watching; the files stay."""
        for descriptor in self._watches.values():
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
        self._lineage.close()
        self._watches.clear()
        self._entries.clear()
