"""Control groups that are one test's own: what a daemon of another test bounds, makes or removes is not in them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from node.guests.cgroups import hierarchies

_COUNT = itertools.count()


@contextmanager
def own_points() -> Iterator[dict[str, Path]]:
    """A new group in each hierarchy, by controller, like hierarchies(); it must be empty at the end. Errors: OSError."""
    name = f"farhome-test-{os.getpid()}-{next(_COUNT)}"
    points = {controller: point / name for controller, point in hierarchies().items()}
    for point in set(points.values()):
        for controller in ("cpu", "memory", "pids"):
            with suppress(OSError):  # version 1, or the controller is elsewhere
                (point.parent / "cgroup.subtree_control").write_text(f"+{controller}")
        point.mkdir()
    try:
        yield points
    finally:
        for point in set(points.values()):
            point.rmdir()
