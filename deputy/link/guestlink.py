"""The deputy's end of the link: keeps it connected, and takes what the remote reports."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.link.ends.events import Event, Kind
from kernel_helpers.link.ends.home import HomeLink
from kernel_helpers.link.ends.session import Branch
from kernel_helpers.stream.stream import Connection
from kernel_helpers.usage import account
from wire import channel
from wire.control import Control, pack, unpack
from wire.frames import WireError
from wire.logs import start_thread
from wire.newborns import A_MOMENT
from wire.patience import Patience, Silence
from wire.waking import ready

log = logging.getLogger("deputy")

RETRY = 0.25
"""Seconds between attempts to connect again."""
ATTEMPT = 10.0
"""Seconds that an attempt may take: a node that is starved answers late."""
SHOWN_AFTER = 2.0
"""Seconds that a link may be broken before it is reported to mosd, which shows it."""


class LinkLost(FarhomeError):
    """The away node has not been heard for link_timeout, or its remote is gone."""


@dataclass(frozen=True)
class Target:
    """A remote that waits on a node."""

    node: str
    address: tuple[str, int]
    secret: bytes


@dataclass(frozen=True)
class Announced:
    """What the guest had set when a thread of it was about to execute a program: signals that the thread blocks, and that are ignored."""

    blocked: int
    ignored: int


class Attempt:
    """To connect again, in a thread: the loop has signals to see to, and a node that is starved takes its time."""

    def __init__(self, target: Target, wake: Callable[[], None]) -> None:
        """wake: is called when it is over."""
        self._target = target
        self._wake = wake
        self._lock = threading.Lock()
        self._found: Connection | None = None
        self._is_closed = False
        self.error: OSError | WireError | None = None
        self.is_over = False
        start_thread("connect", self._run)

    def _run(self) -> None:
        try:
            found = channel.connect(self._target.address, "link", self._target.secret, timeout=ATTEMPT)
        except (OSError, WireError) as error:
            self.error = error
        else:
            with self._lock:
                self._found = found
                if self._is_closed:
                    found.close()
        finally:
            self.is_over = True
            self._wake()

    def take(self) -> Connection | None:
        """Return what it has made, None without. Errors: ConnectionRefusedError: nobody listens there."""
        if isinstance(self.error, ConnectionRefusedError):
            raise self.error
        return self._found

    def close(self) -> None:
        """Nobody wants it any more."""
        with self._lock:
            self._is_closed = True
            if self._found is not None:
                self._found.close()


@dataclass
class GuestLink:
    """A HomeLink to the remote on one node."""

    home: HomeLink
    target: Target
    timeout: float
    wake: Callable[[], None] = lambda: None
    """has look_after() called soon; from any thread"""

    def __post_init__(self) -> None:
        self.still = False
        """the guest stands still, or is about to: nothing new begins"""
        self.blocked: dict[int, int] = {}
        """by thread (the program's id), what it blocked when the guest last stood still for signalfds"""
        self.watched = 0
        """signals of which home has taken over what waits, which has not been reported to the guest yet"""
        self.announced: dict[int, Announced] = {}
        """by thread (the program's id)"""
        self._broken_since: float | None = None
        self._patience = Patience(self.timeout, time.monotonic())
        self._silence = Silence(time.monotonic())
        self._attempt: Attempt | None = None
        self._next_attempt = 0.0
        self._pending: list[Event] = []
        self._is_new = True
        self._own_at: float | None = None
        """when it is to have a connection of its own, if it has none: as time.monotonic()"""

    @classmethod
    def unconnected(cls, home: HomeLink, target: Target, timeout: float, wake: Callable[[], None]) -> GuestLink:
        """One that look_after() is to connect: the remote is there, or comes in a moment."""
        link = cls(home, target, timeout, wake)
        link._broken_since = time.monotonic()
        return link

    def start(self, connection: Connection) -> None:
        """Hands a proven connection of role link to the C session."""
        connection.settimeout(None)
        self._own_at = None
        self._start(connection)

    def start_inside(self, branch: Branch) -> None:
        """Begins inside of the connection of another guest of the same remote. If the guest lives for longer than a moment, or that breaks,
        look_after() makes one."""
        self._own_at = time.monotonic() + A_MOMENT
        self._start(branch)

    @classmethod
    def heir(cls, old: GuestLink, home: HomeLink) -> GuestLink:
        """Return that of another program in the guest's place: it goes on with the session, and what is done for its connection."""
        home.inherit(old.home)
        link = cls(home, old.target, old.timeout, old.wake)
        link._broken_since, link._patience, link._silence = old._broken_since, old._patience, old._silence
        link._own_at, link._attempt, link._next_attempt, old._attempt = old._own_at, old._attempt, old._next_attempt, None
        link._pending, old._pending = old._pending, []
        link._carry()
        return link

    def _carry(self) -> None:
        """What the guest has used before: before any reply, for a cpu clock must not go back."""
        limit = account.limit_left(self.home.stub_pid)
        self.send(Control.CARRIED, barrier=True, used=self.home.used_away, limit=limit, own=self.home.own_files)
        self.home.own_files, self._is_new = [], False

    def _start(self, connection: Connection | Branch) -> None:
        if self._is_new:
            self._carry()
        self.home.set_silence(self._silence.bound)
        self.home.attach(connection)
        self._broken_since = None

    def send(self, control: Control, tid: int = 0, barrier: bool = False, **fields: object) -> None:
        """Queues a control frame; it survives a broken connection. barrier: the remote handles nothing that follows before it
        has dealt with this one."""
        self.home.send(control, tid, pack(**fields), barrier)

    def take_used(self, used: object) -> None:
        """What the frozen guest has used away from home, for where it goes next. Errors: WireError."""
        try:
            self.home.used_away = account.check(used)
        except ValueError as error:
            raise WireError(f"{self.target.node}: {error}") from None

    def whole(self, fields: dict[str, Any]) -> list[int]:
        """Return what a guest that dies has used. Errors: WireError."""
        try:
            return account.check_whole(fields.get("used"))
        except ValueError as error:
            raise WireError(f"{self.target.node}: {error}") from None

    def events(self) -> list[Event]:
        """New events, connection matters taken care of. Errors: LinkLost."""
        found = self._pending + self.home.events()
        self._pending = []
        kept = []
        for event in found:
            if event.kind in (Kind.CONNECTION_LOST, Kind.SILENT):
                # detach() itself is reported as CONNECTION_LOST, perhaps after the next attach()
                if self._broken_since is None and (event.kind == Kind.SILENT or not self.home.connected):
                    self._broken_since = time.monotonic()
                    self._patience.begin(self._broken_since)
                    if self._own_at is None:
                        self._silence.broke(self._broken_since)
                    level = logging.WARNING if self._own_at is None else logging.DEBUG
                    log.log(level, "the link to %s is broken: %s", self.target.node, event.data.decode(errors="replace"))
                    self.home.detach()
            else:
                kept.append(event)
        return kept

    @property
    def is_whole(self) -> bool:
        """Whether it is not broken."""
        return self._broken_since is None

    @property
    def cut(self) -> float:
        """For how many seconds the link has been broken, if that is worth a word; else 0."""
        since = self._broken_since
        lasted = time.monotonic() - since if since is not None and not self._is_new else 0.0
        return lasted if lasted > SHOWN_AFTER else 0.0

    def look_after(self) -> None:
        """Connects again after a break, or for the first time. Errors: LinkLost."""
        self._pending = self.events()
        is_whole, now = self._broken_since is None, time.monotonic()
        if is_whole and (self._own_at is None or now < self._own_at):
            return
        if not is_whole and self._patience.is_over(now):
            raise LinkLost(f"has not answered for {self.timeout:.0f} s")
        if self._attempt is None:
            if now >= self._next_attempt:
                self._attempt = Attempt(self.target, self.wake)
            return
        if not self._attempt.is_over:
            return
        attempt, self._attempt, self._next_attempt = self._attempt, None, now + RETRY
        try:
            connection = attempt.take()
        except ConnectionRefusedError:
            if is_whole:
                return  # it is about to say so
            raise LinkLost("runs, but the guest's supervisor there is gone") from None
        if connection is None:
            log.debug("no link to %s yet: %s", self.target.node, attempt.error)
            return
        if not self._is_new and self._own_at is None:
            log.info("the link to %s is made again", self.target.node)
        self.start(connection)

    def put_back(self, events: list[Event]) -> None:
        """These are for who asks next."""
        self._pending = [*events, *self._pending]

    def control_events(self) -> list[Event]:
        """Events to be handled now."""
        return self.events()

    def wait(
        self, control: Control, handle: Callable[[Event], None], timeout: float, meanwhile: Callable[[], None] | None = None
    ) -> dict[str, Any]:
        """Return the fields of the next frame of that kind; `handle` gets all others that come before it. meanwhile: is called every few
        milliseconds: what the frame waits for may need that. Errors: LinkLost, TimeoutError."""
        end = time.monotonic() + timeout
        while True:
            found = self.events()
            for index, event in enumerate(found):
                if event.kind == control:
                    self._pending = found[index + 1 :]
                    return unpack(event.data)
                handle(event)
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{self.target.node} did not answer {control.name} within {timeout:.0f} s")
            self.look_after()
            if meanwhile is not None:
                meanwhile()
            if not self._pending:
                ready([self.home.event_fd], min(left, 0.1 if meanwhile is None else 0.002))

    def is_heard(self) -> bool:
        """Return whether the remote has all that was sent. Errors: LinkLost: nobody is there to hear it."""
        if not self.home.kept_bytes:
            return True
        self.look_after()
        return False

    def close(self) -> None:
        """Ends the session."""
        if self._attempt is not None:
            self._attempt.close()
        self.home.close()
