"""Exceptions that every room shares: one sentence, one exit code."""

from __future__ import annotations


class FarhomeError(Exception):
    """An error that a user sees as one sentence."""

    exit_code = 1


def sentence(error: BaseException) -> str:
    """Return the sentence for an error: of one of the kernel's its words, without its number."""
    if isinstance(error, ProcessLookupError):
        return "it has ended"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
    return str(error)


class MoveRefused(FarhomeError):
    """process {pid} stays at home: {reason}"""

    exit_code = 75

    def __init__(self, pid: int, reason: str) -> None:
        super().__init__(pid, reason)
        self.pid = pid
        self.reason = reason

    def __str__(self) -> str:
        return f"process {self.pid} stays at home: {self.reason}"
