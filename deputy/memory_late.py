"""Memory that follows a process home: it runs natively, with all that this means, while pages of it are still missing.

So nobody may ever find zeros where such a page was. If this program dies, another one, which holds the same userfaultfd, ends the process
(kernel_helpers/postcopy/pledge.c); if the pages do not come, we do.
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


class Pledge:
    """For one coming home. `userfaultfd`: of the stub (postcopy.userfaultfd()), ours from here on; room: what comes ahead there;
    may_follow: whether something may follow. Errors: OSError."""

    def __init__(self, pid: int, userfaultfd: int, room: Sequence[Span], may_follow: bool) -> None:
        self.taker = Taker(pid, userfaultfd)
        self._process = -1
        self._keeper: subprocess.Popen[bytes] | None = None
        try:
            self._process = os.pidfd_open(pid)
            if may_follow:
                self._keeper = subprocess.Popen(
                    [library.build_directory() / "pledge", str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL, pass_fds=[userfaultfd], start_new_session=True, cwd="/",
                )  # fmt: skip
            self.taker.guard(room)
        except BaseException:
            self.forgo()
            raise

    @property
    def may_follow(self) -> bool:
        """Whether memory may."""
        return self._keeper is not None

    def begin(
        self, frozen: Frozen, owed: Sequence[Span], patience: float, done: Callable[[], None], connect: Callable[[], Connection]
    ) -> None:
        """What is owed follows from now on; the process stands still. patience: seconds without a connection; `done` is called when it is
        over. Errors: OSError: nothing follows; the pledge is over."""
        try:
            self._arm()
            self.taker.owe(frozen, owed)
        except BaseException:
            self.forgo()
            raise
        self.taker.start(patience, done, connect)

    def _arm(self) -> None:
        """From now on the keeper ends the process if we die. Errors: OSError."""
        keeper = self._keeper
        if keeper is not None and keeper.stdin is not None and keeper.stdout is not None:
            keeper.stdin.write(b"f")
            keeper.stdin.flush()
            if ready([keeper.stdout.fileno()], PATIENCE) and keeper.stdout.read(1) == b"r":
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

    def break_(self) -> None:
        """The process, and its children, end."""
        self._let_keeper_go(b"")
        with suppress(ProcessLookupError):  # should the keeper have been killed
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        self._close()

    def forgo(self) -> None:
        """Nothing follows; the process does not run, or has all."""
        self._let_keeper_go(b"k")
        self._close()

    def _close(self) -> None:
        self.taker.close()
        if self._process >= 0:
            os.close(self._process)
            self._process = -1

    def _let_keeper_go(self, word: bytes) -> None:
        keeper = self._keeper
        if keeper is None:
            return
        assert keeper.stdin is not None and keeper.stdout is not None
        with suppress(OSError):
            keeper.stdin.write(word)
            keeper.stdin.close()
        try:
            keeper.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            log.warning("the keeper of process %d does not go", self.taker.pid)
        keeper.stdout.close()
        self._keeper = None
