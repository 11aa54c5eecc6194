"""A program that the daemon has started, until it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Protocol


class Started(Protocol):
    """A program, or a part of one (node/programs/hosts.py), that runs on its own."""

    returncode: int | None
    """as subprocess has it; None: it goes on"""

    def watch(self, on_end: Callable[[], None]) -> None:
        """Calls on_end once it has ended, and returncode is known. Once for each."""

    def forget(self) -> None:
        """Nobody cares any more how it ends."""

    def kill(self) -> None:
        """Ends it, if it has not ended."""


class Child:
    """A child process of ours."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = -1

    def watch(self, on_end: Callable[[], None]) -> None:
        """See Started."""
        self._pidfd = os.pidfd_open(self.pid)

        def ended() -> None:
            self._unwatch()
            self.wait()
            on_end()

        asyncio.get_running_loop().add_reader(self._pidfd, ended)

    def _unwatch(self) -> None:
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def forget(self) -> None:
        """See Started."""
        self._unwatch()

    def wait(self) -> int:
        """Return the exit status; negative: the signal."""
        if self.returncode is None:
            try:
                self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            except ChildProcessError:
                self.returncode = 0
        return self.returncode

    def kill(self) -> None:
        """SIGKILL, as long as it has not been waited for."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)
