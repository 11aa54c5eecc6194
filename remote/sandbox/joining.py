"""A process joins a cgroup without a wait.

The first process for a while that the kernel moves to another cgroup waits for a grace period of RCU, 5 to 20 ms, with all others that fork
or end behind it (cgroup.c, cgroup_attach_lock; percpu-rwsem.c, percpu_down_write); those that follow within the next one do not. So this
program "moves" to the cgroup that it is in, again and again, while a guest is on its way; the guest's process 1 then joins at once.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from wire.logs import start_thread

PERIOD = 0.004
"""Seconds: less than a grace period takes."""
MOST = 250
"""Times: a guest that has not come by then waits."""

log = logging.getLogger("remote")


class QuickJoining:
    """Processes join cgroups at once from soon after this until close()."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        start_thread("joining", self._run)

    def _run(self) -> None:
        own = str(os.getpid())
        try:
            for path in itertools.islice(own_groups(), 1):
                for _ in range(MOST):
                    path.write_text(own)
                    if self._is_over.wait(PERIOD):
                        return
        except OSError as error:  # then it takes longer
            log.debug("cgroups: %s", error)

    def close(self) -> None:
        """The guest has joined, or does not come."""
        self._is_over.set()


def own_groups(mounts: str = "/proc/self/mounts", groups: str = "/proc/self/cgroup") -> Iterator[Path]:
    """Yield the `cgroup.procs` of the cgroup that this process is in, in each hierarchy. Errors: OSError."""
    own = [line.split(":", 2)[1:] for line in Path(groups).read_text(encoding="utf-8").splitlines()]
    for line in Path(mounts).read_text(encoding="utf-8").splitlines():
        if " cgroup" not in line:
            continue
        _, point, kind, options, *_ = line.split()
        wanted = {"cgroup": set(options.split(",")), "cgroup2": {""}}.get(kind, set())
        for controllers, path in own:
            found = Path(point + path.rstrip("/")) / "cgroup.procs"
            if wanted.issuperset(controllers.split(",")) and os.access(found, os.W_OK):
                yield found
