"""Memory of a guest that comes home ahead of it, into its stub, while the guest runs on: a worker talks to the remote, the loop maps areas
in the stub.

What the kernel writes into the stub meanwhile, for calls whose buffers have to be where the program has them
(kernel_helpers/link/home/launch.c, places), spoils the pages that it lies in: those come again with the rest.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from deputy.link.guestlink import LinkLost
from deputy.moves.memory_late import LateMemory
from deputy.requests import freezing
from deputy.stub.stub import Stub
from deputy.stub.traced import Replaced
from engine.mappings.layout import Span, merge, subtract_all
from engine.mappings.mappings import PAGE
from engine.phases import Phases
from engine.pour import postcopy, precopy
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.stream.stream import Connection
from wire import channel
from wire.channel import Channel
from wire.frames import WireError
from wire.logs import start_thread

if TYPE_CHECKING:
    from deputy.away import Away

log = logging.getLogger("deputy")

AREAS_TIMEOUT = 10.0
"""Seconds within which the loop maps the areas."""


class Approach:
    """For one move home. Only the loop calls poll() and close(). `talk`: to the remote, for the rest of the move."""

    def __init__(self, away: Away, memory: str, patience: float) -> None:
        """memory: of precopy.MODES; patience: seconds that what follows may lack a connection."""
        self._memory = memory
        self.talk: Channel | None = None
        self.is_over = False
        self.progress = precopy.Progress()
        self.over_since = 0.0
        """when that was, as time.monotonic()"""
        self.phases = Phases("approach")
        self._away = away
        self._patience = patience
        self._target = away.link.target
        self._asked: Callable[[Stub], None] | None = None
        """what the worker wants done in the stub, which only the loop can"""
        self._answered = threading.Event()
        self._areas: list[Span] = []
        self._late: LateMemory | None = None
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
            log.info("nothing comes ahead of process %d: %s", self._away.pid, error)
            self._is_void = True
        finally:
            self.over_since = time.monotonic()
            self.phases.done("memory ahead")
            self.is_over = True
            done()

    def _receive(self, done: Callable[[], None]) -> None:
        talk = self.talk or Channel(channel.connect(self._target.address, "move", self._target.secret, timeout=30.0))
        self.talk = talk
        talk.send("approach", memory=self._memory)
        message = talk.next(timeout=precopy.ROUND_TIMEOUT)
        if message["op"] == "precopy":
            wanted, unreserved = precopy.spans(message["areas"]), {(area[0], area[1]) for area in message["areas"] if area[2]}
            self._in_loop(lambda stub: self._map_areas(stub, wanted, unreserved, bool(message.get("postcopy"))))
            talk.send("precopy", areas=self._areas, postcopy=self._late is not None and self._late.may_follow)
            self.progress.total = int(message["total"])
            while (message := talk.next(timeout=precopy.ROUND_TIMEOUT))["op"] in ("round", "stale"):
                if message["op"] == "stale":
                    self._give_back(talk, precopy.spans(message["spans"]))
                    continue
                begun = time.monotonic()
                meter = self.progress.begin_round(int(message["left"]))
                precopy.receive_round(self._away.pid, self._areas, talk, meter, self.taker)
                self.progress.seconds += time.monotonic() - begun
        if message["op"] != "ready":
            raise WireError(f"the remote said {message['op']!r} where 'ready' was due")
        self._is_unwatched = bool(message.get("unwatched"))

    def _in_loop(self, work: Callable[[Stub], None]) -> None:
        """Has the loop do that in the stub. Errors: TimeoutError: it has not; what the work itself raises is in the log."""
        self._answered.clear()
        self._asked = work
        self._done()
        if not self._answered.wait(AREAS_TIMEOUT):
            raise TimeoutError("the stub was not ready for it")

    def _map_areas(self, stub: Stub, wanted: list[Span], unreserved: set[Span], may_follow: bool) -> None:
        stub.relocate(wanted)
        self._areas = stub.memory.map_areas(wanted, unreserved)
        if self._areas and (userfaultfd := stub.memory.userfaultfd()) >= 0:
            self._late = LateMemory(stub.pid, userfaultfd, self._areas, may_follow)

    def _give_back(self, talk: Channel, spans: list[Span]) -> None:
        if subtract_all(spans, merge(self._areas)):
            raise WireError("memory is stale that has not come")
        self._in_loop(lambda stub: stub.memory.give_back(spans))
        talk.send("stale")

    def poll(self) -> None:
        """Does what only the loop can: makes the areas that the worker waits for, or has the guest watched, if it is not yet. Errors:
        LinkLost, Replaced."""
        if self.is_over and self._is_unwatched and self.talk is not None:
            self._is_unwatched = False
            try:
                self.stood_still += freezing.watch_guest(self._away, self.talk)
            except (LinkLost, Replaced):
                raise
            except (FarhomeError, WireError, OSError) as error:
                log.info("nothing comes ahead of process %d: %s", self._away.pid, error)
                return
            self.is_over = False
            self.start(self._done)
        asked, self._asked = self._asked, None
        if asked is None:
            return
        try:
            asked(self._away.stub)
        except (FarhomeError, OSError) as error:
            log.info("nothing more comes ahead of process %d: %s", self._away.pid, error)
            self._is_void = True
        self._answered.set()

    @property
    def taker(self) -> postcopy.Taker | None:
        """Who guards the areas, if somebody does."""
        return self._late.taker if self._late is not None else None

    def follow(self, frozen: Frozen, areas: list[Span], owed: list[Span]) -> LateMemory:
        """The stub is filled but for what is owed, in `areas`; that follows. Returns who sees to it. Errors: WireError, OSError: nothing
        follows, and the process is of no use without."""
        if self._late is None or subtract_all(owed, areas):
            raise WireError("memory is to follow that cannot")
        target = self._target

        def connect() -> Connection:
            return channel.connect(target.address, "page", target.secret, timeout=postcopy.PROGRESS_TIMEOUT)

        self._late.begin(frozen, owed, self._patience, self._done, connect)
        late, self._late = self._late, None
        return late

    @property
    def is_of_use(self) -> bool:
        """Whether something has come, and is there still."""
        return self.is_over and not self._is_void and bool(self._areas)

    def spoilt(self) -> list[Span]:
        """Pages of the stub, which stands still, that are not as they came. Errors: FarhomeError: nobody knows."""
        places = self._away.stub.memory.places()
        if places is None:
            raise FarhomeError("too much has been written into the stub")
        return merge((page, page + PAGE) for page in places)

    def areas_but(self, kept: list[Span]) -> list[Span]:
        """Return what of the areas is not kept. Errors: WireError: what is kept is not all in it."""
        if subtract_all(kept, merge(self._areas)):
            raise WireError("memory counts as sent that was not")
        return subtract_all(merge(self._areas), kept)

    def spent(self) -> None:
        """The areas are the process's memory now, or have been taken away with it."""
        self._areas = []

    def forgo(self) -> None:
        """Nothing follows: the process has all of its memory."""
        if self._late is not None:
            self._late.forgo()
            self._late = None

    def close(self) -> None:
        """The guest is at home, or stays where it is: its stub has no need of the areas."""
        self._is_void = True
        self._answered.set()
        self.forgo()
        areas, self._areas = self._areas, []
        if areas:
            with suppress(FarhomeError, OSError):
                self._away.stub.memory.unmap_areas(merge(areas))
        if self.talk is not None:
            self.talk.close()
