"""What follows a commit: the target says that the process runs, or hears again that it is committed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from deputy.moves.commit import say
from deputy.moves.preparation import Preparation
from engine.commit import Do, Word
from wire import channel
from wire.channel import Channel
from wire.frames import WireError
from wire.logs import start_thread

log = logging.getLogger("deputy")

RUNNING_TIMEOUT = 10.0
"""Seconds from a commit that is said again to the word that the process runs."""
LOOP_TIMEOUT = 5.0
"""Seconds after the first one in which the loop does nothing but wait for that word."""
RETRY = 0.25
"""Seconds between two commits."""


def await_running(preparation: Preparation, patience: float, goes_on: Callable[[], bool] = lambda: True) -> float:
    """Return when the target said that the process runs (time.monotonic()), or was last waited for. If it does not say so soon, commit
    is said again, for `patience` seconds and as long as it goes on: by a thread, for the loop has others to see to. What becomes of the
    process the link reports."""
    assert preparation.channel is not None
    begun = time.monotonic()
    try:
        preparation.channel.expect("running", timeout=min(LOOP_TIMEOUT, patience))
        preparation.note(Word.RUNNING)
    except (WireError, OSError) as error:
        log.warning("no word after the commit: %s", error)
        if preparation.note(Word.BROKEN) is Do.AGAIN:
            talk, preparation.channel = preparation.channel, None  # it is the thread's now
            start_thread("commit", _say_again, preparation, talk, begun + patience, goes_on)
    return time.monotonic()


def _say_again(preparation: Preparation, talk: Channel, end: float, goes_on: Callable[[], bool]) -> None:
    """The body of that thread. It decides nothing: it says what was decided, to the same target."""
    try:
        while True:
            try:
                talk.expect("running", timeout=RUNNING_TIMEOUT)
                return
            except (WireError, OSError) as error:
                log.debug("still no word after the commit: %s", error)
            time.sleep(RETRY)
            if time.monotonic() > end or not goes_on():
                return
            with suppress(OSError, WireError):
                again = Channel(channel.connect(preparation.target.address, "move", preparation.target.secret, timeout=2.0))
                talk.close()
                talk = again
                if goes_on():
                    say(preparation, talk, preparation.waiting, preparation.stopped, preparation.parts)
    finally:
        talk.close()
