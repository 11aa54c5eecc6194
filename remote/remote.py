"""The remote of one guest: what hears mosd, the deputy, and the stops of the guest, in the loop of its tree (remote/tree.py)."""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from engine.files.store import FileStore
from engine.pour import postcopy
from kernel_helpers.common.errors import FarhomeError, sentence
from kernel_helpers.link.ends.events import Event, Kind
from kernel_helpers.link.ends.session import Branch
from kernel_helpers.stream.stream import Connection, holds
from remote.guest import Guest
from remote.moves import arrival, departure
from remote.moves.conversations import Conversations
from remote.moves.program import Programs
from remote.options import Options
from remote.reception import Reception
from remote.requests.births import Child
from remote.requests.home_files import HomeFiles
from remote.sandbox.joining import QuickJoining
from remote.sandbox.sandbox import cgroup_directories
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
    place: Message = field(default_factory=dict)
    """what home has to know of one that is made for a program (kernel, lockable of `ready`), from the first on"""


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
        """mosd knows that home is not heard"""
        self._is_arriving = False
        self._put_off: list[Message] = []
        """of mosd's, until the guest that is about to arrive has done so"""
        self._connected = False
        self._is_inside = False
        """that is by a connection which another guest of the tree has"""
        self._since = time.time()
        self._home_address = ""
        self.programs = Programs(self)
        self._cpu_before = 0.0
        """Seconds: of the programs that the guest has replaced here."""
        self.selector = tree.selector
        self._waker = tree.waker
        self._reception = reception or Reception(options.address, options.secret, tree.waker.wake)
        self._moves = Conversations(self, tree.selector, self._reception)
        self.server = LocalServer(options.socket, self.selector, self._on_message, waits=reception is not None)
        self.server.greet({"event": "listening", "port": self._reception.port})
        self.joining = QuickJoining(cgroup_directories(options.cgroup)) if reception is None else None
        """while the guest is expected"""

    def end(self) -> None:
        """Takes away all that was made for the guest, which has gone or goes now."""
        try:
            if self.shared.home_files is not None and not self.has_others():
                self.shared.home_files.hang_up()  # a thread of the guest may wait for them
            self.programs.close()
            if self.guest is not None:
                self.selector.unregister(self.guest.link.event_fd)
                self.guest.destroy()
        finally:
            self.has_joined()
            departure.clean_up(self.options)
            self._moves.close()
            self.server.send({"event": "gone", "reason": self.reason})
            self.server.close()
            self._reception.close()
        log.info("guest %s:%d is gone: %s", self.options.home, self.options.pid, self.reason)

    def finish(self, reason: str) -> None:
        """Ends this remote at the end of this turn, and the guest with it."""
        if not self.finished:
            self.finished, self.reason = True, reason
            self.report_moving(True)

    def report_moving(self, moving: bool) -> None:
        """Report to mosd whether the guest has to do something for its home: a guest that stands still for the owner's sake must be let go
        then."""
        self.server.send({"event": "moving", "moving": moving})

    @property
    def lives_on(self) -> bool:
        """See Newborn."""
        return False

    @property
    def is_at_rest(self) -> bool:
        """Whether the guest runs, and nobody moves it."""
        is_quiet = not self.finished and self._moves.are_quiet
        return self.guest is not None and self.guest.is_at_rest and self._connected and is_quiet

    def tick(self) -> None:
        """Once in each turn of the loop."""
        self._serve_callers()
        put_off, self._put_off = self._put_off, []
        for message in put_off:
            self._on_message(message)
        self._moves.poll()
        guest = self.guest
        if guest is None:
            if time.monotonic() - self._heard > LEASE:
                self.finish("it never came")
            return
        if self._moves.has_moved_on:
            guest.link.events()  # they mean nothing any more; what is not taken would have the loop spin
            self._moves.finish_if_all_has_gone()
            return
        guest.take_rest()
        for event in guest.link.events():
            if event.kind in (Kind.CONNECTION_LOST, Kind.SILENT):
                if self._connected and (event.kind == Kind.SILENT or not guest.link.connected):
                    level = logging.DEBUG if self._is_inside else logging.WARNING
                    log.log(level, "the link to %s is broken: %s", self.options.home, event.data.decode(errors="replace"))
                    guest.link.detach()
                    self._connected, self._heard = False, time.monotonic()
                    self.patience.begin(self._heard)
                    if not self._is_inside:
                        self._silence.broke(self._heard)
            else:
                self._on_control(event, guest)
        guest = self.guest or guest  # another program by now, perhaps
        if not self.finished:
            guest.poll()
        elif guest.tracee.shares_memory:  # its parent waits for no more than that
            guest.kill()
            self.released()
        if self._connected or self._moves.gives_pages:
            self.patience.begin(time.monotonic())
        elif self.patience.is_over(time.monotonic()):
            reason = f"its home {self.options.home} has not been heard for {self.patience.limit:.0f} s"
            log.critical("guest %s:%d is lost: %s", self.options.home, self.options.pid, reason)
            self.finish(reason)
        self._report_cut(self.patience.waited > CUT_AFTER and not self.finished)

    def _report_cut(self, is_cut: bool) -> None:
        """Report to mosd that the guest's home is not heard, or is again: meanwhile it stands still."""
        if is_cut != self._is_cut:
            self._is_cut = is_cut
            self.server.send({"event": "cut", "cut": is_cut})

    def take_pages(self, taker: postcopy.Taker) -> None:
        """Memory follows the guest that is about to run here."""
        self._reception.take_pages = taker.attach

    def stop_giving_pages(self) -> None:
        """It does not move after all."""
        self._moves.stop_giving_pages()

    def has_joined(self) -> None:
        """The guest's sandbox is in its cgroups, or does not come."""
        if self.joining is not None:
            self.joining.close()

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
        self, timeout: float, unless: Sequence[Channel] = (), poll: Callable[[], None] = lambda: None
    ) -> tuple[Connection, str] | Channel:
        """Return the next proven connection and its role, while a guest is about to arrive; or that of `unless` which has something to say.
        poll: is called when anything has happened, what is traced has stopped or ended among others. Errors: TimeoutError, those of
        poll(); FarhomeError: mosd has ended the guest."""
        end = time.monotonic() + timeout
        watched = {channel.connection.fileno(): channel for channel in unless}
        while (left := end - time.monotonic()) > 0:
            caller = self._reception.next()
            if caller is not None:
                return caller
            poll()
            if self.finished:
                raise FarhomeError(self.reason)
            for talk in unless:
                if holds(talk.connection):
                    return talk
            daemon = self.server.descriptors
            for descriptor in ready([self._waker.fileno(), *daemon, *watched], left):
                if descriptor in watched:
                    return watched[descriptor]
                if descriptor in daemon:
                    self._take_kill(descriptor)
            self._waker.drain()
        raise TimeoutError("the home did not call again")

    def _take_kill(self, descriptor: int) -> None:
        """Hear mosd, if that is where it speaks, while a guest is about to arrive: that its home has ended it, or its owner. All else
        that mosd asks for waits until the guest has come, or has not."""
        self._is_arriving = True
        try:
            self.server.serve(descriptor)
        finally:
            self._is_arriving = False

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
        self._attach(connection, str(connection.getpeername()[0]))

    def attach_inside(self, branch: Branch, home_address: str) -> None:
        """The same, of what is inside of the connection of another guest of the tree."""
        self._attach(branch, home_address)

    def _attach(self, connection: Connection | Branch, home_address: str) -> None:
        assert self.guest is not None
        self._home_address = home_address
        self.guest.link.set_silence(self._silence.bound)
        self.guest.link.attach(connection)
        self._connected, self._is_inside = True, isinstance(connection, Branch)
        self.patience.begin(time.monotonic())
        self._report_cut(False)

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
        self._moves.begin(self.guest, talk)

    def replace(self, talk: Channel) -> None:
        """The process executes another program: the guest is over, and what the process is now comes in its place. If it does not
        come after all, this remote ends."""
        guest, self.guest = self.guest, None
        assert guest is not None
        self._moves.leave(talk)
        self.selector.unregister(guest.link.event_fd)
        self._connected, self._heard = False, time.monotonic()
        sandbox = guest.end(keeps_link=True)
        self._cpu_before += guest.cpu_seconds()
        try:
            arrival.arrive(self, talk, sandbox, self.programs.take_vessel())
        except (FarhomeError, WireError, OSError) as error:
            log.warning("the new program does not come: %s", error, exc_info=not isinstance(error, WireError))
            talk.close()
            self.finish(f"its new program could not arrive: {sentence(error)}")
        finally:
            guest.link.close()

    # -- its tree -------------------------------------------------------------------------------------------------------

    @property
    def store(self) -> FileStore:
        """Files of its home."""
        return self.shared.store

    def wake(self) -> None:
        """Has a turn of the loop come at once; callable from any thread."""
        self._waker.wake()

    def has_others(self) -> bool:
        """Return whether a guest is here besides this one."""
        return any(other is not self for other in self._tree.members)

    def released(self) -> None:
        """The guest has let go of its memory: its parent goes on if it has waited for that."""
        for other in self._tree.members:
            if other is not self and other.guest is not None:
                other.guest.births.released_by(self.options.pid)

    def become(self, guest: Guest) -> None:
        """Another program is in the place of the guest, with its link."""
        assert self.guest is not None
        self._cpu_before += self.guest.cpu_seconds()
        self.guest = guest

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
        remote.attach_inside(child.branch, self._home_address)
        born.run()
        self._tree.newborns.add(remote, {"event": "born", "pid": child.number})
        log.debug("guest %s:%d was born as %d", self.options.home, child.number, born.pid)

    # -- mosd -----------------------------------------------------------------------------------------------------------

    def _on_message(self, message: Message) -> None:
        operation, number = message.get("op"), message.get("id")
        if self._is_arriving and operation != "kill":
            self._put_off.append(message)
            return
        answer: Message = {"id": number, "ok": True}
        if operation == "status":
            cpu = self._cpu_before + (self.guest.cpu_seconds() if self.guest else 0.0)
            runs = self.guest is not None and not self._moves.has_moved_on
            answer |= {
                "home": self.options.home, "pid": self.options.pid, "since": self._since, "running": runs,
                "user": self.guest.uid if self.guest else None, "memory": self.guest.memory() if self.guest else 0,
                "command": self.guest.command if self.guest else "", "cpu": cpu,
                "reads": self.guest.bytes_read_here() if self.guest else 0,
                "remembered": self.guest.remembered() if self.guest else [],
            }  # fmt: skip
        elif operation == "expel":
            if self.guest is None:
                self.finish("expelled before it came")
            elif not self._moves.has_moved_on:
                self.guest.expel(str(message.get("reason", "expelled")))
        elif operation == "cancel":
            if self.guest is None:
                self.finish("its home called it off")
        elif operation == "kill":
            self.finish("killed by this node")
        else:
            answer = {"id": number, "ok": False, "error": f"unknown operation {operation!r}"}
        self.server.send(answer)
