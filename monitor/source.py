"""Where pictures come from, and who makes the moves that a person asks for."""

from __future__ import annotations

from typing import Protocol

from monitor.picture import Listing, Picture


class Trouble(Exception):
    """It could not be had, or not be done; the message is one sentence for the person at the screen."""


class Source(Protocol):
    """The daemon of this node, as the monitor uses it. Everything may take its time, and raise Trouble."""

    def picture(self) -> Picture:
        """The cluster now."""

    def listing(self, node: str) -> Listing:
        """Return what another node reports about its processes."""

    def why(self, pid: int) -> list[str]:
        """Return what became of a process, in lines."""

    def move(self, pid: int, target: str) -> str:
        """Moves a process to a node, "home", "out" or "balance"; returns what came of it in one sentence."""
