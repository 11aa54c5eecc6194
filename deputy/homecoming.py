"""Coming home: the guest's context is poured back into the stub, which becomes the native process again."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from deputy import freezing
from engine.context import Context
from engine.refill import refill
from wire import channel, frames
from wire.channel import Channel

if TYPE_CHECKING:
    from deputy.deputy import Deputy, Report

log = logging.getLogger("deputy")

CONTEXT_LIMIT = 64 << 20
"""Bytes of a context without its pages: 65,536 maps and 4,096 threads fit."""


def come_home(deputy: Deputy, begun: float) -> Report:
    """Errors: FarhomeError, WireError, OSError: the guest runs on where it is. LinkLost: it is gone."""
    from deputy.deputy import Report

    assert deputy.link is not None and deputy.stub is not None
    link, stub = deputy.link, deputy.stub
    talk = Channel(channel.connect(link.target.address, "move", link.target.secret, timeout=30.0))
    try:
        frozen_at = time.monotonic()
        freezing.freeze_guest(deputy)
        try:
            talk.send("capture")
            context = Context.from_wire(frames.receive(talk.connection, CONTEXT_LIMIT))
            stub.relocate([(mapping.start, mapping.end) for mapping in context.maps])
            frozen = stub.stop()
            size = refill(frozen, context, talk.connection)
        except BaseException:
            stub.resume_as_stub()
            freezing.thaw(deputy)
            raise
        # The process is whole at home and the guest stands still for good: the decision is made here.
        stub.remove_resident()
        frozen.detach()
        frozen_until = time.monotonic()
        deputy.signals = None
        deputy.where = "home"
        talk.send("discard")
        link.close()
        return Report("home", (frozen_until - frozen_at) * 1e3, (time.monotonic() - begun) * 1e3, size, "refill")
    finally:
        talk.close()
