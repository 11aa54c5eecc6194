"""`python -m checkpoint.take`: started by mosd for one checkpoint of one process that is at home.

    the process runs            stands still                        runs on
    reasons, room beside DIR,   what the images do not say         CRIU dumps the copy; what was written into files is looked at
    files that it writes        (record.py), the copy               again; all of it goes to DIR, with the rights of its user

One line of JSON on standard output says what became of it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from checkpoint import descriptors, facts, prefix
from checkpoint.directory import NewCheckpoint
from checkpoint.errors import CheckpointRefused
from checkpoint.record import CAPABILITIES, NAME, OpenFile, Record, Region
from checkpoint.rights import User, rights_of, status, user_of
from engine.calls import rests, standstill, writing
from engine.calls.finishing import Rests
from engine.calls.restarts import shorten, timed_waits, waiting_places
from engine.context.capture import inner_tid, kernel_code, pending_signals
from engine.context.confinement import IN_IMAGES, is_confined
from engine.context.marks import not_in_images
from engine.criu import criu
from engine.criu.forkcopy import fork_copy, wiped_ranges
from engine.leaving import refusal
from engine.leaving.peculiar import by_asking
from engine.leaving.permission import Owner, may_leave
from engine.leaving.private import private_directories
from engine.mappings.address_space import read_mappings_quickly
from engine.phases import Phases
from engine.pour.vessel import kernel_pages
from kernel_helpers.common.errors import FarhomeError, MoveRefused, sentence
from kernel_helpers.process.journal import Journal
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS
from wire import logs

MOMENT = 0.05
"""Seconds between two checks whether what keeps it from being checkpointed has passed."""
PR_GET_CHILD_SUBREAPER = 37
_NAMESPACES = {"net": "network", "ipc": "IPC", "uts": "UTS"}

log = logging.getLogger("checkpoint")


def parser() -> argparse.ArgumentParser:
    """Of its command line."""
    made = argparse.ArgumentParser(prog="checkpoint.take", description="checkpoints one process")
    made.add_argument("--pid", type=int, required=True)
    made.add_argument("--asker", type=int, required=True, help="the user who asks")
    made.add_argument("--directory", type=Path, required=True, help="where the checkpoint is to be")
    made.add_argument("--images", type=Path, required=True, help="a directory of farhome's own, made and removed")
    made.add_argument("--journal", type=Path, required=True, help="where it is written what the process was, meanwhile")
    return made


def take(pid: int, asker: int, directory: Path, images: Path, journal: Path) -> dict[str, Any]:
    """Return what is said of it: frozen_ms, bytes. asker: the user who wants it; root may ask for anybody's. journal: see
    deputy/stub/mending.py.
    Errors: FarhomeError, OSError: what was in `directory` before is there still."""
    try:
        user = user_of(pid)
    except ProcessLookupError:
        raise CheckpointRefused(pid, "it has ended") from None
    except FarhomeError as error:
        raise CheckpointRefused(pid, str(error)) from None
    if asker not in (0, user.uid):
        raise CheckpointRefused(pid, "it is another user's by now")
    _refuse_secrets(pid, user)
    _await_reasons(pid)
    with _new_directory(directory, user) as new, _private(images), _prefixes(pid) as prefixes:
        record, frozen_ms = _copy_and_dump(pid, user, images, prefixes, Journal(journal))
        size = 0
        for name in sorted(os.listdir(images)):
            with open(images / name, "rb", buffering=0) as source, _writing(directory, user):
                size += new.add(name, source.fileno())
        data = record.to_json()
        with _writing(directory, user):
            new.write(NAME, data)
            new.finish()
    return {"frozen_ms": round(frozen_ms, 2), "bytes": size + len(data)}


def _refuse_secrets(pid: int, user: User) -> None:
    """The user gets to read all of its memory: so he has to be the one whose it is, and whom the kernel lets read it (PR_SET_DUMPABLE).
    Errors: CheckpointRefused."""
    reason = may_leave(pid, [Owner(user.uid, user.gid, user.groups)])
    if reason is not None:
        raise CheckpointRefused(pid, reason)
    if user_of(pid) != user:
        raise CheckpointRefused(pid, "it is another user's by now")


@contextmanager
def _writing(directory: Path, user: User) -> Iterator[None]:
    """With the rights of the user. Errors: FarhomeError."""
    try:
        with rights_of(user):
            yield
    except OSError as error:
        raise FarhomeError(f"{directory} cannot be written: {error.strerror or error}") from error


@contextmanager
def _new_directory(directory: Path, user: User) -> Iterator[NewCheckpoint]:
    with _writing(directory, user):
        new = NewCheckpoint(directory)
    try:
        yield new
    finally:
        with rights_of(user):
            new.close()


@contextmanager
def _private(images: Path) -> Iterator[None]:
    """A directory for CRIU, empty. Errors: OSError."""
    shutil.rmtree(images, ignore_errors=True)
    images.mkdir(parents=True, mode=0o700)
    try:
        yield
    finally:
        shutil.rmtree(images, ignore_errors=True)


@contextmanager
def _prefixes(pid: int) -> Iterator[dict[int, prefix.Prefix]]:
    """By inode, the files that the process can write, as far as they are known before it is stopped."""
    found: dict[int, prefix.Prefix] = {}
    try:
        for file in descriptors.read(pid):
            if file.is_written and file.file.inode not in found:
                with suppress(FileNotFoundError):  # closed meanwhile
                    found[file.file.inode] = prefix.Prefix(f"/proc/{pid}/fd/{file.numbers[0].number}")
        yield found
    finally:
        for one in found.values():
            one.close()


def _await_reasons(pid: int) -> None:
    """Errors: CheckpointRefused."""
    end = time.monotonic() + writing.PATIENCE
    while True:
        try:
            reason = why_not(pid)
            if reason is None and writing.is_under_way(pid) and time.monotonic() < end:
                time.sleep(MOMENT)
                continue
        except ProcessLookupError:
            reason = "it has ended"
        if reason is None:
            return
        if not refusal.passes(reason) or time.monotonic() > end:
            raise CheckpointRefused(pid, reason)
        time.sleep(MOMENT)


def why_not(pid: int, traced_by: int | None = None) -> str | None:
    """Return what keeps a process from being checkpointed, other than its open files; None: nothing. Errors: ProcessLookupError."""
    reason = refusal.why_not(pid, traced_by)
    if reason is not None:
        return reason
    try:
        return next(_reasons(pid), None)
    except FileNotFoundError:
        raise ProcessLookupError(f"no process {pid}") from None


def _reasons(pid: int) -> Iterator[str]:
    if private_directories(pid):
        yield refusal.PRIVATE
    for task in os.listdir(f"/proc/{pid}/task"):
        for child in Path(f"/proc/{pid}/task/{task}/children").read_text(encoding="ascii").split():
            yield f"it has a child (process {child})"
    if Path(f"/proc/{pid}/timers").read_text(encoding="utf-8"):
        yield "it has a timer (timer_create)"
    for name, kind in _NAMESPACES.items():
        if os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}"):
            yield f"it is in {'an' if kind == 'IPC' else 'a'} {kind} namespace of its own"
    if is_confined(pid):
        yield IN_IMAGES
    reported = status(pid)
    if reported["Uid"].split()[0] != "0" and any(int(reported[name], 16) for name in ("CapPrm", "CapAmb")):
        yield "it has capabilities of its own"
    if reported["State"][0] in "Tt" and reported["TracerPid"] == "0":
        yield "it is stopped"


def _waits_for_memory(pid: int) -> bool:
    """Whether pages of it are still to come, from wherever it was (engine/pour/postcopy.py): a copy would have zeros there."""
    with open(f"/proc/{pid}/smaps", "rb") as smaps:
        return any(line.startswith(b"VmFlags:") and b" um" in line for line in smaps)


def _copy_and_dump(
    pid: int, user: User, images: Path, prefixes: dict[int, prefix.Prefix], journal: Journal
) -> tuple[Record, float]:  # fmt: skip
    """What is written, and for how many milliseconds the process stood still. Errors: FarhomeError, OSError."""
    read_mappings_quickly(pid)  # what it learns of the kernel, it knows then
    wiped = wiped_ranges(pid)
    if _waits_for_memory(pid):
        raise CheckpointRefused(pid, "its memory has not all come home yet")
    places = waiting_places(pid)
    waits = timed_waits(pid, places)
    begun, phases = time.monotonic(), Phases("checkpoint")
    frozen, ends = standstill.stop(pid, places, waits)
    made, cuts = Rests(pid), dict[int, rests.Cut]()
    phases.done("seize")
    try:
        cuts = rests.find(frozen)
        frozen.keep(journal)
        reason = why_not(pid, traced_by=os.getpid()) or _why_not_frozen(frozen)
        if reason is not None:
            raise CheckpointRefused(pid, reason)
        _refuse_secrets(pid, user)
        phases.done("asked")
        frozen.park()  # should we die, it goes on as if nothing had been
        phases.done("why not")
        record = _record(frozen, prefixes)
        frozen.park()
        phases.done("record")
        copy = fork_copy(frozen, wiped, apart=True)
        phases.done("copy")
    except MoveRefused as error:
        raise CheckpointRefused(pid, error.reason) from error
    finally:
        shorten(frozen, ends)
        made.detach(frozen, cuts)
        frozen_ms = (time.monotonic() - begun) * 1e3
        phases.done("let go")
        phases.report(log)
        made.wait()
    try:
        criu.dump(copy, images)
    except MoveRefused as error:
        raise CheckpointRefused(pid, error.reason) from error
    finally:
        copy.discard()
    hashes = {inode: one.settle() for inode, one in prefixes.items()}
    files = tuple(
        OpenFile(one.kind, one.numbers, one.file, one.flags, one.offset, hashes.get(one.file.inode, "") if one.is_written else "")
        for one in record.open_files
    )
    return Record(**{**vars(record), "open_files": files}), frozen_ms


def _why_not_frozen(frozen: Frozen) -> str | None:
    """What only the process itself, standing still, can know. Errors: OSError."""
    if any(thread.group_stop for thread in frozen.threads.values()):
        return "it is stopped"
    reason = by_asking(frozen, with_timers=False) or not_in_images(frozen, read_mappings_quickly(frozen.pid))
    if reason is not None:
        return reason
    with frozen.scratch(64) as scratch:
        frozen.call(SYS.prctl, PR_GET_CHILD_SUBREAPER, scratch)
        if any(frozen.read(scratch, 4)):
            return "orphans come to it (PR_SET_CHILD_SUBREAPER)"
    return None


def _record(frozen: Frozen, prefixes: dict[int, prefix.Prefix]) -> Record:
    """Errors: CheckpointRefused, OSError."""
    pid = frozen.pid
    reported = status(pid)
    maps = read_mappings_quickly(pid)
    files = descriptors.read(pid)
    for file in files:
        if file.is_written and file.file.inode in prefixes:
            prefixes[file.file.inode].freeze(file.file.size)
    code = kernel_code(frozen, maps)
    mapped = tuple(facts.mapped(pid, maps, {file.file.inode for file in files if file.is_written}))
    inner = {tid: inner_tid(pid, tid) for tid in frozen.threads}
    pending = [(0, info.hex()) for info in pending_signals(pid, shared=True)]
    for thread in frozen.threads.values():
        pending += [(inner[thread.tid], info.hex()) for info in (*thread.in_hand, *pending_signals(thread.tid, shared=False))]
    return Record(
        pid=inner[pid],
        tids=tuple(inner.values()),
        command=facts.command(pid),
        time=int(time.time()),
        program=facts.program(pid),
        mapped=mapped,
        regions=tuple(
            Region(m.start, m.end, " ".join(sorted(m.vmflags)), m.path if m.special or m.name else "")
            for m in maps if m.vmflags or m.special or m.name
        ),
        kernel=kernel_pages(maps, code),
        kernel_code=code.hex(),
        uids=tuple(int(word) for word in reported["Uid"].split()[:3]),
        gids=tuple(int(word) for word in reported["Gid"].split()[:3]),
        groups=tuple(int(word) for word in reported.get("Groups", "").split()),
        capabilities=tuple(int(reported[name], 16) for name in CAPABILITIES),
        no_new_privileges=reported.get("NoNewPrivs") == "1",
        cwd=facts.cwd(pid),
        umask=int(reported["Umask"], 8),
        nice=os.getpriority(os.PRIO_PROCESS, pid),
        limits=facts.limits(pid),
        timers=facts.timers(frozen),
        pending=tuple(pending),
        open_files=files,
        release=os.uname().release,
    )  # fmt: skip


def main() -> int:
    """Exit 0 with the answer; 1 with what it was refused with."""
    logs.begin("checkpoint")
    options = parser().parse_args()
    os.umask(0o077)
    try:
        answer: dict[str, Any] = {"ok": True, **take(options.pid, options.asker, options.directory, options.images, options.journal)}
    except FarhomeError as error:
        answer = {"ok": False, "error": str(error), "code": error.exit_code}
    except ProcessLookupError:
        answer = {"ok": False, "error": str(CheckpointRefused(options.pid, "it has ended")), "code": CheckpointRefused.exit_code}
    except OSError as error:
        log.warning("checkpoint of %d failed", options.pid, exc_info=True)
        answer = {"ok": False, "error": f"the checkpoint of process {options.pid} failed: {sentence(error)}", "code": 1}
    print(json.dumps(answer), flush=True)
    return 0 if answer["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
