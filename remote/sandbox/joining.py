"""A process joins a cgroup without a wait.

The first process for a while that the kernel moves to another cgroup waits for a grace period of RCU, 5 to 20 ms, with all others that fork
or end behind it (cgroup.c, cgroup_attach_lock; percpu-rwsem.c, percpu_down_write); those that follow within the next one do not. So, while
a guest is on its way, this program has the kernel "move" a child of its own again and again; the guest's process 1 then joins at once. The
child has ended, and nobody has waited for it: the kernel takes its lock for it, and moves nothing.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from wire.logs import start_thread

PERIOD = 0.004
"""Seconds: less than a grace period takes."""
MOST = 250
"""Times: a guest that has not come by then waits."""
ENDS_AT_ONCE = ["true"]

log = logging.getLogger("remote")


class QuickJoining:
    """Processes join cgroups at once from soon after this until close()."""

    def __init__(self, directories: Sequence[str]) -> None:
        """directories: of any cgroup that processes may be moved to, best the guest's; what holds of one hierarchy holds of all."""
        self._is_over = threading.Event()
        if directories:
            start_thread("joining", self._run, Path(directories[0]) / "cgroup.procs")

    def _run(self, path: Path) -> None:
        try:
            with subprocess.Popen(ENDS_AT_ONCE, stdin=subprocess.DEVNULL) as child:
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
                for _ in range(MOST):
                    path.write_text(str(child.pid))
                    if self._is_over.wait(PERIOD):
                        return
        except OSError as error:  # then it takes longer
            log.debug("cgroups: %s", error)

    def close(self) -> None:
        """The guest has joined, or does not come."""
        self._is_over.set()
