"""One move: how it is asked for, how far it has come, what it did, why it was not made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.leaving.permission import Owner
from kernel_helpers.common.errors import MoveRefused
from node.moves.home_process import HOME
from wire.frames import Message

STEPS_MOST, STEP_MOST = 40, 40
"""Steps of a move that a deputy may report, and characters of a name of one."""


class MoveFailed(MoveRefused):
    """process {pid} stays where it is: {reason}"""

    def __init__(self, pid: int, reason: str, where: str, no_place: bool = False) -> None:
        super().__init__(pid, reason)
        self.where = where
        self.no_place = no_place
        """its target did not take it: another may"""

    def __str__(self) -> str:
        return f"process {self.pid} stays {'at home' if self.where == HOME else f'on {self.where}'}: {self.reason}"


class NoPlace(MoveRefused):
    """process {pid} stays at home: {reason}"""

    def __init__(self, pid: int, reason: str, passes: bool) -> None:
        super().__init__(pid, reason)
        self.passes = passes
        """the target is only busy just now"""


@dataclass(frozen=True)
class MoveReport:
    """What a move did; times in milliseconds, size in bytes, ahead: of these, those that were sent while the process ran, in ahead_ms."""

    pid: int
    where: str
    frozen_ms: float
    total_ms: float
    size: int
    engine: str
    ahead: int = 0
    ahead_ms: float = 0.0
    follows: int = 0
    """bytes that follow it, at most"""
    steps: tuple[tuple[str, float, bool], ...] = ()
    """what it was made of, in order: name, milliseconds, whether the process stood still"""


@dataclass(frozen=True)
class Manner:
    """How a move is made, where that is not as the configuration says: config.ENGINES and config.MEMORY."""

    engine: str = ""
    memory: str = ""
    asker: Owner | None = None
    """who has asked for it by hand"""
    begins: Callable[[], None] | None = None
    """the process is mosrun, which is to execute its program when this is called, and leaves then: deputy/moves/programs/beginning.py"""
    says: bool = False
    """the reason why it has not left is written on its program's standard error"""
    why: str = ""
    """the reason of its move home that is shown with it from then on"""

    def fields(self) -> dict[str, str]:
        """Of a request to a deputy."""
        return {name: value for name, value in (("engine", self.engine), ("memory", self.memory)) if value}


@dataclass(frozen=True)
class Progress:
    """How far a move has come whose memory goes ahead of the process: bytes sent, of `total` at the begin; in round `round`, which began
    with `left` bytes, at `at` (seconds since the epoch)."""

    sent: int
    total: int
    round: int
    left: int
    rate: float
    """bytes per second, of late"""
    at: float

    def row(self) -> dict[str, Any]:
        """As mosps --json shows it."""
        return {"sent": self.sent, "total": self.total, "round": self.round, "left": self.left, "rate": self.rate}


def report_of(pid: int, answer: Message, reserved: float | None = None) -> MoveReport:
    """Return what a deputy answered. reserved: milliseconds that its place had taken before. Errors: MoveRefused with its sentence,
    ValueError, TypeError."""
    if answer.get("ok") is not True:
        sentence = str(answer.get("error", "the deputy refused without a reason"))
        raise MoveRefused(pid, sentence.removeprefix(f"process {pid} stays at home: "))
    steps = [("place reserved", reserved, False)] if reserved is not None else []
    steps += [(str(name)[:STEP_MOST], float(ms), frozen is True) for name, ms, frozen in answer.get("steps", [])[:STEPS_MOST]]
    return MoveReport(
        pid, str(answer["where"]), float(answer.get("frozen_ms", 0.0)), float(answer.get("total_ms", 0.0)),
        int(answer.get("bytes", 0)), str(answer.get("engine", "")), int(answer.get("ahead", 0)),
        float(answer.get("ahead_ms", 0.0)), int(answer.get("follows", 0)),
        tuple(steps),
    )  # fmt: skip
