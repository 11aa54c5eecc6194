"""Memory that follows a process home: it runs natively, with all that this means, while pages of it are still missing.

So nobody may ever find zeros where such a page was. If this program dies, another one, which holds the same userfaultfd, ends the process
(kernel_helpers/postcopy/uffd_guard.c); if the pages do not come, we do.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress

from engine.mappings.layout import Span
from engine.pour.postcopy import Taker
from kernel_helpers.common import library
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.stream.stream import Connection
from wire.waking import ready

log = logging.getLogger("deputy")

PATIENCE = 5.0
"""Seconds that the other program may take to go."""


class LateMemory:
    """For one coming home. `userfaultfd`: of the stub (postcopy.userfaultfd()), ours from here on; room: what comes ahead there;
    may_follow: whether something may follow. Errors: OSError."""

    def __init__(self, pid: int, userfaultfd: int, room: Sequence[Span], may_follow: bool) -> None:
        self.taker = Taker(pid, userfaultfd)
        self._process = -1
        self._guard: subprocess.Popen[bytes] | None = None
        try:
            self._process = os.pidfd_open(pid)
            if may_follow:
                self._guard = subprocess.Popen(
                    [library.build_directory() / "uffd_guard", str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL, pass_fds=[userfaultfd], start_new_session=True, cwd="/",
                )  # fmt: skip
            self.taker.guard(room)
        except BaseException:
            self.forgo()
            raise

    @property
    def may_follow(self) -> bool:
        """Whether memory may."""
        return self._guard is not None

    def begin(
        self, frozen: Frozen, owed: Sequence[Span], patience: float, done: Callable[[], None], connect: Callable[[], Connection]
    ) -> None:
        """What is owed follows from now on; the process stands still. patience: seconds without a connection; `done` is called when it is
        over. Errors: OSError: nothing follows; this is over."""
        try:
            self._arm_guard()
            self.taker.owe(frozen, owed)
        except BaseException:
            self.forgo()
            raise
        self.taker.start(patience, done, connect)

    def _arm_guard(self) -> None:
        """From now on the guard ends the process if we die. Errors: OSError."""
        guard = self._guard
        if guard is not None and guard.stdin is not None and guard.stdout is not None:
            guard.stdin.write(b"f")
            guard.stdin.flush()
            if ready([guard.stdout.fileno()], PATIENCE) and guard.stdout.read(1) == b"r":
                return
        raise OSError("nobody would see to it that all its memory comes")

    @property
    def is_over(self) -> bool:
        """Whether all is here, or nothing comes any more."""
        return self.taker.is_over

    @property
    def failure(self) -> str:
        """Why the process has to be ended, when it is over."""
        return self.taker.failure

    def end_process(self) -> None:
        """The process, and its children, end."""
        self._end_guard(b"")
        with suppress(ProcessLookupError):  # should the guard have been killed
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        self._close()

    def forgo(self) -> None:
        """Nothing follows; the process does not run, or has all."""
        self._end_guard(b"k")
        self._close()

    def _close(self) -> None:
        self.taker.close()
        if self._process >= 0:
            os.close(self._process)
            self._process = -1

    def _end_guard(self, word: bytes) -> None:
        guard = self._guard
        if guard is None:
            return
        assert guard.stdin is not None and guard.stdout is not None
        with suppress(OSError):
            guard.stdin.write(word)
            guard.stdin.close()
        try:
            guard.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            log.warning("the guard of process %d does not go", self.taker.pid)
        guard.stdout.close()
        self._guard = None
