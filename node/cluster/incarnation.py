"""Which incarnation of this node it is: what others remember of an earlier one must be distinguished from what is said now."""

from __future__ import annotations

import time
from pathlib import Path

from node.common.paths import write_atomically


def begin(path: Path) -> int:
    """Return a number greater than those of all earlier lives, also where the clock was set back. Errors: OSError."""
    try:
        before = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        before = 0
    incarnation = max(before + 1, int(time.time()))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, b"%d\n" % incarnation)
    return incarnation
