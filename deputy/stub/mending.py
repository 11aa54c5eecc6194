"""`python -m deputy.stub.mending JOURNAL`: repairs a process whose deputy, or checkpoint program, was killed while it had the
process make calls; started by mosd.

A thread that is in its pause loop (kernel_helpers/process/pause_loop.py) gets back what it had; memory that was used is as it was, what was
opened in the meantime is closed, and copies of the process are ended. Signals that were taken come back in any case. If we are killed, too,
the next one finds the same.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path

from engine.context.capture import inner_tid
from engine.criu.forkcopy import WALL
from engine.signals.pending import put_first
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.process import journal, pause_loop
from kernel_helpers.process.injection.beside import let_run_anywhere
from kernel_helpers.process.journal import Journal, NoJournal, Signals
from kernel_helpers.process.seizing import Frozen, seize
from kernel_helpers.process.syscalls import SYS, Registers
from wire import logs

log = logging.getLogger("deputy")

PATIENCE = 5.0
"""Seconds for the end of its tracer."""


def mend(path: Path) -> None:
    """By the journal, which is not there any more afterwards. Errors: OSError (ProcessLookupError: it has ended), MoveRefused."""
    try:
        entry = journal.read(path)
    except (FileNotFoundError, NoJournal) as error:
        log.info("%s", error)
        Journal(path).end()
        return
    with _seize(entry.pid) as frozen:
        if entry.is_unbound and len(os.sched_getaffinity(entry.pid)) == 1:
            let_run_anywhere(entry.pid)
        threads = {tid: thread for tid, thread in frozen.threads.items() if pause_loop.is_in(entry.pause_loop, thread.registers.rip)}
        in_hand: Signals = []
        for tid in threads.keys() & entry.threads.keys():
            thread, was = threads[tid], entry.threads[tid]
            thread.registers, thread.signal_mask, thread.rseq_section = Registers.from_buffer_copy(was.registers), was.mask, was.section
            in_hand += [(inner_tid(entry.pid, tid), info) for info in was.pending]
        signals = in_hand + entry.signals
        ours = Journal(path)
        ours.memory, ours.signals = dict(entry.memory), signals
        frozen.keep(ours)
        if frozen.pid in threads:  # then they all have waited, and nothing has run
            for address, content in entry.memory.items():
                frozen.write(address, content)
            ours.memory = {}
            _end_copies(frozen, journal.children(entry.pid) - entry.children)
            for number in journal.descriptors(entry.pid) - entry.descriptors:
                frozen.call(SYS.close, number)
        put_first(frozen, signals)
    log.warning("process %d goes on, whose deputy was killed: %d threads waited", entry.pid, len(threads))


def _seize(pid: int) -> Frozen:
    """The kernel may have reported the end of its tracer before it has let go of it. Errors: as seize()."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return seize(pid)
        except PermissionError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def _end_copies(frozen: Frozen, born: frozenset[int]) -> None:
    """What has been made of it (engine/criu/forkcopy.py). Errors: OSError."""
    for child in born:
        inner = inner_tid(child, child)
        os.kill(child, signal.SIGKILL)
        frozen.call(SYS.wait4, inner, 0, WALL, 0)


def main() -> int:
    """Exit 0 when there is nothing left to do, 1 when it could not be done."""
    logs.begin("deputy")
    try:
        mend(Path(sys.argv[1]))
    except ProcessLookupError:
        Journal(Path(sys.argv[1])).end()
    except (OSError, FarhomeError) as error:
        log.error("%s: %s", sys.argv[1], error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
