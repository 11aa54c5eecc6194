"""Memory of a guest that goes ahead of it, home or to another node, in a worker: the guest runs on, and so does the loop."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable

from engine.pour import precopy
from kernel_helpers.common.errors import FarhomeError, sentence
from remote.guest import Guest
from wire import channel
from wire.channel import Channel
from wire.frames import WireError
from wire.logs import start_thread

log = logging.getLogger("remote")


class GoingAhead:
    """For one conversation about a move, `talk`, which is the worker's until is_over: at its end it says `ready` there, or why not.

    `stream`: where guest and memory go: talk itself (home), or a connection of its own to another node.
    """

    def __init__(self, guest: Guest, talk: Channel, target: tuple[tuple[str, int], bytes] | None, mode: str) -> None:
        self.talk = talk
        self._mode = mode
        self.stream: Channel | None = talk if target is None else None
        self.ahead: precopy.Ahead | None = None
        self.is_over = False
        self.unwatched = False
        """there is something that could go, but writes to it cannot be noted: watch() has to come first"""
        self.failed = False
        """nobody is there to talk to any more"""
        self.guest = guest
        self._target = target
        self._is_closed = False

    def start(self, done: Callable[[], None]) -> None:
        """`done` is called by the worker in the end."""
        start_thread("memory", self._run, done)

    def _run(self, done: Callable[[], None]) -> None:
        try:
            try:
                self._send()
                progress = self.ahead.progress if self.ahead is not None else precopy.Progress()
                self.talk.send("ready", sent=progress.sent, seconds=progress.seconds, unwatched=self.unwatched)
            except (FarhomeError, WireError, OSError) as error:
                log.info("nothing goes ahead of guest %d: %s", self.guest.pid, error)
                self.talk.send("refused", reason=sentence(error))
        except (OSError, WireError):
            self.failed = True
        finally:
            self.is_over = True
            done()

    def _send(self) -> None:
        guest = self.guest
        if guest.tracee.shares_memory or guest.goes_whole or self._is_closed:
            return
        areas = precopy.areas_of(guest.pid)
        self.unwatched = bool(areas) and guest.userfaultfd < 0 and guest.can_be_watched
        if not areas or self.unwatched:
            return
        userfaultfd = os.dup(guest.userfaultfd) if guest.userfaultfd >= 0 else -1
        self.ahead = precopy.Ahead(guest.pid, userfaultfd, areas, self._mode)
        if self.stream is None:
            assert self._target is not None
            address, secret = self._target
            self.stream = Channel(channel.connect(address, "imgs", secret, timeout=60.0))
        self.ahead.run(self.stream, self._report if self.stream is not self.talk else lambda: None)

    def _report(self) -> None:
        """How far it has come, to the deputy, which sees nothing of it otherwise."""
        assert self.ahead is not None
        progress = self.ahead.progress
        self.talk.send("progress", total=progress.total, sent=progress.sent, round=progress.round, left=progress.left)

    def close(self) -> None:
        """The move is over, or off."""
        self._is_closed = True
        if self.ahead is not None:
            self.ahead.close()
        if self.stream is not None and self.stream is not self.talk:
            self.stream.close()
        if not self.is_over:
            try:
                self.talk.connection.shutdown(socket.SHUT_RDWR)  # the worker ends
            except OSError:
                pass
