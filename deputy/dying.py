"""A guest that is about to end by a signal that dumps core. Where a core is wanted the process comes home with that signal waiting, as any
other, and the kernel ends it there: its memory, registers and threads are in the core, and its parent is told of it as ever. Else, and if
it does not come, the stub ends by that signal."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_helpers.process import tracing
from kernel_helpers.process.seizing import Frozen
from wire.frames import WireError

if TYPE_CHECKING:
    from deputy.deputy import Deputy

log = logging.getLogger("deputy")

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

    @property
    def number(self) -> int:
        """Of the signal."""
        return tracing.signal_number(self.info)

    def give(self, frozen: Frozen, host: int | None) -> None:
        """The thread (host, ours) gets it as it is let go. It could not wait: of the signals of faults the kernel gives the first in the
        queue, blocked or not, in place of the trap of an injected call (signal.c, dequeue_synchronous_signal)."""
        thread = frozen.threads.get(host or frozen.pid, frozen.leader)
        thread.in_hand = [self.info]


def begin(deputy: Deputy, tid: int, info: bytes, used: list[int]) -> None:
    """The guest stands still, and has used that away. Errors: WireError."""
    death = Death(tid, info, used)
    if len(info) != SIGINFO_BYTES or not 1 <= death.number <= SIGNALS:
        raise WireError(f"{deputy.where} tells of a signal that is none")
    if not is_wanted(deputy.pid):
        deputy.guest_died(death.number, used)
        return
    log.info("process %d ends: signal %d, code %d", deputy.pid, death.number, tracing.signal_code(info))
    deputy.death, deputy.go_home_reason = death, REASON


def has_failed(deputy: Deputy) -> None:
    """It does not come home. If it was to end there, it ends as it is."""
    death, deputy.death = deputy.death, None
    if death is not None:
        log.warning("the core of process %d lacks its memory", deputy.pid)
        deputy.go_home_reason = None
        deputy.guest_died(death.number, death.used)


def is_wanted(pid: int) -> bool:
    """Whether a core of the process would be kept: by its limit, or by a program that gets it (core(5)). Whether the kernel lets it be
    read at all (PR_SET_DUMPABLE) it finds out itself. Errors: ProcessLookupError."""
    try:
        limit = next(line[26:].split()[0] for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith(_LIMIT))
        pattern = _PATTERN.read_bytes()
    except (FileNotFoundError, StopIteration):
        return False
    if pattern[:1] in (b"|", b"@"):
        return limit != "1"
    return limit == "unlimited" or int(limit) >= _LEAST


__all__ = ["Death", "begin", "has_failed", "is_wanted"]
