"""`python -m checkpoint.restart`: started by mosd for one process that is to go on from its checkpoint.

`mosrun --restart` waits for mosd's answer meanwhile; it becomes the process's parent.

    mosrun   -- fork, by injection, with the process id of old -->   child, stopped before its first instruction
                                                                    root only: becomes the user of the checkpoint
                                                                    executes the program; stopped at its first instruction
                                                                    working directory, umask, open files, by calls of its own
                                                                    emptied, and filled from the images (engine/pour/filling.py)
                                                                    files that have grown are cut back; it runs

Whatever is in the checkpoint may be forged: what the child opens, executes or sets it does itself, with the rights of its user.
One line of JSON on standard output says what became of it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import pwd
import signal
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from checkpoint import context as contexts
from checkpoint.directory import Opened
from checkpoint.errors import RestartRefused
from checkpoint.record import CAPABILITIES, MOST, NAME, File, Record
from checkpoint.reopen import Reopened, check_unchanged
from checkpoint.rights import User, rights_of, status, user_of
from engine.context.context import Context
from engine.criu.clone import CLONE_OF_THREAD, clone_task
from engine.criu.forkcopy import WALL
from engine.mappings.mappings import read_places
from engine.phases import Phases
from engine.pour.filling import Filling
from engine.pour.threads import set_memory_layout
from engine.pour.vessel import Vessel
from kernel_helpers.common.errors import FarhomeError, sentence
from kernel_helpers.process.injection.native import PTRACE_O_EXITKILL, PTRACE_O_TRACEEXEC, check
from kernel_helpers.process.seizing import RED_ZONE, Frozen, find_instruction, seize
from kernel_helpers.process.syscalls import SYS
from kernel_helpers.process.thread import Thread
from wire import logs

ATTEMPTS = 50
"""How often a process id is tried that others may take at the same moment."""
PAUSE = 0.02
"""Seconds."""
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
_SPACE = 16 << 10
_PR_SET_NO_NEW_PRIVS = 38
_PRIO_PROCESS = 0
_COMPARED = ("CapInh", "CapPrm", "CapEff", "CapAmb")
_END_TIMEOUT = 5.0

log = logging.getLogger("checkpoint")


def parser() -> argparse.ArgumentParser:
    """Of its command line."""
    made = argparse.ArgumentParser(prog="checkpoint.restart", description="restarts one process")
    made.add_argument("--parent", type=int, required=True, help="the process that asks, and becomes its parent")
    made.add_argument("--started", type=int, required=True, help="when it began, as /proc/PID/stat shows it")
    made.add_argument("--uid", type=int, required=True, help="its user")
    made.add_argument("--directory", type=Path, required=True, help="the checkpoint")
    return made


def restart(parent: int, started: int, uid: int, directory: Path) -> dict[str, Any]:
    """Return what is said of it: pid, command, notes. Errors: FarhomeError, OSError: nothing is left, and no file has changed."""
    caller = user_of(parent)
    if caller.uid != uid:
        raise RestartRefused("who asks is not who runs")
    user = _owner(caller, directory)
    try:
        with rights_of(user):
            opened = Opened(directory, user.uid)
    except OSError as error:
        raise RestartRefused(f"it cannot be read: {error.strerror}") from None
    try:
        record = Record.from_json(opened.read(NAME, MOST))
        user = _check_user(record, caller, user)
        context, pages = contexts.read(opened, record)
        with rights_of(user):
            for file in record.mapped:
                check_unchanged(file, _stat(file))
        _refuse_taken(sorted(record.tids, key=lambda tid: tid != record.pid))
        with seize(parent) as waiting:
            if len(waiting.threads) > 1 or _started(parent) != started or user_of(parent) != caller:
                raise RestartRefused("who asks is no mosrun that waits")
            child = _bear(waiting, record.pid)
            waiting.park()  # should we die, it goes on, and its child ends
            try:
                notes = _become(child, caller, user, record, context, pages, opened)
            except BaseException:
                _end(waiting, child)
                raise
            child.detach()
    finally:
        opened.close()
    return {"pid": record.pid, "command": record.command, "notes": notes}


def _started(pid: int) -> int:
    """Clock ticks after boot. Errors: OSError."""
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19])


def _owner(caller: User, directory: Path) -> User:
    """Whose checkpoint it is. Errors: RestartRefused."""
    try:
        with rights_of(caller):
            uid = os.stat(directory).st_uid
    except OSError as error:
        raise RestartRefused(f"it cannot be read: {error.strerror}") from None
    if uid == caller.uid:
        return caller
    if caller.uid:
        raise RestartRefused("it belongs to another user")
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise RestartRefused(f"it belongs to user {uid}, whom this node does not know") from None
    return User(uid, entry.pw_gid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)))


def _check_user(record: Record, caller: User, user: User) -> User:
    """With whose rights the process goes on. Errors: RestartRefused."""
    if set(record.uids) != {user.uid}:
        raise RestartRefused("it is a checkpoint of another user's process")
    gid = record.gids[0]
    may = {user.gid} if caller == user else {user.gid, *user.groups}
    if set(record.gids) != {gid} or gid not in may:
        raise RestartRefused(f"it ran with group {gid}, which is not the user's")
    return User(user.uid, gid, user.groups)


def _stat(file: File) -> os.stat_result:
    try:
        return os.stat(file.path, follow_symlinks=False)
    except OSError as error:
        raise RestartRefused(f"{file.path} cannot be found: {error.strerror}") from None


# -- the child ----------------------------------------------------------------------------------------------------------------


def _bear(parent: Frozen, pid: int) -> Frozen:
    """A child of the parent with that id, stopped. Errors: RestartRefused, OSError."""
    listing = f"/proc/{parent.pid}/task/{parent.pid}/children"
    for _ in range(ATTEMPTS):
        with parent.scratch(512) as scratch, _next_id(pid):
            known = {int(word) for word in Path(listing).read_text(encoding="ascii").split()}
            tid, inner = clone_task(parent.leader, parent, scratch, 0, known, listing, exit_signal=signal.SIGCHLD)
        child = Frozen(tid, {tid: Thread.adopt(tid, tid)}, parent.instruction)
        if inner == pid:
            child.leader.set_options(PTRACE_O_EXITKILL | PTRACE_O_TRACEEXEC)
            return child
        _end(parent, child)
    raise RestartRefused(f"its process id {pid} cannot be had: perhaps others are still in its session or process group")


def _refuse_taken(tids: Sequence[int]) -> None:
    """Errors: RestartRefused: another has an id of the process or of its threads."""
    for tid in tids:
        with suppress(ProcessLookupError):
            reported = status(tid)
            raise RestartRefused(f"its {'process' if tid == tids[0] else 'thread'} id {tid} is taken by {reported['Name']}")


@contextmanager
def _next_id(number: int) -> Iterator[None]:
    """The next process or thread of this node gets that id, if nobody comes in between; afterwards they go on from where they were.
    Errors: OSError."""
    for _ in range(ATTEMPTS):
        if not Path(f"/proc/{number}").exists():
            break
        time.sleep(PAUSE)  # it was free a moment ago; a process that took it in between may be short-lived
    last = LAST_PID.read_text(encoding="ascii")
    LAST_PID.write_text(str(number - 1), encoding="ascii")
    try:
        yield
    finally:
        LAST_PID.write_text(last, encoding="ascii")


def _end(parent: Frozen, child: Frozen) -> None:
    """Ends the child, of which its parent hears nothing."""
    with suppress(OSError):
        os.kill(child.pid, signal.SIGKILL)
    end = time.monotonic() + _END_TIMEOUT
    with suppress(ChildProcessError):
        while time.monotonic() < end:
            got, state = os.waitpid(child.pid, os.WNOHANG | WALL)
            if got and not os.WIFSTOPPED(state):
                break
            time.sleep(0.001)
    child.threads = {}
    parent.leader.call_timeout = _END_TIMEOUT
    with suppress(OSError):
        parent.leader.call(SYS.wait4, child.pid, 0, 0, 0)


class _Restarted(Filling):
    """Of a vessel that is its program already, and whose threads get their ids without any right to ask for them."""

    def _show_program(self, context: Context, scratch: int) -> None:
        set_memory_layout(self.frozen, context.memory, scratch)

    def _make_thread(self, wanted: int, scratch: int, listing: str) -> Thread:
        frozen = self.frozen
        for _ in range(ATTEMPTS):
            with _next_id(wanted):
                tid, inner = clone_task(frozen.leader, frozen, scratch, CLONE_OF_THREAD, set(frozen.threads), listing)
            thread = Thread.adopt(tid, frozen.pid)
            if inner == wanted:
                return thread
            thread.instruction = frozen.instruction
            with suppress(ProcessLookupError):
                thread.call(SYS.exit, 0)
        raise RestartRefused(f"its thread id {wanted} cannot be had")


def _become(child: Frozen, caller: User, user: User, record: Record, context: Context, pages: contexts.Pages, opened: Opened) -> list[str]:
    """The child is the process then, and stands still. Returns what there is to say. Errors: FarhomeError, OSError."""
    if caller.uid != user.uid:
        _change_user(child, user)
    phases = Phases("restart")
    _set_limit(child, 7, None)  # RLIMIT_NOFILE, as high as it may be, until all is open
    _execute(child, record)
    phases.done("execute")
    reopened = _settle(child, user, record)
    phases.done("open")
    vessel = Vessel.empty(child)
    if vessel.kernel_pages != record.kernel:
        raise RestartRefused(f"it was checkpointed under another kernel ({record.release})")
    _Restarted(vessel).fill(context, pages.write)
    vessel.leave()
    phases.done("fill")
    _check_mapped(child, record)
    _set_rest(child, record)
    notes = reopened.cut(opened)
    phases.done("cut")
    phases.report(log)
    return notes


def _change_user(child: Frozen, user: User) -> None:
    with child.scratch(4 * len(user.groups) + 64) as scratch:
        child.write(scratch, struct.pack(f"<{len(user.groups)}I", *user.groups))
        child.call(SYS.setgroups, len(user.groups), scratch)
        child.call(SYS.setresgid, user.gid, user.gid, user.gid)
        child.call(SYS.setresuid, user.uid, user.uid, user.uid)


def _execute(child: Frozen, record: Record) -> None:
    """The child executes the program of the checkpoint, which is of use for what the kernel then knows it by. Errors: RestartRefused."""
    before = _rights(child.pid)
    path = os.fsencode(record.program) + b"\0"
    at = (child.leader.registers.rsp - RED_ZONE - _SPACE) & ~63  # its memory is lost anyway
    child.write(at, path.ljust(4096, b"\0") + struct.pack("<QQ", at, 0))
    try:
        child.leader.execute(at, at + 4096, at + 4096 + 8)
    except ProcessLookupError:
        raise
    except OSError as error:
        raise RestartRefused(f"{record.program} cannot be executed: {os.strerror(error.errno or 0)}") from None
    child.instruction = find_instruction(child.pid)
    if _rights(child.pid) != before:
        raise RestartRefused(f"{record.program} has rights of its own")
    program = next((file for file in record.mapped if file.path == record.program), None)
    if program is None:
        raise RestartRefused("it does not name its program")
    check_unchanged(program, os.stat(f"/proc/{child.pid}/exe"))


def _rights(pid: int) -> list[str]:
    reported = status(pid)
    return [reported[name] for name in ("Uid", "Gid", *CAPABILITIES)]


def _settle(child: Frozen, user: User, record: Record) -> Reopened:
    """Working directory, umask and open files. Errors: RestartRefused, OSError."""
    reported = status(child.pid)
    if [int(reported[name], 16) for name in _COMPARED] != [record.capabilities[CAPABILITIES.index(name)] for name in _COMPARED]:
        raise RestartRefused("it had other capabilities than it would have now")
    with child.scratch(4096) as scratch:
        child.write(scratch, os.fsencode(record.cwd.path) + b"\0")
        try:
            child.call(SYS.chdir, scratch)
        except OSError as error:
            raise RestartRefused(f"its working directory {record.cwd.path} cannot be entered: {os.strerror(error.errno or 0)}") from None
    if os.stat(f"/proc/{child.pid}/cwd").st_ino != record.cwd.inode:
        raise RestartRefused(f"its working directory {record.cwd.path} is another one")
    child.call(SYS.umask, record.umask)
    reopened = Reopened(child, record.open_files, user)
    reopened.open()
    return reopened


def _check_mapped(child: Frozen, record: Record) -> None:
    """What it has mapped are the files that were compared. Errors: RestartRefused."""
    known = {file.path: file.inode for file in record.mapped}
    for m in read_places(child.pid):
        path = m.path.replace("\\012", "\n")
        if m.is_file and known.get(path) != int(m.identity.split()[1]):
            raise RestartRefused(f"{path} is another file than it was")


def _set_rest(child: Frozen, record: Record) -> None:
    """Limits, as far as they may be set; what the process does at what time; priority. Errors: OSError."""
    for number, limit in enumerate(record.limits):
        _set_limit(child, number, limit)
    with child.scratch(64) as scratch:
        for which, (every, left) in enumerate(record.timers):
            if left:
                child.write(scratch, struct.pack("<4q", *divmod(every, 1_000_000), *divmod(left, 1_000_000)))
                child.call(SYS.setitimer, which, scratch, 0)
    for thread in child.threads.values():
        thread.call(SYS.setpriority, _PRIO_PROCESS, 0, record.nice)  # a better one than its parent's takes a right: then it has that
        if record.no_new_privileges:
            check(thread.call(SYS.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def _set_limit(child: Frozen, number: int, limit: tuple[int, int] | None) -> None:
    """Never beyond what it has now; None: as far as that. Errors: OSError."""
    with child.scratch(64) as scratch:
        child.call(SYS.prlimit64, 0, number, 0, scratch)
        _, most = struct.unpack("<QQ", child.read(scratch, 16))
        soft, hard = limit if limit is not None else (most, most)
        child.write(scratch, struct.pack("<QQ", min(soft, hard, most), min(hard, most)))
        child.call(SYS.prlimit64, 0, number, scratch, 0)


def main() -> int:
    """Exit 0 with the answer; 1 with what it was refused with."""
    logs.begin("checkpoint")
    options = parser().parse_args()
    try:
        answer: dict[str, Any] = {"ok": True, **restart(options.parent, options.started, options.uid, options.directory)}
    except ProcessLookupError:
        answer = {"ok": False, "error": f"{options.directory}: it was ended while it was restarted", "code": RestartRefused.exit_code}
    except FarhomeError as error:
        answer = {"ok": False, "error": f"{options.directory}: {error}", "code": max(error.exit_code, RestartRefused.exit_code)}
    except OSError as error:
        log.warning("restart from %s failed", options.directory, exc_info=True)
        answer = {"ok": False, "error": f"{options.directory}: the restart failed: {sentence(error)}", "code": RestartRefused.exit_code}
    print(json.dumps(answer), flush=True)
    return 0 if answer["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
