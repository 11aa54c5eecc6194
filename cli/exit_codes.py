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

TEXT = """exit codes:
  0    done
  64   the command line makes no sense
  69   no node daemon answers here
  75   refused: it was not done, and may be another time
  77   not permitted
  78   the configuration or the keys are not usable
"""


class CommandError(Exception):
    """What a command tells its user in one sentence, and its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
