"""Bringing a guest to a standstill between two calls, so that nothing is under way when it is captured.

    deputy                                   remote
      PAUSE ------------------------------->   takes no more calls
      <-------------------------------- PAUSED (all calls taken before are already on their way)
      every call under way in the stub is answered, or suspended; the replies are on their way
      QUIET ------------------------------->   what was suspended is put back to before the call
      <-------------------------------- FROZEN (every thread ptrace-stopped in plain user mode)

What ran ahead comes before PAUSED, and the stub makes it before PAUSED is read: signals that stop its threads in the midst of that are
handled.

Only the deputy ever thaws a guest: while its home may already be running the process, a remote that has lost its deputy
must not.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from deputy.requests import direct_files
from deputy.stub.traced import Replaced
from engine.calls import standstill, writing
from engine.calls.restarts import TimedWait
from engine.signals.pending import Pending
from kernel_helpers.common.errors import FarhomeError, MoveRefused, sentence
from kernel_helpers.process.seizing import Frozen
from wire import steps
from wire.control import Control

if TYPE_CHECKING:
    from deputy.away import Away
    from deputy.stub.stub import Stub
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


def await_writes(pid: int, stub: Stub | None, since: float, patience: float = writing.PATIENCE) -> bool:
    """Return whether the process, which a move could stop `since` then (time.monotonic()), is in the middle of a write that takes longer
    than `patience` (seconds). stub: if it is away. Errors: Writes while it is, and that has not taken so long."""
    if not _is_writing(pid, stub):
        return False
    if time.monotonic() - since < patience:
        raise Writes
    return True


def _is_writing(pid: int, stub: Stub | None) -> bool:
    """Also if a thread of the stub runs in such a call, and does not come to rest soon; of a process at home nobody knows."""
    end = time.monotonic() + WOKEN_PATIENCE
    while not writing.is_under_way(pid, None if stub is None else _at_work(stub)):
        if stub is None or not _writes_on(stub):
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


def seize(pid: int, places: dict[int, str], waits: dict[int, TimedWait]) -> tuple[Frozen, dict[int, int]]:
    """As standstill.stop(). Errors: MoveRefused."""
    try:
        return standstill.stop(pid, places, waits)
    except TimeoutError as error:
        raise MoveRefused(pid, f"it cannot be stopped: {sentence(error)}") from error


def freeze_guest(away: Away, since: float) -> Pending:
    """Returns the signals that wait for the guest; those that come to the stub from here on are held by away.signals. since: as for
    await_writes. If more signals are to wait at home, away.link.blocked has what threads block.

    Errors: NotNow, FarhomeError, TimeoutError, LinkLost; the guest runs on."""
    away.stub.memory.settle(force=True)
    away.link.still = True
    try:
        away.link.send(Control.PAUSE)
        away.link.wait(Control.PAUSED, away.answering.handle, PATIENCE, lambda: _let_writers_go(away))
        steps.reached("guest: paused")
        await_writes(away.pid, away.stub, since)  # now none begins any more
        for tid in away.stub.busy():
            away.stub.cancel(tid, keeps=True)
        _await_replies(away)
        away.signals.hold()
        away.link.send(Control.QUIET, watch=away.watch_next)
        answer = away.link.wait(Control.FROZEN, away.answering.handle, PATIENCE, lambda: _let_writers_go(away))
        away.signals.settle_stop()
        if answer.get("again"):
            raise NotNow(str(answer["error"]))
        if answer.get("error"):
            raise FarhomeError(f"the guest could not be frozen: {answer['error']}")
        away.link.take_used(answer.get("used"))
        direct_files.take(away, answer)
        away.link.blocked = {int(tid): int(mask) for tid, mask in answer.get("blocked", [])}
        return [(int(tid), bytes(info)) for tid, info in answer["pending"]]
    except BaseException:
        thaw(away)
        raise


def watch_guest(away: Away, talk: Channel) -> float:
    """Stops the guest for a moment, from when on its memory may go ahead of it (talk: to its remote). Returns for how many seconds.
    Errors: as freeze_guest, WireError, OSError; the guest runs on."""
    begun = time.monotonic()
    await_writes(away.pid, away.stub, begun)
    freeze_guest(away, begun)
    try:
        talk.send("watch")
        talk.expect("ready", timeout=PATIENCE)
    finally:
        thaw(away)
    return time.monotonic() - begun


def _let_writers_go(away: Away) -> None:
    """A signal that stops a thread of the stub in the midst of writes that ran ahead holds up all that comes behind these."""
    if not away.stub.link.has_written:
        away.stub.meet_signals()


def _await_replies(away: Away) -> None:
    """Until QUIET comes after every reply: the remote would have a call that it still waits for made again, and home has made it.

    Errors: FarhomeError when the process ends meanwhile: exit_group(2) can neither be taken back nor has an end. TimeoutError."""
    end = time.monotonic() + PATIENCE
    while waiting := away.stub.busy():
        away.signals.poll()
        if away.has_ended:
            raise FarhomeError("the process ended")
        if away.stub.executed is not None:
            raise Replaced
        if time.monotonic() > end:
            raise TimeoutError(f"the call of thread {waiting[0]} was not answered within {PATIENCE:.0f} s")
        time.sleep(0.0001)  # microseconds as a rule: no descriptor reports it


def thaw(away: Away) -> None:
    """The move is off: the guest runs on where it is, but if it has come to its end. Goes over the link, which delivers it even across a
    break."""
    watched, away.link.watched = away.link.watched, 0
    away.link.still = False
    if away.death is None:
        away.link.send(Control.THAW, watched=watched)
    away.signals.let_go()
