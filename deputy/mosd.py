"""Reports to the node daemon about one process: answers to its questions, and events. Its words are here, and in no other file of the
room."""

from __future__ import annotations

import time

from deputy.moves.report import Report
from engine.pour.precopy import Progress
from wire.local import LocalServer

PROGRESS_PERIOD = 0.2
"""Seconds between two words of how far a move has come."""


class Mosd:
    """For one process, over its deputy's socket."""

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self._reported_progress = 0.0
        self._reported_cut = False

    def answer(self, number: int | None, report: Report) -> None:
        """The move that the message `number` asks for is made."""
        self._server.send(
            {
                "id": number, "ok": True, "where": report.where, "frozen_ms": round(report.frozen_ms, 2),
                "total_ms": round(report.total_ms, 2), "bytes": report.size, "engine": report.engine,
                "ahead": report.ahead.sent, "ahead_ms": round(report.ahead.seconds * 1e3, 2),
                "follows": report.follows, "steps": [[name, round(ms, 2), frozen] for name, ms, frozen in report.steps],
            }
        )  # fmt: skip

    def refuse(self, number: int | None, sentence: str, where: str) -> None:
        """What the message `number` asks for is not done; where: the process is."""
        self._server.send({"id": number, "ok": False, "error": sentence, "where": where})

    def status(self, number: int | None, **fields: object) -> None:
        """As the message `number` asks."""
        self._server.send({"id": number, "ok": True, **fields})

    def state(self, where: str, reason: str, frozen_ms: float) -> None:
        """The process is there now."""
        self._server.send({"event": "state", "where": where, "reason": reason, "frozen_ms": frozen_ms})

    def begins(self) -> None:
        """mosrun may execute its program."""
        self._server.send({"event": "begins"})

    def executed(self, where: str) -> None:
        """The process has executed a program, there."""
        self._server.send({"event": "executed", "where": where})

    def ended(self, status: str | None, cpu: float = 0.0, calls: int = 0) -> None:
        """The process has. status: None if nobody knows; what it has used away: seconds of cpu, and calls that home has answered."""
        self._server.send({"event": "exit", "status": status, "cpu": round(cpu, 6), "calls": calls})

    def lost(self, where: str, reason: str, sentence: str) -> None:
        """No copy of the process exists any more. where: it was; sentence: for its user."""
        self._server.send({"event": "lost", "node": where, "reason": reason, "sentence": sentence})

    def progress(self, progress: Progress) -> None:
        """Now and then, while memory of the process goes ahead of it."""
        now = time.monotonic()
        if progress.total and now - self._reported_progress >= PROGRESS_PERIOD:
            self._reported_progress = now
            self._server.send(
                {"event": "progress", "sent": progress.sent, "total": progress.total, "round": progress.round, "left": progress.left}
            )

    def cut(self, seconds: float) -> None:
        """The node of the guest has not been heard for so long, or (0) is heard: reported when that changes."""
        if (seconds > 0) != self._reported_cut:
            self._reported_cut = seconds > 0
            self._server.send({"event": "cut", "cut": seconds})


__all__ = ["Mosd"]
