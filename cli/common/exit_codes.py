"""Exit codes of farhome's commands, those of sysexits(3) where one fits, and the error that carries one."""

from __future__ import annotations

OK = 0
FAILED = 1
USAGE = 64
"""The command line makes no sense."""
UNAVAILABLE = 69
"""No node daemon answers here."""
INTERNAL = 70
"""A fault of farhome itself."""
REFUSED = 75
"""It was not done, and may be another time: the sentence says why."""
NOT_PERMITTED = 77
"""Not this user's process, or only root may."""
CONFIGURATION = 78
"""The configuration or the keys are not usable."""
NOT_EXECUTABLE = 126
"""mosrun: the program cannot be executed (as a shell says it)."""
NOT_FOUND = 127
"""mosrun: there is no such program (as a shell says it)."""

INTERRUPTED = 130
"""Ctrl-C, as a shell says it."""

MEANINGS = {
    OK: "done",
    FAILED: "it could not be done; the sentence says why",
    USAGE: "the command line makes no sense",
    UNAVAILABLE: "no node daemon answers here",
    INTERNAL: "a fault of farhome itself",
    REFUSED: "refused: it was not done, and may be another time",
    NOT_PERMITTED: "not permitted",
    CONFIGURATION: "the configuration or the keys are not usable",
    NOT_EXECUTABLE: "mosrun: the program cannot be executed",
    NOT_FOUND: "mosrun: there is no such program",
    INTERRUPTED: "interrupted",
}
COMMON = (OK, FAILED, USAGE, UNAVAILABLE, INTERNAL, REFUSED, NOT_PERMITTED, CONFIGURATION, INTERRUPTED)
"""Those that every command may end with that asks the node daemon."""


def text(codes: tuple[int, ...] = COMMON) -> str:
    """Return the part of --help that lists exit codes."""
    return "exit codes:\n" + "".join(f"  {code:<4} {MEANINGS[code]}\n" for code in codes)


class CommandError(Exception):
    """What a command reports to its user in one sentence, and its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
