"""What comes of a process, and is put into its vessel: memory ahead of it, its context or images, the rest of its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.context.context import WIRE_MOST, Context
from engine.mappings.layout import Span
from engine.memory.hollow import from_wire
from engine.pour import postcopy, precopy
from engine.pour.filling import Filling
from engine.pour.vessel import Vessel
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.pages.pages import PageRange
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.stream.stream import Connection
from remote.moves.receiving import Receiving
from wire.channel import Channel
from wire.frames import Message, WireError

IMAGES_TIMEOUT = 120.0
PAGES_TIMEOUT = 30.0
"""Seconds without progress."""


@dataclass(frozen=True)
class Images:
    """They are here; what of the memory is to come beside them, and from where."""

    channel: Channel
    beside: list[PageRange]


@dataclass(frozen=True)
class Poured:
    """The context is here; the pages are to come after it."""

    channel: Channel
    context: Context
    filled: list[Span]
    """what has come before it"""
    owed: list[Span]
    """what of that follows it"""


def pour(vessel: Vessel | None, cargo: Poured, uid: int) -> tuple[Frozen, postcopy.Taker | None]:
    """Return the process, in its vessel, and what takes the memory that follows it. Errors: FarhomeError, WireError, OSError."""
    if vessel is None:
        raise WireError("a context came where images were due")
    if cargo.context.identity.uids[0] != uid:
        raise FarhomeError(f"it was announced as user {uid}'s, and is user {cargo.context.identity.uids[0]}'s")
    Filling(vessel).fill(cargo.context, cargo.channel.connection, PAGES_TIMEOUT, cargo.filled, bool(cargo.owed))
    taker = vessel.await_rest(cargo.filled, cargo.owed) if cargo.owed else None
    return vessel.leave(), taker


def next_message(remote: Receiving, talk: Channel, source: Channel, keep: Callable[[Connection], None]) -> tuple[Channel, Message]:
    """Return who sends the process, and what is said next while it is awaited: late files, by the home, or what goes ahead of the process,
    or the process itself, by its source. keep: is called with the link's connection, which home makes as soon as it has sent that."""
    caller = remote.next_caller(IMAGES_TIMEOUT, unless=[talk] if source is talk else [talk, source])
    while not isinstance(caller, Channel) and caller[1] == "link":
        keep(caller[0])
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


def go_ahead(vessel: Vessel | None, source: Channel, message: Message, may_follow: bool) -> None:
    """Part of the process comes before it. may_follow: the interceptor waits for pages that are not here yet. Errors: WireError,
    OSError."""
    if vessel is None:
        raise WireError("memory came where images were due")
    if message["op"] == "precopy":
        wanted = precopy.spans(message.get("areas"))
        unreserved = {(area[0], area[1]) for area in message["areas"] if area[2]}
        areas = vessel.map_areas(wanted, unreserved)
        source.send("precopy", areas=areas, postcopy=may_follow and bool(message.get("postcopy")) and vessel.taker is not None)
    elif message["op"] == "stale":
        vessel.give_back(precopy.spans(message.get("spans")))
        source.send("stale")
    else:
        precopy.receive_round(vessel.frozen.pid, vessel.areas, source, taker=vessel.taker)


def receive(channel: Channel, message: Message, directory: Path, most: int) -> Images | Poured:
    """most: bytes of images. Errors: WireError, OSError, FarhomeError."""
    if message["op"] == "context":
        context = Context.from_wire(channel.receive_block(WIRE_MOST))
        return Poured(channel, context, precopy.spans(message.get("kept", [])), precopy.spans(message.get("owed", [])))
    if message["op"] == "abort":
        raise WireError("the home keeps the process")
    if message["op"] != "images":
        raise WireError(f"{message['op']!r} is out of turn")
    beside = from_wire(message.get("beside"))
    channel.receive_directory(directory, most)
    return Images(channel, beside)
