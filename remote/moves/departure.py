"""Departure of a guest that the deputy has had frozen: its context to home, or its images to another node.

Afterwards the deputy says `discard` here (it runs elsewhere), or THAW on the link (it runs on here). If the conversation
breaks before either, the guest stays frozen: the deputy may have decided already, and only it knows. It says so on the link,
or the link times out and the guest ends.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Protocol

from engine.context.capture import capture
from engine.context.context import with_pending
from engine.context.marks import TOO_LITTLE, can_lock, not_in_images
from engine.criu import criu
from engine.criu.forkcopy import fork_copy, wiped_ranges
from engine.mappings.address_space import read_mappings_quickly
from engine.mappings.layout import Span
from engine.memory.hollow import hollow_spans, page_ranges, to_wire
from engine.phases import Phases
from engine.pour import precopy
from engine.pour.precopy import Ahead
from engine.pour.vessel import obstacle
from kernel_helpers.common.errors import FarhomeError, sentence
from kernel_helpers.pages.pages import send_own_pages
from kernel_helpers.process.syscalls import U64
from remote.guest import Guest
from remote.options import Options
from remote.sandbox import rehearsal
from wire import channel, frames
from wire.channel import Channel
from wire.frames import WireError

log = logging.getLogger("remote")

PAGES_TIMEOUT = 120.0
"""Seconds that the target may take to restore before it takes the first of the memory beside the images."""

Target = tuple[tuple[str, int], bytes]
"""Another node's address, and the secret that opens it."""


class Leaving(Protocol):
    """What a departure needs of those who talk about it (remote/moves/conversations.py)."""

    options: Options

    def ahead(self, talk: Channel) -> Ahead | None:
        """Return what has gone ahead for that conversation."""

    def stream(self, talk: Channel) -> Channel | None:
        """Return the connection that it went by."""

    def go_ahead(self, guest: Guest, talk: Channel, target: Target | None, mode: str) -> None:
        """Has memory of the guest go ahead of it, home or to another node, as `talk` has asked."""

    def give_pages(self, pid: int, target: Target | None) -> None:
        """Memory of the guest, which stands still, is to follow it."""

    def gone(self, reason: str) -> None:
        """The guest runs elsewhere."""

    def replace(self, talk: Channel) -> None:
        """The process executes another program, which comes in the place of the guest."""


def serve(remote: Leaving, guest: Guest, talk: Channel) -> None:
    """Answers the deputy's next request about a frozen guest. Errors: WireError when the conversation is over."""
    message = frames.receive(talk.connection)
    operation = message.get("op")
    try:
        if operation in ("capture", "watch", "approach", "prepare", "hop") and not guest.tracee.has_all_memory:
            raise FarhomeError("memory of it still follows it")
        if operation == "capture":
            assert guest.tracee.frozen is not None
            phases = Phases("departure")
            context = guest.masks.without(capture(guest.tracee.frozen, objects=guest.objects, beneath=1))
            phases.done("capture")
            ahead = remote.ahead(talk) if message.get("ahead") else None
            precopy.send_context(guest.tracee.frozen, context, talk, ahead, spoilt=precopy.spans(message.get("spoilt", [])))
            if ahead is not None and ahead.owed:
                remote.give_pages(guest.pid, None)
            phases.done("send")
            phases.report(log)
        elif operation == "watch":
            guest.watch()
            talk.send("ready")
        elif operation == "approach":
            remote.go_ahead(guest, talk, None, str(message.get("memory", "auto")))
        elif operation == "prepare":
            if message.get("engine") == "criu":
                _open(remote.options, guest)
            if message.get("engine") == "criu" or "address" not in message:
                talk.send("ready")
            else:
                host, port = message["address"]
                remote.go_ahead(guest, talk, ((str(host), int(port)), bytes(message["secret"])), str(message.get("memory", "auto")))
        elif operation == "hop":
            _hop(remote, guest, message, talk)
        elif operation == "commit":
            talk.send("running")  # home has not heard it
        elif operation == "discard":
            remote.gone("it moved on")
        elif operation == "replace":
            remote.replace(talk)
        else:
            raise WireError(f"unknown request {operation!r}")
    except (FarhomeError, OSError) as error:
        log.warning("departure failed: %s", error, exc_info=True)
        talk.send("refused", reason=sentence(error))


def _directory(options: Options) -> Path:
    return Path(options.images) / f"hop-{options.home}-{options.pid}"


def clean_up(options: Options) -> None:
    """Takes away what a hop that did not come to pass has left."""
    shutil.rmtree(_directory(options), ignore_errors=True)


def _open(options: Options, guest: Guest) -> None:
    """What can be done for a hop while the guest still runs. Errors: FarhomeError, OSError."""
    if guest.sandbox.is_open:  # a hop that did not come to pass
        guest.sandbox.close_for_criu()
    shutil.rmtree(_directory(options), ignore_errors=True)
    _directory(options).mkdir(parents=True, mode=0o700)
    guest.sandbox.open_for_criu(_directory(options))


def _hop(remote: Leaving, guest: Guest, message: frames.Message, talk: Channel) -> None:
    """Sends the frozen guest to another node, poured if that is asked for and can be, else as images."""
    assert guest.tracee.frozen is not None
    if guest.tracee.shares_memory:
        raise FarhomeError("it has its parent's memory (vfork)")
    host, port = message["address"]
    phases = Phases("departure")
    context, owed = None, 0
    if message.get("engine") != "criu":
        context = guest.masks.without(capture(guest.tracee.frozen, objects=guest.objects, beneath=1))
        phases.done("capture")
        if not can_lock(context, int(message.get("lockable", U64))):
            raise FarhomeError(TOO_LITTLE)
        reason = obstacle(context, str(message.get("kernel")))
        if reason is not None:
            if any(thread.filters for thread in context.threads):
                raise FarhomeError(f"{reason}, and images do not hold its seccomp filters")
            log.info("not poured: %s", reason)
            context = None
    try:
        if context is None:
            hollow = _dump(remote.options, guest, phases)
        stream = remote.stream(talk) or Channel(channel.connect((str(host), int(port)), "imgs", bytes(message["secret"]), timeout=60.0))
        with stream.connection:
            if context is not None:
                ahead = remote.ahead(talk)
                size = precopy.send_context(guest.tracee.frozen, with_pending(context, []), stream, ahead)
                owed = ahead.owed if ahead is not None else 0
            else:
                stream.send("images", beside=to_wire(hollow))
                size = stream.send_directory(_directory(remote.options))
                size += send_own_pages(guest.pid, page_ranges(hollow), stream.connection, PAGES_TIMEOUT).bytes
            stream.expect("received")
        if owed:
            remote.give_pages(guest.pid, ((str(host), int(port)), bytes(message["secret"])))
        phases.done("send")
        phases.report(log)
        talk.send("sent", bytes=size, engine="criu" if context is None else "pour", owed=owed)
    finally:
        shutil.rmtree(_directory(remote.options), ignore_errors=True)
        if guest.sandbox.is_open:
            guest.sandbox.close_for_criu()


def _dump(options: Options, guest: Guest, phases: Phases) -> list[Span]:
    """Images of the guest in the directory; returns what of its memory is not in them."""
    assert guest.tracee.frozen is not None
    reason = not_in_images(guest.tracee.frozen, read_mappings_quickly(guest.pid))
    if reason is not None:
        raise FarhomeError(reason)
    rehearsal.ensure(options.images)
    if not guest.sandbox.is_open:
        _open(options, guest)
    wiped = wiped_ranges(guest.pid)
    hollow = hollow_spans(guest.tracee.frozen, wiped)
    copy = fork_copy(guest.tracee.frozen, wiped, hollow)
    phases.done("copy")
    try:
        criu.dump(copy, _directory(options), sandbox=guest.sandbox)
    finally:
        phases.done("dump")
        copy.discard()
    phases.done("discard")
    return hollow
