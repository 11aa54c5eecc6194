"""How mosd has started a deputy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.leaving.permission import Owner
from kernel_helpers.process.journal import SUFFIX


@dataclass(frozen=True)
class Options:
    """How mosd started this deputy. link_timeout in seconds."""

    pid: int
    socket: Path
    node: str
    link_timeout: float
    engine: str
    images: Path
    owner: Owner
    """who registered the process, or that from which it comes"""
    memory: str = "auto"
    """when it goes: engine/pour/precopy.py, MODES"""
    trace: str = ""
    """where its calls are printed: nowhere, on its standard error ("-") or in a file"""
    files_port: int = 0
    """where the node's file server is, if files of the process may be read where it is; else 0"""
    deposits: Path = Path("/run/farhome/mfs/direct")
    """the socket at which that server takes them"""

    @property
    def journal(self) -> Path:
        """Where it is written what the process was before it was made to make calls."""
        return self.socket.with_suffix(SUFFIX)
