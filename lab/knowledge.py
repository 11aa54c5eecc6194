"""What CRIU has found out about this machine's kernel, handed from labs to later ones.

All nodes of all labs have one kernel, of which CRIU asks some hundred questions where it does not know it (remote/sandbox/rehearsal.py).
Real nodes ask once, when their first daemon starts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from engine.criu import kept
from kernel_helpers.common.library import build_directory

FILES = "criu"
"""Below the directory of a node's files: what `node-setup` puts where the node's CRIU keeps it."""


def _directory() -> Path:
    return build_directory() / "kernel" / kept.subject()


def hand_over(files: Path) -> None:
    """Puts what is known among the files of a node that is about to be made. No error."""
    with contextlib.suppress(OSError):
        if (known := _directory()).is_dir():
            shutil.copytree(known, files / FILES, dirs_exist_ok=True)


def keep(roots: Iterable[Path]) -> None:
    """Takes what one of these nodes has found out. No error."""
    with contextlib.suppress(OSError):
        known = _directory()
        if known.is_dir():
            return
        for root in roots:
            found = {path.name: path.read_bytes() for path in (root / kept.KEPT.relative_to("/")).glob("kept-*")}
            if kept.TRIAL in found:  # the last that is found out
                fresh = known.with_name(f".{known.name}.{os.getpid()}")
                fresh.mkdir(parents=True)
                for name, data in found.items():
                    (fresh / name).write_bytes(data)
                fresh.rename(known)
                return
