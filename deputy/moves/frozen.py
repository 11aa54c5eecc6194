"""A process that stands still: whether it may leave, what it is if it is at the first instruction of its program, and what the target
learns of it now: files that it has mapped meanwhile, signals that wait at home."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deputy.moves.preparation import Preparation
from deputy.requests.freezing import NotNow
from engine.context.capture import capture
from engine.context.context import Context
from engine.files import files
from engine.leaving.peculiar import by_asking
from engine.leaving.permission import Owner, may_leave
from engine.leaving.refusal import Standing, passes, why_not
from kernel_helpers.common.errors import MoveRefused
from kernel_helpers.process.injection.beside import beside
from kernel_helpers.process.journal import Journal
from kernel_helpers.process.seizing import Frozen

if TYPE_CHECKING:
    from deputy.process import Process


@dataclass(frozen=True)
class Held:
    """A process that stands still at the first instruction of its program, and all that is to be known of it before it leaves. used: what
    it has used away before; standing, by_descriptor: see check_it_may_leave()."""

    frozen: Frozen
    used: list[list[int]]
    standing: Standing
    by_descriptor: list[str]
    context: Context

    @classmethod
    def examine(cls, process: Process, frozen: Frozen, owners: Sequence[Owner], used: list[list[int]]) -> Held:
        """As soon as it is held, while the target prepares. Errors: NotNow, MoveRefused, OSError."""
        frozen.keep(Journal(process.options.journal))
        with beside(process.pid):
            standing, by_descriptor = check_it_may_leave(process, owners, frozen)
            context = capture(frozen, has_run=False, known=standing.maps)
            frozen.park()  # should we die before it leaves, it goes on as if nothing had been
        return cls(frozen, used, standing, by_descriptor, context)


def check_it_may_leave(process: Process, owners: Sequence[Owner], frozen: Frozen) -> tuple[Standing, list[str]]:
    """Return what has been read of it, and the descriptors by which it reads signals. Errors: NotNow, MoveRefused: it cannot leave."""
    standing = Standing.of(process.pid)
    by_descriptor: list[str] = []
    reason = may_leave(process.pid, owners, standing.statuses)
    reason = reason or why_not(process.pid, traced_by=process.loop.tracer, standing=standing, signalfds=by_descriptor)
    if reason is not None and passes(reason):
        raise NotNow(reason)
    reason = reason or by_asking(frozen)
    if reason is not None:
        raise MoveRefused(process.pid, reason)
    return standing, by_descriptor


def send_late_files(preparation: Preparation, now: list[files.MappedFile]) -> None:
    """Those of the files that the process has mapped now, being frozen, that it mapped after `prepare`."""
    assert preparation.channel is not None
    known = {(file.path, file.sha256) for file in preparation.files}
    late = [file for file in now if (file.path, file.sha256) not in known]
    if late:
        preparation.channel.send("files", files=[file.to_wire() for file in late])
        preparation.send_wanted(late)
        preparation.channel.expect("ready", timeout=30.0)
        preparation.files += late
    for file in now:
        file.let_go()


def watch_signals(preparation: Preparation, watched: int, blocked: Mapping[int, int]) -> None:
    """These signals wait at home where threads (the program's ids), which stand still, block them. Errors: WireError, OSError."""
    assert preparation.channel is not None
    if watched:
        preparation.channel.send("signals")
        preparation.channel.expect("ready", timeout=30.0)
        preparation.watched, preparation.blocked = watched, {tid: mask & watched for tid, mask in blocked.items()}
