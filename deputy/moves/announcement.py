"""What a target is told of a process before it comes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.context.capture import identity, inner_tid
from engine.files.files import MappedFile
from engine.leaving.permission import has_fixed_ids
from engine.mappings.memory_nodes import memory_nodes
from kernel_helpers.pages.pages import knows_guards


def announcement(
    pid: int, home: str, link_timeout: float | None, mapped: Sequence[MappedFile], command: str = "", is_hop: bool = False
) -> dict[str, Any]:
    """Return the fields of `prepare`. command: the name of the program that the process is about to execute. Errors: OSError."""
    status = _status(pid)
    return {
        "pid": inner_tid(pid, pid), "home": home, "nodename": os.uname().nodename, "uid": int(status["Uid"].split()[0]),
        "command": command or status["Name"].strip(), "files": [file.to_wire() for file in mapped], "link_timeout": link_timeout,
        "memory_nodes": memory_nodes(), "guards": knows_guards(),
        "ids": sorted({int(word) for name in ("Uid", "Gid", "Groups") for word in status.get(name, "").split()}),
        "identity": identity(pid).to_wire() if is_hop else None, "fixed_ids": has_fixed_ids(pid),
    }  # fmt: skip


def _status(pid: int) -> dict[str, str]:
    return dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
