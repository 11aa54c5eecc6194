"""What a stopped process was, in a file that outlives who has it make calls: written before the first of them, taken away when it goes on.

Should the tracer be killed, the process waits in its pause loop (kernel_helpers/process/pause_loop.py) for anyone who reads this
(deputy/stub/mending.py).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgpack

from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.process.injection.beside import runs_anywhere
from kernel_helpers.process.pause_loop import ONE
from kernel_helpers.process.stopped import StoppedThread
from kernel_helpers.process.syscalls import Registers

Signals = list[tuple[int, bytes]]
"""(tid as the program sees it, 0 for the process; siginfo)"""
SUFFIX = ".journal"
_REGISTERS = ctypes.sizeof(Registers)
_STARTED_AT = 19
"""the field of /proc/PID/stat, after the name"""


@dataclass(frozen=True)
class ThreadWas:
    """registers: struct user_regs_struct; section: where the pointer to a restartable sequence stood, and the pointer; pending: siginfo
    of the signals that its tracer has kept."""

    registers: bytes
    mask: int
    section: tuple[int, bytes] | None
    pending: list[bytes]


@dataclass(frozen=True)
class Entry:
    """What a journal says. threads: by tid; descriptors, children: that it had; memory: what stood at addresses whose memory has been used;
    signals: taken out of its queues. pause_loop: its address. towards: the node where it may run already, "" for nowhere else.
    is_unbound: its main thread could run on any processor."""

    pid: int
    started: int
    pause_loop: int
    threads: Mapping[int, ThreadWas]
    descriptors: frozenset[int]
    children: frozenset[int]
    memory: Mapping[int, bytes]
    signals: Signals
    towards: str
    is_unbound: bool = False


class Stopped(Protocol):
    """What is written of a process that stands still (seizing.Frozen)."""

    pid: int

    @property
    def instruction(self) -> int:
        """Address of the `syscall` instruction by which its threads make calls."""

    @property
    def threads(self) -> Mapping[int, StoppedThread]:
        """By tid."""


class NoJournal(FarhomeError):
    """What is there is no journal of a process that lives."""


class Journal:
    """One file, which says all or nothing. Errors of all methods: OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.memory: dict[int, bytes] = {}
        self.signals: Signals = []
        self.towards = ""
        self._had: tuple[list[int], list[int]] | None = None
        """descriptors and children, at first"""
        self._is_unbound = False

    def write(self, frozen: Stopped) -> None:
        """As its threads are to be put back now."""
        pid = frozen.pid
        if self._had is None:
            self._had, self._is_unbound = (sorted(descriptors(pid)), sorted(children(pid))), runs_anywhere(pid)
        threads = _were(list(frozen.threads.values()))
        place = frozen.instruction - ONE
        data = msgpack.packb(
            [pid, started(pid), place, threads, *self._had, self.memory, self.signals, self.towards, self._is_unbound]
        )  # fmt: skip
        self._unfinished.write_bytes(data)
        self._unfinished.rename(self.path)

    @property
    def _unfinished(self) -> Path:
        """Where it is written before it takes the place of the one before."""
        return self.path.with_name(f".{self.path.name}")

    def drop_unfinished(self) -> None:
        """Remove what a writer that was killed had not written to its end. It had not had the process make any call that this one would
        undo."""
        self._unfinished.unlink(missing_ok=True)

    def end(self) -> None:
        """The process goes on as it was, or never again."""
        self.path.unlink(missing_ok=True)
        self.drop_unfinished()


def read(path: Path) -> Entry:
    """Errors: OSError; NoJournal: also if the process has ended."""
    try:
        said = msgpack.unpackb(path.read_bytes(), strict_map_key=False)
        pid, began, pause_loop, threads, opened, born, memory, signals, towards, *later = said
        were = _threads(*threads)
        pending = [(tid, info) for tid, info in signals]
        entry = Entry(pid, began, pause_loop, were, frozenset(opened), frozenset(born), memory, pending, towards, later == [True])
    except (ValueError, TypeError, AttributeError) as error:
        raise NoJournal(f"{path} is no journal: {error}") from None
    if started(entry.pid) != entry.started:
        raise NoJournal(f"process {entry.pid} has ended")
    return entry


def started(pid: int) -> int:
    """Return when a process began, in clock ticks after boot; 0: it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rsplit(b")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if fields[0] in b"ZX" else int(fields[_STARTED_AT])


def descriptors(pid: int) -> frozenset[int]:
    """Those that a process has open. Errors: OSError."""
    return frozenset(int(name) for name in os.listdir(f"/proc/{pid}/fd"))


def children(pid: int) -> frozenset[int]:
    """Return those that its main thread has. Errors: OSError."""
    return frozenset(int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split())


def _were(threads: Sequence[StoppedThread]) -> list[Any]:
    """All threads, the parts of each apart: a move writes them several times, and there may be thousands."""
    return [
        [thread.tid for thread in threads],
        b"".join([bytes(thread.registers) for thread in threads]),
        [thread.signal_mask for thread in threads],
        {thread.tid: thread.rseq_section for thread in threads if thread.rseq_section is not None},
        {thread.tid: thread.in_hand for thread in threads if thread.in_hand},
    ]


def _threads(
    tids: list[int], registers: bytes, masks: list[int], sections: dict[int, list[Any]], pending: dict[int, list[bytes]]
) -> dict[int, ThreadWas]:
    """What _were() has made. Errors: ValueError."""
    if len(registers) != _REGISTERS * len(tids):
        raise ValueError("registers are missing")
    were = {}
    for place, (tid, mask) in enumerate(zip(tids, masks, strict=True)):
        section = sections.get(tid)
        its_own = registers[_REGISTERS * place : _REGISTERS * (place + 1)]
        were[tid] = ThreadWas(its_own, mask, (section[0], section[1]) if section is not None else None, pending.get(tid, []))
    return were
