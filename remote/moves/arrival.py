"""Arrival: a sandbox with the home's files in it, the process poured into a vessel or restored by CRIU, filter and listener; then,
after the commit, life."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import time
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace

from engine.context.capture import NO_LIMIT
from engine.context.confinement import lets_sleeps_go_on
from engine.context.context import Identity
from engine.criu import criu
from engine.phases import Phases
from engine.pour import postcopy, precopy
from engine.pour.arrival import (
    become,
    drop_capabilities,
    install_filter,
    install_own,
    install_watch,
    notifications_work,
    suspend_seccomp,
    wake,
)
from engine.pour.vessel import Vessel
from kernel_helpers.calls import filter as call_filter
from kernel_helpers.calls.filter import RET_NOTIFY
from kernel_helpers.common.errors import FarhomeError, sentence
from kernel_helpers.inspection.tasks import inner_tids
from kernel_helpers.link.ends.away import AwayLink
from kernel_helpers.pages.pages import receive_own_pages
from kernel_helpers.process import tracing
from kernel_helpers.process.injection.beside import beside
from kernel_helpers.process.seizing import Frozen, seize
from kernel_helpers.stream.stream import Connection
from remote.guest import Guest
from remote.moves.cargo import PAGES_TIMEOUT, Images, Poured, go_ahead, next_message, pour, receive
from remote.moves.conditions import are_equal, as_at_home, clocks_of_home, fetch, ids_at_home, make_sandbox
from remote.moves.decision import Decision, await_decision, must_live
from remote.moves.receiving import Receiving
from remote.reference.intercept_ptrace import FILTER_VERDICT, PtraceLink
from remote.sandbox import identity, rehearsal
from remote.sandbox.sandbox import Sandbox
from remote.tracee.ending import end_traced
from wire.channel import Channel
from wire.frames import Message, WireError
from wire.patience import of_guest

log = logging.getLogger("remote")

IMAGES_BESIDE = 64 << 20
"""Bytes that images may have besides the memory that was announced, and a quarter of that."""
REFUSAL_TIMEOUT = 10.0
"""Seconds that the other side may take to hear why."""


def arrive(remote: Receiving, talk: Channel, left: Sandbox | None = None, vessel: Vessel | None = None) -> None:
    """Has the whole conversation of role move that brings a guest. left: the sandbox of the guest that it replaces, which has ended;
    vessel: is ready there. Errors: all of them mean that nothing has come."""
    try:
        request = talk.expect("prepare")
    except BaseException:
        if vessel is not None:
            discard(vessel)
        if left is not None:
            left.leave()
        raise
    Arrival(remote, talk, request, left, vessel).complete()


def discard(vessel: Vessel) -> None:
    """Ends a vessel that nobody comes into."""
    vessel.forgo()
    end_traced(vessel.frozen.pid, list(vessel.frozen.threads))


class Arrival:
    """One process on its way into this node. What is made for it is undone if it does not come: `_made`."""

    def __init__(self, remote: Receiving, talk: Channel, request: Message, left: Sandbox | None, vessel: Vessel | None) -> None:
        self._remote = remote
        self._talk = talk
        self._request = request
        self._pid = int(request["pid"])
        remote.patience.limit = of_guest(request.get("link_timeout"), remote.options.link_timeout)
        self._phases = Phases("arrival")
        self._key = f"{remote.options.home}-{remote.options.pid}"
        self._directory = remote.options.images / f"in-{self._key}"
        if left is not None and left.identities is not None and not left.identities.covers(identity.checked(ids_at_home(request))):
            if vessel is not None:
                discard(vessel)
            left.leave()
            left = vessel = None
        self._left = left
        self._sandbox = left
        self._files: list[tuple[str, str]] = []
        self._clocks: tuple[int, int] | None = None
        self._vessel = vessel
        self._frozen = vessel.frozen if vessel is not None else None
        self._source = talk
        """who sends the process: the home, or (a hop) the node that it leaves, on a connection of its own"""
        self._userfaultfd, self._listener = -1, -1
        self._taker: postcopy.Taker | None = None
        self._link: Connection | None = None
        """home's, until it decides"""
        self._watches = False
        """its home has what waits for its signalfds"""
        wanted = remote.options.interception
        self._by_ptrace = wanted == "ptrace" or (wanted == "auto" and not notifications_work())
        self._made = ExitStack()

    def complete(self) -> None:
        """Takes the process, and runs it if its home says so. Errors: as arrive()."""
        self._made.callback(self._leave_sandbox)
        self._made.callback(self._end_process)
        self._made.callback(self._keep_link, None)
        try:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory.mkdir(parents=True, mode=0o700)
            sandbox = self._make_place("criu" if self._request.get("engine") == "criu" else "pour")
            cargo = self._take_cargo(sandbox)
            self._phases.done("cargo")
            with beside(*(self._frozen.threads if self._frozen is not None else ())):
                if isinstance(cargo, Poured):
                    cargo = self._pour(sandbox, cargo)
                else:
                    sandbox = self._restore(sandbox)
                assert self._frozen is not None
                link = self._intercept(self._frozen, cargo)
            decision = self._await_decision(self._frozen, link, cargo)
        except BaseException as error:
            # At once: it may be about to say commit. Nothing runs here.
            is_reported = isinstance(error, (FarhomeError, OSError, WireError)) and _refuse(self._talk, sentence(error))
            self._made.close()
            if is_reported:
                _await_end(self._talk)
            raise
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._remote.store.settle()
        self._made.pop_all()
        if self._listener >= 0:
            os.close(self._listener)
        self._run(self._as_guest(self._frozen, sandbox, link, cargo, decision), decision)

    def _leave_sandbox(self) -> None:
        if self._sandbox is not None:
            self._sandbox.leave()

    def _end_process(self) -> None:
        if self._frozen is not None:
            end_traced(self._frozen.pid, list(self._frozen.threads))
        if self._vessel is not None:
            self._vessel.forgo()

    def _make_place(self, engine: str) -> Sandbox:
        """The sandbox with the home's files in it; the vessel too, if the process does not come by CRIU; and inform home."""
        remote, talk = self._remote, self._talk
        if engine not in remote.options.engines:
            raise FarhomeError(f"{remote.options.node} takes no process by engine {engine}: its owner has left it out ([lend] engines)")
        self._files = fetch(talk, remote.store, self._request)
        self._phases.done("files")
        if self._left is not None:
            self._left.add_files(self._files)
            self._clocks = self._left.clocks
            sandbox = self._left
        else:
            self._clocks = clocks_of_home(talk)
            self._phases.done("clocks")
            if engine == "criu":
                rehearsal.ensure(remote.options.images)
            sandbox = self._make_sandbox()
        remote.has_joined()
        self._phases.done("sandbox")
        if engine != "criu" and self._vessel is None:
            self._vessel = Vessel.board(sandbox.vessel(self._pid))
            self._frozen = self._vessel.frozen
            self._phases.done("vessel")
        elif engine == "criu" and self._vessel is not None:
            discard(self._vessel)
            self._vessel = self._frozen = None
        if self._vessel is not None:
            talk.send("ready", kernel=self._vessel.kernel_pages, lockable=self._vessel.lockable)
        else:
            talk.send("ready", kernel="")
        return sandbox

    def _make_sandbox(self) -> Sandbox:
        self._sandbox = made = make_sandbox(self._remote, self._key, self._files, self._clocks, self._request, self._directory)
        return made

    def _take_cargo(self, sandbox: Sandbox) -> Images | Poured:
        """The process, and what its home and its source say before it."""
        while True:
            source, message = next_message(self._remote, self._talk, self._source, self._keep_link)
            if source is not self._source:
                self._source = source
                self._made.callback(source.close)
            if message["op"] == "files":
                late = fetch(self._talk, self._remote.store, message)
                self._files += late
                sandbox.add_files(late)
                self._talk.send("ready")
            elif message["op"] == "signals":
                if self._by_ptrace:
                    raise FarhomeError("it reads signals by a signalfd, which the interceptor ptrace of that node cannot follow")
                self._watches = True
                self._talk.send("ready")
            elif message["op"] in ("precopy", "round", "stale"):
                go_ahead(self._vessel, source, message, may_follow=not self._by_ptrace)
            else:
                return receive(source, message, self._directory, self._remote.options.announced * 5 // 4 + IMAGES_BESIDE)

    def _keep_link(self, connection: Connection | None) -> None:
        """It is early; one that came before it is given up."""
        before, self._link = self._link, connection
        if before is not None:
            before.close()

    def _pour(self, sandbox: Sandbox, cargo: Poured) -> Poured:
        """Into the vessel."""
        with sandbox.confining() if self._left is None else nullcontext():
            if self._request.get("identity") is not None:
                cargo = replace(cargo, context=as_at_home(cargo.context, Identity.from_wire(self._request["identity"])))
            self._frozen, self._taker = pour(self._vessel, cargo, int(self._request["uid"]))
            if self._taker is not None:
                self._made.callback(self._taker.close)
                self._remote.take_pages(self._taker)
            self._phases.done("pour")
            if not self._by_ptrace:
                self._userfaultfd = precopy.userfaultfd_or_none(self._frozen)
                if self._userfaultfd >= 0:
                    self._made.callback(os.close, self._userfaultfd)
        self._phases.done("confine")
        return cargo

    def _restore(self, sandbox: Sandbox) -> Sandbox:
        """By CRIU: returns the sandbox that it is in, another one if this has been confined."""
        options = self._remote.options
        if "criu" not in options.engines:
            raise FarhomeError(f"{options.node} takes no images of CRIU: its owner has left them out ([lend] engines)")
        if self._vessel is not None:
            discard(self._vessel)
            self._frozen = None
        if self._left is not None:
            self._sandbox = None
            self._left.leave()
            rehearsal.ensure(options.images)
            sandbox = self._make_sandbox()
        host_pid = criu.restore(self._directory, sandbox, self._pid)
        self._phases.done("restore")
        sandbox.confine()
        self._phases.done("confine")
        self._frozen = seize(host_pid, tracing.PTRACE_O_EXITKILL)
        wake(self._frozen)
        self._phases.done("wake")
        return sandbox

    def _intercept(self, frozen: Frozen, cargo: Images | Poured, old: AwayLink | None = None) -> PtraceLink | AwayLink:
        """Its filter and its listener; what it may do is what its user may. old: the end of a link whose session it takes over."""
        suspend_seccomp(frozen)
        has_fixed_ids = self._request.get("fixed_ids") is True and (isinstance(cargo, Images) or are_equal(cargo.context.identity))
        program = call_filter.program(FILTER_VERDICT if self._by_ptrace else RET_NOTIFY, has_fixed_ids)
        self._listener = install_filter(frozen, program)
        if self._listener >= 0:
            self._made.callback(os.close, self._listener)
        self._phases.done("filter")
        if isinstance(cargo, Poured):
            install_own(frozen, {thread.tid: thread.filters for thread in cargo.context.threads})
            become(frozen, cargo.context.identity)
        else:
            drop_capabilities(frozen)
        if self._watches:
            install_watch(frozen)
        self._phases.done("capabilities")
        tids = inner_tids(frozen.pid, list(frozen.threads))
        link = PtraceLink(frozen.pid, tids) if self._by_ptrace else AwayLink(self._listener, frozen.pid, tids, False, old)
        self._made.callback(link.close)
        if isinstance(cargo, Poured) and cargo.context.keyed and isinstance(link, AwayLink):
            link.has_keys()
        self._phases.done("link")
        return link

    def _await_decision(self, frozen: Frozen, link: PtraceLink | AwayLink, cargo: Images | Poured) -> Decision:
        """All of it is here: home decides."""
        if isinstance(cargo, Images):
            receive_own_pages(frozen.pid, cargo.beside, cargo.channel.connection, PAGES_TIMEOUT)
            self._phases.done("memory")
        if self._source is not self._talk:
            self._source.send("received")
            self._source.close()
        threads = list(frozen.threads)
        must_live(threads)
        self._talk.send("prepared")
        link.account.begin()  # while home decides
        early, self._link = self._link, None
        return await_decision(self._remote, self._talk, lambda: must_live(threads), early)

    def _as_guest(
        self, frozen: Frozen, sandbox: Sandbox, link: PtraceLink | AwayLink, cargo: Images | Poured, decision: Decision | None
    ) -> Guest:
        """It is to run here."""
        request = self._request
        guest = Guest(
            self._remote, frozen, sandbox, link, int(request["uid"]), str(request.get("command", "?")), self._userfaultfd, self._taker,
            home_nodes=str(request.get("memory_nodes", "")), is_counted=True,
        )  # fmt: skip
        guest.marks.home_has_guards = bool(request.get("guards"))
        if isinstance(cargo, Poured):
            assert self._vessel is not None
            guest.objects = self._vessel.objects
            guest.waits.may_go_on = lets_sleeps_go_on(thread.filters for thread in cargo.context.threads)
            guest.marks.home_lets_lock = cargo.context.identity.limits.get(resource.RLIMIT_MEMLOCK, (NO_LIMIT, NO_LIMIT))[0]
        if self._watches and decision is not None:
            guest.masks.follow()
            guest.masks.begin(decision.watched, decision.blocked)
        if request.get("trace"):
            guest.show_calls()
        return guest

    def _run(self, guest: Guest, decision: Decision) -> None:
        remote = self._remote
        remote.settle(guest)
        self._phases.done("commit")
        if self._taker is not None:
            self._taker.start(remote.patience.limit, remote.wake)
        if decision.link is not None:
            remote.attach(decision.link)
        guest.tracee.is_stopped = decision.stopped
        for part in decision.parts:
            guest.link.expect_part(part)
        guest.run(decision.pending)
        with suppress(OSError):  # it asks again
            decision.talk.send("running")
        self._phases.done("run")
        self._phases.report(log)
        decision.talk.close()
        remote.server.send({"event": "running", "uid": guest.uid, "command": guest.command})
        log.info("guest %s runs as %d", self._key, guest.pid)
        remote.store.trim(remote.options.lent_disk)


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
