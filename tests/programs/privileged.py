"""Copies of the program rights whose files give rights: "plain" none, "setuid", "setgid", and "capable" a file capability."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.programs.build import program

FILE_CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")  # VFS_CAP_REVISION_2, effective: CAP_NET_RAW


def copy_into(directory: Path) -> None:
    """Make the four copies, of root, in a directory of a file system that lets files give rights."""
    for name, mode, gid in (("plain", 0o755, 0), ("setuid", 0o4755, 0), ("setgid", 0o2755, 5), ("capable", 0o755, 0)):
        shutil.copy(program("rights"), directory / name)
        os.chown(directory / name, 0, gid)
        (directory / name).chmod(mode)
    os.setxattr(directory / "capable", "security.capability", FILE_CAPABILITY)
