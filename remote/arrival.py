"""Arrival: a sandbox with the home's files in it, the process poured into a vessel or restored by CRIU, filter and listener; then,
after the commit, life."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from engine.commit import Candidate, Do, Word, follow
from engine.context.capture import NO_LIMIT
from engine.context.confinement import lets_sleeps_go_on
from engine.context.context import WIRE_MOST, Context, Identity
from engine.criu import criu
from engine.files.files import MappedFile
from engine.files.store import FileStore
from engine.mappings.layout import Span
from engine.memory.hollow import from_wire
from engine.phases import Phases
from engine.pour import postcopy, precopy
from engine.pour.arrival import drop_capabilities, install_filter, install_own, install_watch, notifications_work, suspend_seccomp, wake
from engine.pour.vessel import Vessel, become
from engine.signals.pending import Pending
from kernel_helpers.calls import filter as call_filter
from kernel_helpers.calls.filter import RET_NOTIFY
from kernel_helpers.errors import FarhomeError, sentence
from kernel_helpers.inspection.tasks import inner_tids
from kernel_helpers.link.link import AwayLink, Part
from kernel_helpers.pages.pages import PageRange, receive_own_pages
from kernel_helpers.process import many, tracing
from kernel_helpers.process.seizing import Frozen, seize
from kernel_helpers.stream.stream import Connection
from remote import identity, rehearsal
from remote.guest import Guest, Loop, end_traced
from remote.intercept_ptrace import FILTER_VERDICT, PtraceLink
from remote.sandbox import Sandbox
from wire.channel import Channel
from wire.frames import Message, WireError
from wire.local import LocalServer
from wire.patience import Patience, of_guest

log = logging.getLogger("remote")

CLOCK_READINGS = 5
IMAGES_BESIDE = 64 << 20
"""Bytes that images may have besides the memory that was announced, and a quarter of that."""
IMAGES_TIMEOUT = 120.0
PAGES_TIMEOUT = 30.0
"""Seconds without progress."""
REFUSAL_TIMEOUT = 10.0
"""Seconds that the other side may take to hear why."""
CALL_TIMEOUT = 30.0
"""Seconds from `prepared` to `commit`."""
LINK_PATIENCE = 0.25
"""Seconds that a link may come after the commit and still be there when the guest begins to run."""
WORD_TIMEOUT = 5.0
"""Seconds that a message may take which has begun."""


class Receiving(Loop, Protocol):
    """What an arrival needs of the remote that its guest comes to (remote/remote.py)."""

    patience: Patience
    server: LocalServer

    def next_caller(
        self, timeout: float, unless: Sequence[Channel] = (), look: Callable[[], None] = lambda: None
    ) -> tuple[Connection, str] | Channel:
        """The next proven connection and its role; or that of `unless` which has something to say. look: is called when anything has
        happened. Errors: TimeoutError, those of look()."""

    def take_pages(self, taker: postcopy.Taker) -> None:
        """Memory follows the guest that is about to run here."""

    def settle(self, guest: Guest) -> None:
        """The guest is here: its link is heard from now on."""

    def attach(self, connection: Connection) -> None:
        """A connection of role link is the guest's."""


@dataclass(frozen=True)
class _Images:
    """They are here; what of the memory is to come beside them, and from where."""

    channel: Channel
    beside: list[PageRange]


@dataclass(frozen=True)
class _Poured:
    """The context is here; the pages are to come after it."""

    channel: Channel
    context: Context
    filled: list[Span]
    """what has come before it"""
    owed: list[Span]
    """what of that follows it"""


def arrive(remote: Receiving, talk: Channel, left: Sandbox | None = None) -> None:
    """The whole conversation of role move that brings a guest. left: the sandbox of the guest that it replaces, which has ended.
    Errors: all of them mean that nothing has come."""
    try:
        request = talk.expect("prepare")
    except BaseException:
        if left is not None:
            left.leave()
        raise
    pid = int(request["pid"])
    remote.patience.limit = of_guest(request.get("link_timeout"), remote.options.link_timeout)
    phases = Phases("arrival")
    store = remote.store
    key = f"{remote.options.home}-{remote.options.pid}"
    directory = remote.options.images / f"in-{key}"
    if left is not None and left.identities is not None and not left.identities.covers(identity.checked(_ids(request))):
        left.leave()
        left = None
    sandbox = left
    vessel: Vessel | None = None
    frozen: Frozen | None = None
    cargo: _Images | _Poured | None = None
    source = talk
    """who sends the process: the home, or (a hop) the node that it leaves, on a connection of its own"""
    userfaultfd, listener = -1, -1
    taker: postcopy.Taker | None = None
    link: PtraceLink | AwayLink | None = None
    wanted = remote.options.interception
    watches = False
    by_ptrace = wanted == "ptrace" or (wanted == "auto" and not notifications_work())
    try:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, mode=0o700)
        engine = "criu" if request.get("engine") == "criu" else "pour"
        if engine not in remote.options.engines:
            raise FarhomeError(f"{remote.options.node} takes no process by engine {engine}: its owner has left it out ([lend] engines)")
        files = _fetch(talk, store, request)
        phases.done("files")
        if left is not None:
            left.add_files(files)
            clocks = left.clocks
        else:
            clocks = _clocks_of_home(talk)
            phases.done("clocks")
            if engine == "criu":
                rehearsal.ensure(remote.options.images)
            sandbox = _sandbox(remote, key, files, clocks, request, directory)
        assert sandbox is not None
        phases.done("sandbox")
        if engine != "criu":
            vessel = Vessel.board(sandbox.vessel(pid))
            frozen = vessel.frozen
            phases.done("vessel")
        talk.send("ready", kernel=vessel.kernel_pages if vessel is not None else "")
        while cargo is None:
            source, message = _next(remote, talk, source)
            if message["op"] == "files":
                late = _fetch(talk, store, message)
                files += late
                sandbox.add_files(late)
                talk.send("ready")
            elif message["op"] == "signals":
                if by_ptrace:
                    raise FarhomeError("it reads signals by a signalfd, which the interceptor ptrace of that node cannot follow")
                watches = True
                talk.send("ready")
            elif message["op"] in ("precopy", "round", "stale"):
                _go_ahead(vessel, source, message, may_follow=not by_ptrace)
            else:
                cargo = _receive(source, message, directory, remote.options.announced * 5 // 4 + IMAGES_BESIDE)
        phases.done("cargo")
        if isinstance(cargo, _Poured):
            with sandbox.sealing() if left is None else nullcontext():
                if request.get("identity") is not None:
                    cargo = replace(cargo, context=_as_at_home(cargo.context, Identity.from_wire(request["identity"])))
                frozen, taker = _pour(vessel, cargo, int(request["uid"]))
                if taker is not None:
                    remote.take_pages(taker)
                phases.done("pour")
                if not by_ptrace:
                    userfaultfd = precopy.userfaultfd_or_none(frozen)
            phases.done("seal")
        else:
            if "criu" not in remote.options.engines:
                raise FarhomeError(f"{remote.options.node} takes no images of CRIU: its owner has left them out ([lend] engines)")
            if vessel is not None:
                vessel.forgo()
                end_traced(vessel.frozen.pid, list(vessel.frozen.threads))
            if left is not None:  # it is sealed
                sandbox = None
                left.leave()
                rehearsal.ensure(remote.options.images)
                sandbox = _sandbox(remote, key, files, clocks, request, directory)
            host_pid = criu.restore(directory, sandbox, pid)
            phases.done("restore")
            sandbox.seal()
            phases.done("seal")
            frozen = seize(host_pid, tracing.PTRACE_O_EXITKILL)
            wake(frozen)
            phases.done("wake")
        suspend_seccomp(frozen)
        has_fixed_ids = request.get("fixed_ids") is True and (isinstance(cargo, _Images) or _are_equal(cargo.context.identity))
        listener = install_filter(frozen, call_filter.program(FILTER_VERDICT if by_ptrace else RET_NOTIFY, has_fixed_ids))
        phases.done("filter")
        if isinstance(cargo, _Poured):
            install_own(frozen, {thread.tid: thread.filters for thread in cargo.context.threads})
            become(frozen, cargo.context.identity)
        else:
            drop_capabilities(frozen)
        if watches:
            install_watch(frozen)
        phases.done("capabilities")
        tids = inner_tids(frozen.pid, list(frozen.threads))
        link = PtraceLink(frozen.pid, tids) if by_ptrace else AwayLink(listener, frozen.pid, tids, counts=False)
        phases.done("link")
        if isinstance(cargo, _Images):
            receive_own_pages(frozen.pid, cargo.beside, cargo.channel.connection, PAGES_TIMEOUT)
            phases.done("memory")
        if source is not talk:
            source.send("received")
            source.close()
        threads = list(frozen.threads)
        _must_live(threads)
        talk.send("prepared")
        link.account.begin()  # while home decides
        decision = await_decision(remote, talk, lambda: _must_live(threads))
    except BaseException as error:
        # At once: it may be about to say commit. Nothing runs here.
        is_told = isinstance(error, (FarhomeError, OSError, WireError)) and _refuse(talk, sentence(error))
        if userfaultfd >= 0:
            os.close(userfaultfd)
        if source is not talk:
            source.close()
        if frozen is not None:
            end_traced(frozen.pid, list(frozen.threads))
        if vessel is not None:
            vessel.forgo()
        if taker is not None:
            taker.close()
        if link is not None:
            link.close()
        if listener >= 0:
            os.close(listener)
        if sandbox is not None:
            sandbox.leave()
        if is_told:
            _await_end(talk)
        raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        store.settle()
    if listener >= 0:
        os.close(listener)
    guest = Guest(
        remote, frozen, sandbox, link, int(request["uid"]), str(request.get("command", "?")), userfaultfd, taker,
        home_nodes=str(request.get("memory_nodes", "")), is_counted=True,
    )  # fmt: skip
    guest.marks.home_has_guards = bool(request.get("guards"))
    if isinstance(cargo, _Poured):
        assert vessel is not None
        guest.objects = vessel.objects
        guest.waits.may_go_on = lets_sleeps_go_on(thread.filters for thread in cargo.context.threads)
        guest.marks.home_lets_lock = cargo.context.identity.limits.get(resource.RLIMIT_MEMLOCK, (NO_LIMIT, NO_LIMIT))[0]
    if watches:
        guest.masks.follow()
        guest.masks.begin(decision.watched, decision.blocked)
    if request.get("trace"):
        guest.show_calls()
    remote.settle(guest)
    phases.done("commit")
    if taker is not None:
        taker.start(remote.patience.limit, remote.wake)
    if decision.link is not None:
        remote.attach(decision.link)
    guest.tracee.is_stopped = decision.stopped
    for part in decision.parts:
        guest.link.expect_part(part)
    guest.run(decision.pending)
    with suppress(OSError):  # it asks again
        decision.talk.send("running")
    phases.done("run")
    phases.tell(log)
    decision.talk.close()
    remote.server.tell({"event": "running", "uid": guest.uid, "command": guest.command})
    log.info("guest %s runs as %d", key, frozen.pid)
    store.trim(remote.options.lent_disk)


@dataclass(frozen=True)
class Decision:
    """The process runs here, with these signals waiting and these calls half done, or stands still until it is continued: who has said so,
    and the link, if it is connected."""

    talk: Channel
    pending: Pending
    parts: list[Part]
    stopped: bool
    link: Connection | None
    watched: int = 0
    """signals that wait at home where the process blocks them"""
    blocked: dict[int, int] = field(default_factory=dict)
    """of those, what each thread (the program's id) blocks"""


def await_decision(remote: Receiving, talk: Channel, look: Callable[[], None] = lambda: None) -> Decision:
    """The process is ready here and stands still: nobody but its home knows whether it is to run (engine/commit.py). A conversation that
    breaks says nothing about that; home may come back by another. look: see Receiving.next_caller(). Errors: WireError, TimeoutError: it is
    not, or home is silent."""
    state, link, talks = Candidate.READY, None, [talk]
    end = time.monotonic() + CALL_TIMEOUT
    try:
        while True:
            caller = remote.next_caller(max(0.0, end - time.monotonic()), talks, look)
            if isinstance(caller, Channel):
                word, message = _word(caller)
                if word is Word.BROKEN:
                    log.warning("the home's conversation broke when guest %d was ready", remote.options.pid)
                    talks.remove(caller)
                    caller.close()
                    end = time.monotonic() + remote.patience.limit
                state, action = follow(state, word)
                if action is Do.RUN:
                    talks.remove(caller)
                    pending = [(int(tid), bytes(info)) for tid, info in message["pending"]]
                    parts = [Part(int(tid), int(number), int(done)) for tid, number, done in message.get("parts", [])]
                    blocked = {int(tid): int(mask) for tid, mask in message.get("blocked", [])}
                    watched, stopped = int(message.get("watched", 0)), message.get("stopped") is True
                    made, link = Decision(caller, pending, parts, stopped, link or _late_link(remote), watched, blocked), None
                    return made
                if action is Do.END:
                    raise WireError("the home keeps the process")
            elif caller[1] == "link":
                if link is not None:
                    link.close()
                link = caller[0]
            elif caller[1] == "move":
                talks.append(Channel(caller[0]))
            else:
                caller[0].close()
    finally:
        if link is not None:
            link.close()
        for other in talks:
            if other is not talk:
                other.close()


def _must_live(tids: Sequence[int]) -> None:
    """The threads of what is ready. Errors: FarhomeError."""
    if many.have_ended(tids):
        raise FarhomeError("it was killed when it was ready")


def _late_link(remote: Receiving) -> Connection | None:
    """Home has connected it before it said commit, as a rule: then it comes in a moment. Without it the guest's first calls wait."""
    with suppress(TimeoutError):
        caller = remote.next_caller(LINK_PATIENCE)
        if not isinstance(caller, Channel):
            if caller[1] == "link":
                return caller[0]
            caller[0].close()
    return None


def _word(talk: Channel) -> tuple[Word, Message]:
    """What home says about a process that is ready."""
    try:
        message = talk.next(timeout=WORD_TIMEOUT)
    except (WireError, OSError):
        return Word.BROKEN, {}
    word = {"commit": Word.COMMIT, "abort": Word.ABORT}.get(message["op"])
    return (word, message) if word is not None else (Word.BROKEN, {})


def _sandbox(
    remote: Receiving, key: str, files: list[tuple[str, str]], clocks: tuple[int, int] | None, request: Message, images: Path
) -> Sandbox:
    """Errors: FarhomeError."""
    options = remote.options
    ids = identity.take(options.ids, identity.greater_ids(_ids(request))) if options.ids is not None else None
    return Sandbox.create(
        key, files, clocks=clocks, nodename=str(request["nodename"]), cgroup=options.cgroup or None, images=images, identities=ids
    )


def _ids(request: Message) -> list[object]:
    """All user and group ids that the process has at home."""
    return [request["uid"], *request.get("ids", [])]


def _as_at_home(context: Context, home: Identity) -> Context:
    """With the ids that it has at home, and what it may lock there: they may have changed since it left, and have done so there alone."""
    limits = context.identity.limits | {number: limit for number, limit in home.limits.items() if number == resource.RLIMIT_MEMLOCK}
    identity = replace(context.identity, uids=home.uids, gids=home.gids, groups=home.groups, limits=limits)
    return replace(context, identity=identity)


def _are_equal(identity: Identity) -> bool:
    """Whether nothing has given it other ids since it was said that it cannot have them."""
    return len({*identity.uids}) == len({*identity.gids}) == 1


def _clocks_of_home(talk: Channel) -> tuple[int, int] | None:
    """How far home's CLOCK_MONOTONIC and CLOCK_BOOTTIME are ahead of ours (ns), or None if they are the same within what the
    network lets us see. The best of a few readings, the shortest way being the truest (RFC 5905, clock filter)."""
    best: tuple[int, int, int] | None = None
    for _ in range(CLOCK_READINGS):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        talk.send("clocks")
        theirs = talk.expect("clocks", timeout=10.0)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        boottime = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - (after - before) // 2
        reading = (after - before, int(theirs["monotonic"]) - (before + after) // 2, int(theirs["boottime"]) - boottime)
        best = min(best, reading) if best else reading
    assert best is not None
    width, monotonic, boot = best
    return None if max(abs(monotonic), abs(boot)) <= width else (monotonic, boot)


def _refuse(talk: Channel, reason: str) -> bool:
    """Whether it could be said."""
    try:
        talk.connection.settimeout(REFUSAL_TIMEOUT)
        talk.send("refused", reason=reason)
        return True
    except (OSError, WireError):
        return False


def _await_end(talk: Channel) -> None:
    """Takes what is still on its way: a connection that is closed with something unread takes the reason with it."""
    end = time.monotonic() + REFUSAL_TIMEOUT
    with suppress(OSError):
        while (left := end - time.monotonic()) > 0:
            talk.connection.settimeout(left)
            if not talk.connection.recv(1 << 20):
                return


def _fetch(talk: Channel, store: FileStore, request: Message) -> list[tuple[str, str]]:
    """(path at home, local file) of all that the request names; what is not here with the same content is asked for."""
    offered = [MappedFile.from_wire(file) for file in request["files"]]
    found = {file: store.find(file) for file in offered}
    missing = {file.sha256: file for file, path in found.items() if path is None}
    talk.send("wanted", sha256=list(missing))
    for _ in range(len(missing)):
        content = talk.expect("content", timeout=60.0)
        file = missing.get(str(content["sha256"]))
        if file is None or content["size"] != file.size:
            raise WireError("a file came that nobody asked for")
        store.receive(file, talk.chunks(file.size))
    result = []
    for file in offered:
        path = found[file] or store.find(file)
        if path is None:
            raise FarhomeError(f"{file.path} did not arrive")
        result.append((file.path, str(path)))
    return result


def _pour(vessel: Vessel | None, cargo: _Poured, uid: int) -> tuple[Frozen, postcopy.Taker | None]:
    """The process, in its vessel, and what takes the memory that follows it. Errors: FarhomeError, WireError, OSError."""
    if vessel is None:
        raise WireError("a context came where images were due")
    if cargo.context.identity.uids[0] != uid:
        raise FarhomeError(f"it was announced as user {uid}'s, and is user {cargo.context.identity.uids[0]}'s")
    vessel.fill(cargo.context, cargo.channel.connection, PAGES_TIMEOUT, cargo.filled)
    taker = vessel.await_rest(cargo.filled, cargo.owed) if cargo.owed else None
    return vessel.leave(), taker


def _next(remote: Receiving, talk: Channel, source: Channel) -> tuple[Channel, Message]:
    """Who sends the process, and what is said next while it is awaited: late files, by the home, or what goes ahead of the process, or
    the process itself, by its source."""
    caller = remote.next_caller(IMAGES_TIMEOUT, unless=[talk] if source is talk else [talk, source])
    if isinstance(caller, Channel):
        message = caller.next()
        if caller is not source and message["op"] not in ("files", "signals"):
            raise WireError(f"{message['op']!r} is out of turn")
        return source, message
    connection, role = caller
    try:
        if role != "imgs" or source is not talk:
            raise WireError(f"a connection of role {role} is out of turn")
        source = Channel(connection)
        return source, source.next()
    except BaseException:
        connection.close()
        raise


def _go_ahead(vessel: Vessel | None, source: Channel, message: Message, may_follow: bool) -> None:
    """Part of the process comes before it. may_follow: the interceptor waits for pages that are not here yet. Errors: WireError,
    OSError."""
    if vessel is None:
        raise WireError("memory came where images were due")
    if message["op"] == "precopy":
        wanted = precopy.spans(message.get("areas"))
        unreserved = {(area[0], area[1]) for area in message["areas"] if area[2]}
        room = vessel.make_room(wanted, unreserved)
        source.send("precopy", areas=room, postcopy=may_follow and bool(message.get("postcopy")) and vessel.taker is not None)
    elif message["op"] == "stale":
        vessel.give_back(precopy.spans(message.get("spans")))
        source.send("stale")
    else:
        precopy.receive_round(vessel.frozen.pid, vessel.room, source, taker=vessel.taker)


def _receive(channel: Channel, message: Message, directory: Path, most: int) -> _Images | _Poured:
    """most: bytes of images. Errors: WireError, OSError, FarhomeError."""
    if message["op"] == "context":
        context = Context.from_wire(channel.receive_block(WIRE_MOST))
        return _Poured(channel, context, precopy.spans(message.get("kept", [])), precopy.spans(message.get("owed", [])))
    if message["op"] == "abort":
        raise WireError("the home keeps the process")
    if message["op"] != "images":
        raise WireError(f"{message['op']!r} is out of turn")
    beside = from_wire(message.get("beside"))
    channel.receive_directory(directory, most)
    return _Images(channel, beside)
