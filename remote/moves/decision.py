"""A process that is ready here: whether it is to run is for its home to say (engine/commit.py)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from engine.commit import Candidate, Do, Word, follow
from engine.signals.pending import Pending
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.link.ends.events import Part
from kernel_helpers.process import many
from kernel_helpers.stream.stream import Connection
from remote.moves.receiving import Receiving
from wire.channel import Channel
from wire.frames import Message, WireError

log = logging.getLogger("remote")
CALL_TIMEOUT = 30.0
"""Seconds from `prepared` to `commit`."""
LINK_PATIENCE = 0.25
"""Seconds that a link may come after the commit and still be there when the guest begins to run."""
WORD_TIMEOUT = 5.0
"""Seconds that a message may take which has begun."""


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


def await_decision(remote: Receiving, talk: Channel, poll: Callable[[], None] = lambda: None, link: Connection | None = None) -> Decision:
    """The process is ready here and stands still: nobody but its home knows whether it is to run (engine/commit.py). A conversation that
    breaks says nothing about that; home may come back by another. poll: see Receiving.next_caller(). link: is connected already. Errors:
    WireError, TimeoutError: it is not, or home is silent."""
    state, talks = Candidate.READY, [talk]
    end = time.monotonic() + CALL_TIMEOUT
    try:
        while True:
            caller = remote.next_caller(max(0.0, end - time.monotonic()), talks, poll)
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


def must_live(tids: Sequence[int]) -> None:
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
