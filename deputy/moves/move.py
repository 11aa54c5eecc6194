"""A move under way, as a value: a state machine that each turn of the loop makes one step of (docs/moving.md)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from deputy.moves.preparation import Preparation
from engine.pour.precopy import Progress


@dataclass(frozen=True)
class Wanted:
    """A move of a process that is away, asked for by the message `number`: a hop that is prepared, or home (None, with a reason)."""

    number: int | None
    preparation: Preparation | None = None
    reason: str = ""


class Move(ABC):
    """Of one process. wanted: what remains to be done if the process executes another program in the middle."""

    wanted: Wanted | None

    @property
    @abstractmethod
    def progress(self) -> Progress:
        """Of the memory that goes ahead."""

    @abstractmethod
    def step(self) -> Move | None:
        """One step, if it is due. Returns the move that is under way then; None: it is over, made or not, and mosd has been informed."""

    def overtaken(self) -> None:  # noqa: B027
        """The process executes another program; what is wanted is made with that."""

    @abstractmethod
    def abandon(self) -> None:
        """The process has ended, or its deputy does: takes away what was made for the move."""


__all__ = ["Move", "Wanted"]
