"""Memory of a guest that comes home ahead of it, into its stub, while the guest runs on: a worker talks to the remote, the loop makes room
in the stub.

What the kernel writes into the stub meanwhile, for calls whose buffers have to be where the program has them (kernel_helpers/home.c,
places), spoils the pages that it lies in: those come again with the rest.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from deputy import freezing
from deputy.guestlink import LinkLost
from deputy.stub import Replaced
from engine import precopy
from engine.layout import Span, merge, subtract_all
from engine.mappings import PAGE
from kernel_helpers.errors import FarhomeError
from wire import channel
from wire.channel import Channel
from wire.frames import WireError
from wire.logs import start_thread

if TYPE_CHECKING:
    from deputy.deputy import Deputy

log = logging.getLogger("deputy")

ROOM_TIMEOUT = 10.0
"""Seconds within which the loop makes room."""


class Approach:
    """For one move home. Only the loop calls look() and close(). `talk`: to the remote, for the rest of the move."""

    def __init__(self, deputy: Deputy, memory: str) -> None:
        """memory: of precopy.MODES."""
        assert deputy.link is not None
        self._memory = memory
        self.talk: Channel | None = None
        self.is_over = False
        self.progress = precopy.Progress()
        self.over_since = 0.0
        """when that was, as time.monotonic()"""
        self._deputy = deputy
        self._target = deputy.link.target
        self._wanted: tuple[list[Span], set[Span]] | None = None
        self._room: list[Span] = []
        self._has_room = threading.Event()
        self._is_void = False
        self._is_unwatched = False
        self._done: Callable[[], None] = lambda: None
        self.stood_still = 0.0
        """seconds, for the memory to go ahead"""

    def start(self, done: Callable[[], None]) -> None:
        """`done`: called by the worker when there is something to look at."""
        self._done = done
        start_thread("approach", self._run, done)

    def _run(self, done: Callable[[], None]) -> None:
        try:
            self._receive(done)
        except (FarhomeError, WireError, OSError) as error:
            log.info("nothing comes ahead of process %d: %s", self._deputy.pid, error)
            self._is_void = True
        finally:
            self.over_since = time.monotonic()
            self.is_over = True
            done()

    def _receive(self, done: Callable[[], None]) -> None:
        talk = self.talk or Channel(channel.connect(self._target.address, "move", self._target.secret, timeout=30.0))
        self.talk = talk
        talk.send("approach", memory=self._memory)
        message = talk.next(timeout=precopy.ROUND_TIMEOUT)
        if message["op"] == "precopy":
            self._wanted = precopy.spans(message["areas"]), {(area[0], area[1]) for area in message["areas"] if area[2]}
            done()
            if not self._has_room.wait(ROOM_TIMEOUT):
                raise TimeoutError("no room was made for it")
            talk.send("precopy", areas=self._room)
            self.progress.total = int(message["total"])
            while (message := talk.next(timeout=precopy.ROUND_TIMEOUT))["op"] == "round":
                begun = time.monotonic()
                precopy.receive_round(self._deputy.pid, self._room, talk, self.progress.begin_round(int(message["left"])))
                self.progress.seconds += time.monotonic() - begun
        if message["op"] != "ready":
            raise WireError(f"the remote said {message['op']!r} where 'ready' was due")
        self._is_unwatched = bool(message.get("unwatched"))

    def look(self) -> None:
        """Does what only the loop can: makes the room that the worker waits for, or has the guest watched, if it is not yet. Errors:
        LinkLost, Replaced."""
        if self.is_over and self._is_unwatched and self.talk is not None:
            self._is_unwatched = False
            try:
                self.stood_still += freezing.watch_guest(self._deputy, self.talk)
            except (LinkLost, Replaced):
                raise
            except (FarhomeError, WireError, OSError) as error:
                log.info("nothing comes ahead of process %d: %s", self._deputy.pid, error)
                return
            self.is_over = False
            self.start(self._done)
        if self._wanted is None or self._has_room.is_set():
            return
        wanted, unreserved = self._wanted
        stub = self._deputy.stub
        try:
            if stub is not None:
                stub.relocate(wanted)
                self._room = stub.make_room(wanted, unreserved)
        except (FarhomeError, OSError) as error:
            log.info("no room for process %d: %s", self._deputy.pid, error)
        self._has_room.set()

    @property
    def is_of_use(self) -> bool:
        """Whether something has come, and is there still."""
        return self.is_over and not self._is_void and bool(self._room)

    def spoilt(self) -> list[Span]:
        """Pages of the stub, which stands still, that are not as they came. Errors: FarhomeError: nobody knows."""
        stub = self._deputy.stub
        places = stub.places() if stub is not None else None
        if places is None:
            raise FarhomeError("too much has been written into the stub")
        return merge((page, page + PAGE) for page in places)

    def room_but(self, kept: list[Span]) -> list[Span]:
        """What of the room is not kept. Errors: WireError: what is kept is not all in it."""
        if subtract_all(kept, merge(self._room)):
            raise WireError("memory counts as sent that was not")
        return subtract_all(merge(self._room), kept)

    def spent(self) -> None:
        """The room is the process's memory now, or has been taken away with it."""
        self._room = []

    def close(self) -> None:
        """The guest is at home, or stays where it is: its stub has no need of the room."""
        self._is_void = True
        self._has_room.set()
        room, self._room = self._room, []
        stub = self._deputy.stub
        if room and stub is not None and self._deputy.where != "home":
            with suppress(FarhomeError, OSError):
                stub.unmake_room(merge(room))
        if self.talk is not None:
            self.talk.close()
