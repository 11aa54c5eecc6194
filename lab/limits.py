"""Limits of the kernel that are one machine's, of which nodes are many: raised while there is a lab, and given back after the last."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from lab import state

NODES = 64
"""For so many a machine's limit is made enough."""
SETTINGS = Path("/proc/sys")
_LIMITS = ("fs/fanotify/max_user_groups", "fs/inotify/max_user_instances")
_KEPT = "limits.json"


def raise_them() -> None:
    """Make room for the nodes' programs; a kernel that has no such limit, or gives no right to it, is left as it is."""
    with state.locked_directory(state.DIRECTORY) as directory:
        if (directory / _KEPT).exists():
            return
        before = dict(_read())
        (directory / _KEPT).write_text(json.dumps(before))
        for name, value in before.items():
            _write(name, value * NODES)


def give_them_back() -> None:
    """Make them what they were, and remove the directory of all labs, unless another lab is there."""
    if not state.DIRECTORY.exists() or state.names():
        return
    with state.locked_directory(state.DIRECTORY) as directory:
        if state.names():
            return
        with contextlib.suppress(FileNotFoundError, ValueError):
            for name, value in json.loads((directory / _KEPT).read_text()).items():
                _write(name, value)
        (directory / _KEPT).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            directory.rmdir()


def _read() -> Iterator[tuple[str, int]]:
    for name in _LIMITS:
        with contextlib.suppress(OSError):
            yield name, int((SETTINGS / name).read_text())


def _write(name: str, value: int) -> None:
    with contextlib.suppress(OSError):
        (SETTINGS / name).write_text(str(value))
