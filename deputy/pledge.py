"""Memory that follows a process home: it runs natively, with all that this means, while pages of it are still missing.

So nobody may ever find zeros where such a page was. If this program dies, another one, which holds the same userfaultfd, ends the process
(kernel_helpers/pledge.c); if the pages do not come, we do.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress

from engine.layout import Span
from engine.postcopy import Taker
from kernel_helpers import library
from kernel_helpers.inject import Frozen

log = logging.getLogger("deputy")

PATIENCE = 5.0
"""Seconds that the other program may take to go."""


class Pledge:
    """For one coming home. `userfaultfd`: of the stub (postcopy.userfaultfd()), ours from here on. Errors: OSError."""

    def __init__(self, pid: int, userfaultfd: int) -> None:
        self.pid = pid
        self._userfaultfd = userfaultfd
        self._taker: Taker | None = None
        try:
            self._keeper = subprocess.Popen(
                [library.build_directory() / "pledge", str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, pass_fds=[userfaultfd], start_new_session=True, cwd="/",
            )  # fmt: skip
        except BaseException:
            os.close(userfaultfd)
            raise

    def begin(
        self, frozen: Frozen, areas: Sequence[Span], owed: Sequence[Span], patience: float, done: Callable[[], None],
        connect: Callable[[], socket.socket],
    ) -> None:  # fmt: skip
        """What is owed in `areas` follows from now on; the process stands still. patience: seconds without a connection; `done` is called
        when it is over. Errors: OSError: nothing follows; the pledge is over."""
        assert self._keeper.stdout is not None
        userfaultfd, self._userfaultfd = self._userfaultfd, -1
        try:
            self._taker = Taker(self.pid, userfaultfd)
            self._taker.arm(frozen, areas, owed)
            if self._keeper.stdout.read(1) != b"r":
                raise OSError("nobody would see to it that all its memory comes")
        except BaseException:
            self.forgo()
            raise
        self._taker.start(patience, done, connect)

    @property
    def is_over(self) -> bool:
        """Whether all is here, or nothing comes any more."""
        return self._taker is not None and self._taker.is_over

    @property
    def failure(self) -> str:
        """Why the process has to be ended, when it is over."""
        return self._taker.failure if self._taker is not None else ""

    def keep(self) -> None:
        """It is over, and all is well."""
        self.forgo()

    def break_(self) -> None:
        """The process, and its children, end."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._go()
        if self._taker is not None:
            self._taker.close()

    def forgo(self) -> None:
        """Nothing follows; the process does not run, or has all."""
        assert self._keeper.stdin is not None
        with suppress(OSError):
            self._keeper.stdin.write(b"k")
            self._keeper.stdin.close()
        self._go()
        if self._userfaultfd >= 0:
            os.close(self._userfaultfd)
            self._userfaultfd = -1
        if self._taker is not None:
            self._taker.close()

    def _go(self) -> None:
        assert self._keeper.stdout is not None
        try:
            self._keeper.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            log.warning("the keeper of process %d does not go", self.pid)
        self._keeper.stdout.close()
