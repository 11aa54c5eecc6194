"""The remote of one guest: what hears mosd, the deputy, and the stops of the guest, in the loop of its tree (remote/tree.py)."""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine import postcopy
from engine.precopy import Ahead
from engine.store import FileStore
from kernel_helpers.errors import FarhomeError, sentence
from kernel_helpers.link.link import Event, Kind
from kernel_helpers.stream.stream import Connection, holds
from remote import arrival, departure
from remote.ahead import GoingAhead
from remote.births import Child
from remote.guest import Guest
from remote.homefiles import HomeFiles
from remote.options import Options
from remote.reception import Reception
from wire import channel
from wire.channel import Channel
from wire.control import Control
from wire.frames import Message, WireError
from wire.local import LocalServer
from wire.patience import Patience, Silence, of_guest
from wire.tree import Tree
from wire.waking import ready

log = logging.getLogger("remote")

CUT_AFTER = 10.0
"""Seconds that the link may be broken before the guest stands still: computing for a home that may never ask for it takes from others."""
LEASE = 15.0
"""Seconds that an expected guest may take to come."""


@dataclass
class Shared:
    """What the guests of one program have together: files of their home, and where they read such directly, as soon as one wants to."""

    store: FileStore
    home_files: HomeFiles | None = None


class Remote:
    """See the module. `reception`: where the guest's home connects, if that is known already."""

    def __init__(self, options: Options, tree: Tree[Remote], shared: Shared, reception: Reception | None = None) -> None:
        self.options = options
        self._tree = tree
        self.shared = shared
        self.guest: Guest | None = None
        self.finished = False
        self.reason = ""
        self._heard = time.monotonic()
        self.patience = Patience(of_guest(None, options.link_timeout), self._heard)
        """with home, while the link is broken"""
        self._silence = Silence(self._heard)
        self._is_cut = False
        """mosd has been told that home is not heard"""
        self._connected = False
        self._talks: set[Connection] = set()
        """The conversations about moves."""
        self._going: GoingAhead | None = None
        """memory that goes ahead of the guest, for one of them"""
        self._giver: postcopy.Giver | None = None
        """who gives memory of the guest that is to follow it, or does already"""
        self._moved_on = ""
        """why the guest runs here no more, while memory of it is here still"""
        self._since = time.time()
        self._home_address = ""
        self._cpu_before = 0.0
        """Seconds: of the programs that the guest has replaced here."""
        self.selector = tree.selector
        self._waker = tree.waker
        self._reception = reception or Reception(options.address, options.secret, tree.waker.wake)
        self.server = LocalServer(options.socket, self.selector, self._on_message)
        self.server.greet({"event": "listening", "port": self._reception.port})

    def end(self) -> None:
        """Takes away all that was made for the guest, which has gone or goes now."""
        try:
            if self.shared.home_files is not None and not self.has_others():
                self.shared.home_files.hang_up()  # a thread of the guest may wait for them
            if self.guest is not None:
                self.selector.unregister(self.guest.link.event_fd)
                self.guest.destroy()
        finally:
            departure.clean_up(self)
            self.keep_pages()
            if self._going is not None:
                self._going.close()
            for connection in self._talks:
                self._unregister(connection)
                connection.close()
            self.server.tell({"event": "gone", "reason": self.reason})
            self.server.close()
            self._reception.close()
        log.info("guest %s:%d is gone: %s", self.options.home, self.options.pid, self.reason)

    def finish(self, reason: str) -> None:
        """Ends this remote at the end of this turn, and the guest with it."""
        if not self.finished:
            self.finished, self.reason = True, reason
            self._tell_moving(True)

    def _tell_moving(self, moving: bool) -> None:
        """Tells mosd whether the guest has to do something for its home: who stands still for the owner's sake must be let go then."""
        self.server.tell({"event": "moving", "moving": moving})

    @property
    def is_at_rest(self) -> bool:
        """Whether the guest runs, and nobody moves it."""
        moves = self._talks or self._going or self._giver or self._moved_on
        return self.guest is not None and self.guest.is_at_rest and self._connected and not self.finished and not moves

    def tick(self) -> None:
        """Once in each turn of the loop."""
        self._serve_callers()
        self._went_ahead()
        guest = self.guest
        if guest is None:
            if time.monotonic() - self._heard > LEASE:
                self.finish("it never came")
            return
        if self._moved_on:
            assert self._giver is not None
            guest.link.events()  # they mean nothing any more; what is not taken would have the loop spin
            if self._giver.is_over:
                self.finish(self._moved_on)
            return
        guest.take_rest()
        for event in guest.link.events():
            if event.kind in (Kind.CONNECTION_LOST, Kind.SILENT):
                if self._connected and (event.kind == Kind.SILENT or not guest.link.connected):
                    log.warning("the link to %s is broken: %s", self.options.home, event.data.decode(errors="replace"))
                    guest.link.detach()
                    self._connected, self._heard = False, time.monotonic()
                    self.patience.begin(self._heard)
                    self._silence.broke(self._heard)
            else:
                self._on_control(event, guest)
        if not self.finished:
            guest.poll()
        gives = self._giver is not None and not self._giver.is_over
        if self._connected or gives:
            self.patience.begin(time.monotonic())
        elif self.patience.is_over(time.monotonic()):
            reason = f"its home {self.options.home} has not been heard for {self.patience.limit:.0f} s"
            log.critical("guest %s:%d is lost: %s", self.options.home, self.options.pid, reason)
            self.finish(reason)
        self._tell_cut(self.patience.waited > CUT_AFTER and not self.finished)

    def _tell_cut(self, is_cut: bool) -> None:
        """Tells mosd that the guest's home is not heard, or is again: meanwhile it stands still."""
        if is_cut != self._is_cut:
            self._is_cut = is_cut
            self.server.tell({"event": "cut", "cut": is_cut})

    def take_pages(self, taker: postcopy.Taker) -> None:
        """Memory follows the guest that is about to run here."""
        self._reception.take_pages = taker.attach

    def give_pages(self, pid: int, target: tuple[tuple[str, int], bytes] | None) -> None:
        """Memory of the guest, which stands still, is to follow it: to another node's address, or to who calls."""

        def connect() -> Connection:
            assert target is not None
            return channel.connect(target[0], "page", target[1], timeout=postcopy.PROGRESS_TIMEOUT)

        self.keep_pages()
        self._giver = postcopy.Giver(pid, self.patience.limit, connect if target is not None else None)
        if target is None:
            self._reception.take_pages = self._giver.attach
        self._giver.start(self._waker.wake)

    def keep_pages(self) -> None:
        """It does not move after all."""
        if self._giver is not None:
            self._giver.close()
            self._giver = None
            self._reception.take_pages = None

    def gone(self, reason: str) -> None:
        """The guest runs elsewhere. This remote ends when what is to follow it has gone, too."""
        if self._giver is None:
            self.finish(reason)
        else:
            self._moved_on = reason

    def settle(self, guest: Guest) -> None:
        """The guest is here: its link is heard from now on."""
        self.guest = guest
        self._heard = time.monotonic()
        self.patience.begin(self._heard)
        self.selector.register(guest.link.event_fd, selectors.EVENT_READ, lambda: None)

    # -- the deputy, over the link ------------------------------------------------------------------------------------

    def _on_control(self, event: Event, guest: Guest) -> None:
        if event.kind == Control.KILL:
            self.finish("the process ended")
        else:
            guest.handle(event)

    # -- callers --------------------------------------------------------------------------------------------------------

    def next_caller(
        self, timeout: float, unless: Sequence[Channel] = (), look: Callable[[], None] = lambda: None
    ) -> tuple[Connection, str] | Channel:
        """The next proven connection and its role, while a guest is about to arrive; or that of `unless` which has something to say. look:
        is called when anything has happened, what is traced has stopped or ended among others. Errors: TimeoutError, those of look()."""
        end = time.monotonic() + timeout
        watched = {channel.connection.fileno(): channel for channel in unless}
        while (left := end - time.monotonic()) > 0:
            caller = self._reception.next()
            if caller is not None:
                return caller
            look()
            for talk in unless:
                if holds(talk.connection):
                    return talk
            for descriptor in ready([self._waker.fileno(), *watched], left):
                if descriptor in watched:
                    return watched[descriptor]
            self._waker.drain()
        raise TimeoutError("the home did not call again")

    def _serve_callers(self) -> None:
        while (caller := self._reception.next()) is not None:
            self._caller(*caller)

    def _caller(self, connection: Connection, role: str) -> None:
        self._heard = time.monotonic()
        try:
            if role == "link" and self.guest is not None:
                self.attach(connection)
            elif role == "move":
                self._move(Channel(connection))
            else:
                connection.close()
        except (FarhomeError, WireError, OSError) as error:
            log.warning("a move failed: %s", error, exc_info=not isinstance(error, WireError))
            connection.close()
            if self.guest is None:
                self.finish(f"it could not arrive: {sentence(error)}")

    def attach(self, connection: Connection) -> None:
        """Hands a proven connection of role link to the C session."""
        assert self.guest is not None
        connection.settimeout(None)
        self._home_address = str(connection.getpeername()[0])
        self.guest.link.set_silence(self._silence.bound)
        if self._connected:
            self.guest.link.detach()
        self.guest.link.attach(connection)
        self._connected = True
        self.patience.begin(time.monotonic())
        self._tell_cut(False)

    def home_files(self, port: int) -> HomeFiles:
        """Files of the home, whose server is at that port. Errors: OSError."""
        options, shared = self.options, self.shared
        assert options.pki is not None
        if shared.home_files is None:
            room = options.socket.parent.parent / "direct"
            shared.home_files = HomeFiles(options.home, self._home_address, port, options.pki, options.plain, room)
        return shared.home_files

    def _move(self, talk: Channel) -> None:
        if self.guest is None:
            arrival.arrive(self, talk)
            return
        self._talks.add(talk.connection)
        self._tell_moving(True)
        self._hear(self.guest, talk)

    def _hear(self, guest: Guest, talk: Channel) -> None:
        self.selector.register(talk.connection, selectors.EVENT_READ, lambda: self._serve(guest, talk))

    def go_ahead(self, talk: Channel, target: tuple[tuple[str, int], bytes] | None, mode: str) -> None:
        """Has memory of the guest go ahead of it (mode: of precopy.MODES), as `talk` has asked: home, or to another node's address. Until
        that is over, nobody else talks there."""
        assert self.guest is not None
        if self._going is not None:
            self._going.close()
        self.selector.unregister(talk.connection)
        self._going = GoingAhead(self.guest, talk, target, mode)
        self._tell_moving(False)  # meanwhile the guest need do nothing for it, and what stands still is not written again
        self._going.start(self._waker.wake)

    def _went_ahead(self) -> None:
        going, guest = self._going, self.guest
        if going is None or guest is None or not going.is_over or self._is_heard(going.talk.connection):
            return
        if going.failed:
            self._forget(going.talk)
            going.talk.close()
        elif going.talk.connection in self._talks:
            self._tell_moving(True)
            self._hear(guest, going.talk)

    def _is_heard(self, connection: Connection) -> bool:
        return connection.fileno() >= 0 and connection.fileno() in self.selector.get_map()

    def _unregister(self, connection: Connection) -> None:
        if self._is_heard(connection):
            self.selector.unregister(connection)

    def ahead(self, talk: Channel) -> Ahead | None:
        """What has gone ahead for that conversation."""
        return self._going.ahead if self._going is not None and self._going.talk is talk and self._going.is_over else None

    def stream(self, talk: Channel) -> Channel | None:
        """The connection that it went by."""
        return self._going.stream if self._going is not None and self._going.talk is talk and self._going.is_over else None

    def _serve(self, guest: Guest, talk: Channel) -> None:
        try:
            departure.serve(self, guest, talk)
            while self._is_heard(talk.connection) and holds(talk.connection):  # the selector does not see that
                departure.serve(self, guest, talk)
        except (OSError, WireError) as error:
            log.debug("a move's conversation is over: %s", error)
            self._forget(talk)
            talk.close()

    def _forget(self, talk: Channel) -> None:
        if self._going is not None and self._going.talk is talk:
            self._going.close()
            self._going = None
        self._unregister(talk.connection)
        self._talks.discard(talk.connection)
        if not self._talks and not self.finished:
            self._tell_moving(False)

    def replace(self, talk: Channel) -> None:
        """The process executes another program: the guest is over, and what the process is now comes in its place. If it does not
        come after all, this remote ends."""
        guest, self.guest = self.guest, None
        assert guest is not None
        if self._going is not None:
            self._going.close()
            self._going = None
        self._forget(talk)
        self.selector.unregister(guest.link.event_fd)
        self._connected, self._heard = False, time.monotonic()
        sandbox = guest.end()
        self._cpu_before += guest.cpu_seconds()
        try:
            arrival.arrive(self, talk, sandbox)
        except (FarhomeError, WireError, OSError) as error:
            log.warning("the new program does not come: %s", error, exc_info=not isinstance(error, WireError))
            talk.close()
            self.finish(f"its new program could not arrive: {sentence(error)}")

    # -- its tree -------------------------------------------------------------------------------------------------------

    @property
    def store(self) -> FileStore:
        """Files of its home."""
        return self.shared.store

    def wake(self) -> None:
        """Has a turn of the loop come at once; callable from any thread."""
        self._waker.wake()

    def has_others(self) -> bool:
        """Whether a guest is here besides this one."""
        return any(other is not self for other in self._tree.members)

    def released(self) -> None:
        """The guest has let go of its memory: its parent goes on if it has waited for that."""
        for other in self._tree.members:
            if other is not self and other.guest is not None:
                other.guest.births.released_by(self.options.pid)

    def bear(self, parent: Guest, child: Child) -> None:
        """A child of the guest runs from here on, with a remote of its own. Errors: OSError."""
        path = self.options.socket.with_name(f"{self.options.home}-{child.number}.sock")
        try:
            options = replace(self.options, pid=child.number, socket=path, secret=child.secret)
            remote = Remote(options, self._tree, self.shared, child.reception)
            self._tree.members.append(remote)
        except BaseException:
            child.link.close()
            raise
        born = parent.child(remote, child)
        remote.patience.limit = self.patience.limit
        remote.settle(born)
        born.run()
        self._tree.newborns.add(remote, {"event": "born", "pid": child.number})
        log.info("guest %s:%d was born as %d", self.options.home, child.number, born.pid)

    # -- mosd -----------------------------------------------------------------------------------------------------------

    def _on_message(self, message: Message) -> None:
        operation, number = message.get("op"), message.get("id")
        answer: Message = {"id": number, "ok": True}
        if operation == "status":
            cpu = self._cpu_before + (self.guest.cpu_seconds() if self.guest else 0.0)
            runs = self.guest is not None and not self._moved_on
            answer |= {
                "home": self.options.home, "pid": self.options.pid, "since": self._since, "running": runs,
                "user": self.guest.uid if self.guest else None, "memory": self.guest.memory() if self.guest else 0,
                "command": self.guest.command if self.guest else "", "cpu": cpu,
                "reads": self.guest.reads_here() if self.guest else 0,
            }  # fmt: skip
        elif operation == "expel":
            if self.guest is None:
                self.finish("expelled before it came")
            elif not self._moved_on:
                self.guest.expel(str(message.get("reason", "expelled")))
        elif operation == "cancel":
            if self.guest is None:
                self.finish("its home called it off")
        elif operation == "kill":
            self.finish("killed by this node")
        else:
            answer = {"id": number, "ok": False, "error": f"unknown operation {operation!r}"}
        self.server.tell(answer)
