"""The program that reads what comes from the network (node/cluster/front/program.py), started, and started again when it ends.

Before mosd sends it anything, it checks that the program has no rights left. A program that has, sends nonsense or does not answer is
ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import msgpack

from node.cluster.front import rights
from node.cluster.front.pipe import Pipe
from node.cluster.front.values import LONGEST
from node.programs.programs import environment

PAUSE, LONGEST_PAUSE, LONG = 0.1, 10.0, 60.0
"""Seconds until it is started again, the first time and at most; for how long it must have lived for the pause to be the first one."""
LOOKS = 8
"""Unanswered questions whether it is there after which it is ended."""
SETTLE_TIMEOUT = 1.0

log = logging.getLogger("mosd.front")


class Supervisor:
    """Keeps one such program running. A subclass handles its start, its messages and its loss."""

    def __init__(self) -> None:
        self.pid = 0
        """0: there is none at the moment"""
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Pipe | None = None
        self._ready = asyncio.Event()
        self._again: asyncio.TimerHandle | None = None
        self._started, self._pause = float("-inf"), PAUSE
        self._unanswered = 0
        self._there = asyncio.Event()
        self._closed = False

    def _began(self) -> None:
        """Called when messages can be sent to it."""
        raise NotImplementedError

    def _take(self, body: bytes, descriptors: list[int]) -> None:
        """Handle a message of the program. Errors: ValueError: it is nonsense."""
        raise NotImplementedError

    def _lost(self) -> None:
        """Called when it is gone, and with it all that it knew."""
        raise NotImplementedError

    # -- start and end ------------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Starts it, if it has not been."""
        if self._process is None and self._again is None and not self._closed:
            self._begin()

    def _begin(self) -> None:
        self._again = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-s", "-m", "node.cluster.front.program", str(theirs.fileno()), str(log.getEffectiveLevel())],
                    stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True, cwd="/", env=environment(),
                )  # fmt: skip
        except OSError as error:
            ours.close()
            self._start_later(f"cannot be started: {error.strerror}")
            return
        self.pid, self._started, self._unanswered = self._process.pid, time.monotonic(), 0
        self._pipe = Pipe(ours, LONGEST, self._take, self._ended)

    def _on_ready(self) -> None:
        """Check its report that it has no rights any more. Errors: ValueError: it has."""
        if (right := rights.remaining(self.pid)) is not None:
            raise ValueError(f"it has {right}")
        self._ready.set()
        self._began()

    def _on_there(self) -> None:
        self._unanswered = 0
        self._there.set()

    @property
    def is_ready(self) -> bool:
        """Whether messages can be sent to it."""
        return self._ready.is_set()

    async def wait_until_ready(self) -> None:
        """Wait until messages can be sent to it."""
        await self._ready.wait()

    def _ended(self, why: str) -> None:
        """Forget a program that is gone, or is to be, and start the next one later."""
        self._pipe = None
        self._start_later(f"is gone: {self._reap(why)}")

    def _reap(self, why: str) -> str:
        """Ends it; how it ended, in words."""
        self._ready.clear()
        process, self._process, self.pid = self._process, None, 0
        if process is not None:
            process.kill()
            if (code := process.wait()) != -signal.SIGKILL:
                why += f" (exit status {code})"
        self._lost()
        return why

    def _start_later(self, why: str) -> None:
        if self._closed:
            return
        lived = time.monotonic() - self._started
        self._pause = PAUSE if lived > LONG else min(self._pause * 2, LONGEST_PAUSE)
        log.warning("the front, which reads what comes from the network, %s; it is started again in %.1f s", why, self._pause)
        self._again = asyncio.get_running_loop().call_later(self._pause, self._begin)

    def check_alive(self) -> None:
        """Ends one that does not answer any more. Now and then."""
        if not self.is_ready or self._pipe is None:
            return
        if self._unanswered >= LOOKS:
            self._pipe.close()
            self._ended("it did not answer")
            return
        self._unanswered += 1
        self.send("there?")

    async def settle(self) -> None:
        """Wait until it has handled all messages sent so far, or for a moment."""
        self._there.clear()
        self.send("there?")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_TIMEOUT if self.is_ready else 0):
                await self._there.wait()

    def close(self) -> None:
        """Ends it for good."""
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        self._reap("")

    # -- messages to it -------------------------------------------------------------------------------------------------

    def send(self, word: str, *values: Any, descriptor: int | None = None) -> None:
        """Send it a message; does nothing if there is no program. Errors: ValueError, TypeError, OverflowError: that cannot be sent."""
        body = msgpack.packb([word, *values], use_bin_type=True)
        if self._pipe is not None and self.is_ready:
            self._pipe.send(body, () if descriptor is None else (descriptor,))
        elif descriptor is not None:
            socket.close(descriptor)
