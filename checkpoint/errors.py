"""What a checkpoint, or a restart from one, is refused with: one sentence."""

from __future__ import annotations

from kernel_helpers.common.errors import FarhomeError


class CheckpointRefused(FarhomeError):
    """process {pid} cannot be checkpointed: {reason}"""

    exit_code = 75

    def __init__(self, pid: int, reason: str) -> None:
        super().__init__(pid, reason)
        self.pid = pid
        self.reason = reason

    def __str__(self) -> str:
        return f"process {self.pid} cannot be checkpointed: {self.reason}"


class RestartRefused(FarhomeError):
    """{directory} cannot be restarted: {reason}"""

    exit_code = 75


class BadCheckpoint(RestartRefused):
    """What is in the directory is no checkpoint, or not a whole one."""
