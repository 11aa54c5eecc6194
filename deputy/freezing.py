"""Bringing a guest to a standstill between two calls, so that nothing is under way when it is captured.

    deputy                                   remote
      PAUSE ------------------------------->   takes no more calls
      <-------------------------------- PAUSED (all calls taken before are already on their way)
      every call under way in the stub is answered, or suspended; the replies are on their way
      QUIET ------------------------------->   what was suspended is put back to before the call
      <-------------------------------- FROZEN (every thread ptrace-stopped in plain user mode)

Only the deputy ever thaws a guest: while its home may already be running the process, a remote that has lost its deputy
must not.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from deputy.traced import Replaced
from engine import writing
from engine.pending import Pending
from kernel_helpers.errors import FarhomeError
from wire import steps
from wire.control import Control

if TYPE_CHECKING:
    from deputy.deputy import Deputy
    from deputy.stub import Stub
    from wire.channel import Channel

PATIENCE = 10.0
"""Seconds for each answer of the remote."""
WOKEN_PATIENCE = 0.005
"""Seconds for a thread of the stub that runs in a write, some of which has been read, to wait again or to have written all."""
MOST_LOOKS = 32
"""Threads that are looked at one by one."""
MOMENT_PATIENCE = 10.0
"""Seconds that a move waits for the moment at which the process can stand still."""


class NotNow(FarhomeError):
    """Only the moment is wrong, and our own loop has to turn for a better one to come: {reason}"""


class Writes(NotNow):
    """It is in the middle of a write."""

    def __init__(self) -> None:
        super().__init__("it is in the middle of a write")


def await_writes(deputy: Deputy, since: float, patience: float = writing.PATIENCE) -> bool:
    """Whether the process, which a move could stop `since` then (time.monotonic()), is in the middle of a write that takes longer than
    `patience` (seconds). Errors: Writes while it is, and that has not taken so long."""
    if not _is_writing(deputy):
        return False
    if time.monotonic() - since < patience:
        raise Writes
    return True


def _is_writing(deputy: Deputy) -> bool:
    """Also if a thread of the stub runs in such a call, and does not come to rest soon; of a process at home nobody knows."""
    end = time.monotonic() + WOKEN_PATIENCE
    while not writing.is_under_way(deputy.pid, None if deputy.stub is None else _at_work(deputy.stub)):
        if deputy.stub is None or not _writes_on(deputy.stub):
            return False
        if time.monotonic() > end:
            return True
    return True


def _at_work(stub: Stub) -> list[int] | None:
    """Threads of the stub that may be in a call for the guest, for the others wait in their loops; None: they are so many that all are
    looked at at once."""
    busy = stub.busy()
    return None if len(busy) > MOST_LOOKS else [host for tid in busy if (host := stub.host(tid)) is not None]


def _writes_on(stub: Stub) -> bool:
    """Whether a thread runs in a call for the guest that a stop may end in the middle."""
    for tid in stub.busy():
        standing, host = stub.link.standing(tid), stub.host(tid)
        if host is None or not standing.busy or standing.done:
            continue
        if writing.runs(stub.pid, host) and writing.can_be_cut(stub.pid, standing.number, standing.first):
            return True
    return False


def freeze_guest(deputy: Deputy, since: float) -> Pending:
    """Returns the signals that wait for the guest; those that come to the stub from here on are held by deputy.signals. since: as for
    await_writes. If more signals are to wait at home, deputy.link.blocked tells what threads block.

    Errors: NotNow, FarhomeError, TimeoutError, LinkLost; the guest has been told to run on."""
    assert deputy.link is not None and deputy.stub is not None and deputy.signals is not None
    deputy.stub.memory.settle(force=True)
    deputy.link.still = True
    try:
        deputy.link.send(Control.PAUSE)
        deputy.link.wait(Control.PAUSED, deputy, PATIENCE)
        steps.reached("guest: paused")
        await_writes(deputy, since)  # now none begins any more
        for tid in deputy.stub.busy():
            deputy.stub.cancel(tid, keeps=True)
        _await_replies(deputy)
        deputy.signals.hold()
        deputy.link.send(Control.QUIET, watch=deputy.signalfds.wanted)
        answer = deputy.link.wait(Control.FROZEN, deputy, PATIENCE)
        deputy.signals.settle_stop()
        if answer.get("again"):
            raise NotNow(str(answer["error"]))
        if answer.get("error"):
            raise FarhomeError(f"the guest could not be frozen: {answer['error']}")
        deputy.link.take_used(answer.get("used"))
        deputy.direct.take(answer)
        deputy.link.blocked = {int(tid): int(mask) for tid, mask in answer.get("blocked", [])}
        return [(int(tid), bytes(info)) for tid, info in answer["pending"]]
    except BaseException:
        thaw(deputy)
        raise


def watch_guest(deputy: Deputy, talk: Channel) -> float:
    """Stops the guest for a moment, from when on its memory may go ahead of it (talk: to its remote). Returns for how many seconds.
    Errors: as freeze_guest, WireError, OSError; the guest runs on."""
    begun = time.monotonic()
    await_writes(deputy, begun)
    freeze_guest(deputy, begun)
    try:
        talk.send("watch")
        talk.expect("ready", timeout=PATIENCE)
    finally:
        thaw(deputy)
    return time.monotonic() - begun


def _await_replies(deputy: Deputy) -> None:
    """Until QUIET comes after every reply: the remote would have a call that it still waits for made again, and home has made it.

    Errors: FarhomeError when the process ends meanwhile: exit_group(2) can neither be taken back nor has an end. TimeoutError."""
    assert deputy.stub is not None and deputy.signals is not None
    end = time.monotonic() + PATIENCE
    while waiting := deputy.stub.busy():
        deputy.signals.poll()
        if deputy.finished:
            raise FarhomeError("the process ended")
        if deputy.stub.executed is not None:
            raise Replaced
        if time.monotonic() > end:
            raise TimeoutError(f"the call of thread {waiting[0]} was not answered within {PATIENCE:.0f} s")
        time.sleep(0.0001)  # microseconds as a rule: no descriptor tells of it


def thaw(deputy: Deputy) -> None:
    """The move is off: the guest runs on where it is, but if it has come to its end. Goes over the link, which delivers it even across a
    break."""
    assert deputy.link is not None and deputy.signals is not None
    watched, deputy.link.watched = deputy.link.watched, 0
    deputy.link.still = False
    if deputy.death is None:
        deputy.link.send(Control.THAW, watched=watched)
    deputy.signals.let_go()
