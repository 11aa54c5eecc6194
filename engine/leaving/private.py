"""Private directories of a process (mosrun -X): mounts that only it and its children see, in a mount namespace of theirs.

All that this namespace has beyond the node's own are these; so a process in it can move as any other: the stub stays in it, and what
the guest asks by a path is found there. kernel_helpers/namespaces/private.c makes them, and only root could make what looks like them.
"""

from __future__ import annotations

import os
import re

SOURCE = "farhome-private"
"""What their mounts are called (kernel_helpers/namespaces/private.c)."""
_ESCAPED = re.compile(rb"\\([0-7]{3})")


def has_own_mounts(pid: int) -> bool:
    """Return whether a process is in another mount namespace than we are. Errors: FileNotFoundError, PermissionError."""
    return os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")


def private_directories(pid: int) -> list[str]:
    """Their paths, as the process knows them. Errors: FileNotFoundError, PermissionError."""
    if not has_own_mounts(pid):
        return []
    with open(f"/proc/{pid}/mountinfo", "rb") as lines:
        found = [line.split() for line in lines if line.endswith(b"\n") and f" - tmpfs {SOURCE} ".encode() in line]
    return [os.fsdecode(_ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), fields[4])) for fields in found]
