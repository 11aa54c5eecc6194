"""How mosd has started a remote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.files.store import LIMIT
from remote.sandbox import identity


@dataclass(frozen=True)
class Options:
    """How mosd started this remote. link_timeout in seconds."""

    home: str
    pid: int
    socket: Path
    secret: bytes
    address: str
    node: str
    link_timeout: float
    interception: str
    cgroup: str
    images: Path
    cache: Path
    pki: Path | None = None
    """the node's certificates, if guests may read files of their homes directly"""
    plain: bool = False
    """whether what it says to other nodes need not be encrypted"""
    direct_after: int = 16
    """reads of a file that go home before"""
    own_files: Path | None = None
    """where this node's files are as others see them"""
    ids: tuple[int, int] | None = identity.DEFAULT
    """from which the ids of guests are, first and last; None: guests have those of home"""
    root_counts: bool = False
    """whether root of the home is root in these"""
    announced: int = 0
    """bytes of memory that the guest was said to have"""
    lent_disk: int = LIMIT
    """bytes of the disk that all files of homes may take"""
    engines: frozenset[str] = frozenset({"pour", "criu"})
    """by which the owner lets guests come"""
