"""What there has to be before a process comes: its files, the clocks of its home, its sandbox and its ids."""

from __future__ import annotations

import resource
import time
from dataclasses import replace
from pathlib import Path

from engine.context.context import Context, Identity
from engine.files.files import MappedFile
from engine.files.store import FileStore
from kernel_helpers.common.errors import FarhomeError
from remote.moves.receiving import Receiving
from remote.sandbox import identity
from remote.sandbox.sandbox import Sandbox
from wire.channel import Channel
from wire.frames import Message, WireError

CLOCK_READINGS = 5


def make_sandbox(
    remote: Receiving, key: str, files: list[tuple[str, str]], clocks: tuple[int, int] | None, request: Message, images: Path
) -> Sandbox:
    """Errors: FarhomeError."""
    options = remote.options
    ids = identity.take(options.ids, identity.greater_ids(ids_at_home(request))) if options.ids is not None else None
    return Sandbox.create(
        key, files, clocks=clocks, nodename=str(request["nodename"]), cgroup=options.cgroup or None, images=images, identities=ids
    )


def ids_at_home(request: Message) -> list[object]:
    """Return all user and group ids that the process has at home."""
    return [request["uid"], *request.get("ids", [])]


def as_at_home(context: Context, home: Identity) -> Context:
    """With the ids that it has at home, and what it may lock there: they may have changed since it left, and have done so there alone."""
    limits = context.identity.limits | {number: limit for number, limit in home.limits.items() if number == resource.RLIMIT_MEMLOCK}
    identity = replace(context.identity, uids=home.uids, gids=home.gids, groups=home.groups, limits=limits)
    return replace(context, identity=identity)


def are_equal(identity: Identity) -> bool:
    """Return whether nothing has given it other ids since it was said that it cannot have them."""
    return len({*identity.uids}) == len({*identity.gids}) == 1


def clocks_of_home(talk: Channel) -> tuple[int, int] | None:
    """Return how far home's CLOCK_MONOTONIC and CLOCK_BOOTTIME are ahead of ours (ns), or None if they are the same within what the
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


def fetch(talk: Channel, store: FileStore, request: Message) -> list[tuple[str, str]]:
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
