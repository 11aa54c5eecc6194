"""A guest that is about to end by a signal that dumps core. Where a core is wanted the process comes home with that signal waiting, as any
other, and the kernel ends it there: its memory, registers and threads are in the core, and its parent is informed as ever. Else, and if
it does not come, the stub ends by that signal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernel_helpers.process import tracing
from kernel_helpers.process.seizing import Frozen
from wire.frames import WireError

REASON = "it ends, and its core is wanted"
SIGNALS = 64
SIGINFO_BYTES = 128
_PATTERN = Path("/proc/sys/kernel/core_pattern")
_LIMIT = "Max core file size"
_LEAST = 4096
"""Bytes of a core: ELF_EXEC_PAGESIZE (fs/binfmt_elf.c, min_coredump)."""


@dataclass(frozen=True)
class Death:
    """The signal, to that thread (the program's id)."""

    tid: int
    info: bytes
    used: list[int]
    """by the process away (account.FIELDS)"""

    def check(self, where: str) -> None:
        """where: the node that reports it. Errors: WireError."""
        if len(self.info) != SIGINFO_BYTES or not 1 <= self.number <= SIGNALS:
            raise WireError(f"{where} reports a signal that is none")

    @property
    def number(self) -> int:
        """Of the signal."""
        return tracing.signal_number(self.info)

    @property
    def code(self) -> int:
        """Of the signal (si_code)."""
        return tracing.signal_code(self.info)

    def give(self, frozen: Frozen, host: int | None) -> None:
        """The thread (host, ours) gets it as it is let go. It could not wait: of the signals of faults the kernel gives the first in the
        queue, blocked or not, in place of the trap of an injected call (signal.c, dequeue_synchronous_signal)."""
        thread = frozen.threads.get(host or frozen.pid, frozen.leader)
        thread.in_hand = [self.info]


def is_wanted(pid: int) -> bool:
    """Return whether a core of the process would be kept: by its limit, or by a program that gets it (core(5)). Whether the kernel lets it
    be read at all (PR_SET_DUMPABLE) it finds out itself. Errors: ProcessLookupError."""
    try:
        limit = next(line[26:].split()[0] for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith(_LIMIT))
        pattern = _PATTERN.read_bytes()
    except (FileNotFoundError, StopIteration):
        return False
    if pattern[:1] in (b"|", b"@"):
        return limit != "1"
    return limit == "unlimited" or int(limit) >= _LEAST


__all__ = ["REASON", "Death", "is_wanted"]
