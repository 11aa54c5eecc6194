"""Which call a thread is in that the kernel has restarted by restart_syscall(2).

A sleep or poll that was interrupted once already (a stop, an earlier move) shows as call 219, and its own number is nowhere in the
registers. What the thread waits in tells it: /proc/PID/task/TID/wchan, read while it still waits.
"""

from __future__ import annotations

from pathlib import Path

from kernel_helpers.inject import SYS, Frozen, signed

RESTARTED = -516
_CLOCKS = 64
"""Clock ids are small numbers, addresses are not."""


def waiting_places(pid: int) -> dict[int, str]:
    """tid -> the kernel function that the thread waits in, "" or "0" if it runs."""
    found = {}
    for entry in Path(f"/proc/{pid}/task").glob("[0-9]*"):
        try:
            found[int(entry.name)] = (entry / "wchan").read_text()
        except OSError:
            continue
    return found


def name_restarted_calls(frozen: Frozen, places: dict[int, str]) -> None:
    """Gives threads that stand in restart_syscall the number of the call that they wait in, in their registers' orig_rax. The
    kernel does not look at it when it restarts them here."""
    for tid, thread in frozen.threads.items():
        registers = thread.registers
        if signed(registers.orig_rax) == SYS.restart_syscall and signed(registers.rax) == RESTARTED:
            place = places.get(tid, "")
            if "poll" in place:
                registers.orig_rax = SYS.poll
            elif "futex" in place:
                registers.orig_rax = SYS.futex
            else:
                # The functions of a restarted sleep do not show: they belong to the scheduler's section or are jumped to.
                registers.orig_rax = SYS.clock_nanosleep if registers.rdi < _CLOCKS else SYS.nanosleep
