"""The commit of a move out or a hop: from then on the process is the target's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

from deputy.moves.preparation import Preparation
from engine.commit import Word
from engine.pour import postcopy
from engine.signals.pending import Pending
from kernel_helpers.link.ends.events import Part
from kernel_helpers.stream.stream import Connection
from wire import channel, steps
from wire.channel import Channel
from wire.frames import WireError


def give_pages(preparation: Preparation, patience: float) -> None:
    """Memory of the process, which stands still, is to follow it. patience: seconds that nobody may ask for it."""

    def connect() -> Connection:
        return channel.connect(preparation.target.address, "page", preparation.target.secret, timeout=postcopy.PROGRESS_TIMEOUT)

    preparation.giver = postcopy.Giver(preparation.pid, patience, connect)
    preparation.giver.start(lambda: None)


def commit(preparation: Preparation, pending: Pending, stopped: bool = False, parts: Sequence[Part] = ()) -> None:
    """From here on the process is the target's; stopped: it stands still there until it is continued; parts: of calls that are half
    done. Errors: OSError, WireError: it has not been said, and is not."""
    assert preparation.channel is not None
    try:
        if preparation.channel.has_word():
            # It has changed its mind, or gone.
            raise WireError(f"the target said {preparation.channel.next()['op']!r} where nothing was due")
        say(preparation, preparation.channel, pending, stopped, parts)
    except BaseException:
        preparation.note(Word.UNSAID)
        raise
    steps.reached("commit said")
    preparation.note(Word.COMMIT)
    preparation.waiting, preparation.stopped, preparation.parts = pending, stopped, parts


def say(preparation: Preparation, talk: Channel, pending: Pending, stopped: bool, parts: Sequence[Part]) -> None:
    """Says it by that connection. Errors: OSError, WireError."""
    talk.send(
        "commit", pending=pending, stopped=stopped, parts=[astuple(part) for part in parts], watched=preparation.watched,
        blocked=list(preparation.blocked.items()),
    )  # fmt: skip
