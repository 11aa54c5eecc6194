"""What a guest that has arrived goes through before its first instruction: leaving CRIU's stop, seccomp filter, its user, no capability."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from engine.context.capture import inner_tids, scratch_page
from engine.context.checked import BadContext
from engine.context.confinement import INSTRUCTION, TOO_LONG, Chain
from engine.context.context import Identity
from engine.context.crowd import have_called
from engine.files.handover import take_descriptor
from engine.mappings.mappings import PAGE
from kernel_helpers.calls import filter as call_filter
from kernel_helpers.common.errors import FarhomeError
from kernel_helpers.process import many
from kernel_helpers.process.injection.native import PTRACE_O_SUSPEND_SECCOMP, check
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import SYS

PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
PR_SET_DUMPABLE = 4
SECCOMP_SET_MODE_FILTER = 1
FILTER_TSYNC = 1
FILTER_NEW_LISTENER = 8
FILTER_TSYNC_ESRCH = 16
FILTER_WAIT_KILLABLE_RECV = 32
NOTIFY_SET_FLAGS = 0x40082104  # SECCOMP_IOCTL_NOTIF_SET_FLAGS
NOTIFY_SYNC_WAKE_UP = 1
CAPABILITY_VERSION_3 = 0x20080522
CAP_SYS_ADMIN = 21
_GROUPS_ROOM = 4 * PAGE
"""Bytes for ids of groups: all but those beyond 4096."""

_libc = ctypes.CDLL(None, use_errno=True)


def wake(frozen: Frozen) -> None:
    """Ends the group stop that CRIU left a process in, without running an instruction of it and without its seeing the
    SIGCONT that this takes. It stays ptrace-stopped. Errors: OSError."""
    for thread in frozen.threads.values():
        thread.block_signals()
    os.kill(frozen.pid, signal.SIGCONT)  # ends the stop, and waits
    with frozen.scratch(64) as address:
        frozen.write(address, struct.pack("<QQQ", 1 << (signal.SIGCONT - 1), 0, 0))
        taken = frozen.call(SYS.rt_sigtimedwait, address, 0, address + 8, 8)
    if taken != signal.SIGCONT:
        raise OSError(f"signal {taken} was taken from {frozen.pid} instead of SIGCONT")
    for thread in frozen.threads.values():
        # The end of the stop left each of them a trap that would show up at its next stop.
        check(thread.call(SYS.gettid), f"gettid in {thread.tid}")
        thread.group_stop = 0


def suspend_seccomp(frozen: Frozen) -> None:
    """Injected calls bypass the process's filter from now on, until it has other options. Needs CAP_SYS_ADMIN. Errors: OSError."""
    for error in many.set_options(list(frozen.threads.values()), lambda thread: thread.options | PTRACE_O_SUSPEND_SECCOMP).values():
        raise error


@contextmanager
def seccomp_suspended(frozen: Frozen) -> Iterator[None]:
    """Injected calls bypass the process's filter inside; afterwards the options are as they were. Needs CAP_SYS_ADMIN."""
    if all(thread.options & PTRACE_O_SUSPEND_SECCOMP for thread in frozen.threads.values()):
        yield
        return
    before = {tid: thread.options for tid, thread in frozen.threads.items()}
    for error in many.set_options(list(frozen.threads.values()), lambda thread: thread.options | PTRACE_O_SUSPEND_SECCOMP).values():
        raise error
    try:
        yield
    finally:
        for error in many.set_options(list(frozen.threads.values()), lambda thread: before[thread.tid]).values():
            if not isinstance(error, ProcessLookupError):
                raise error


def install_filter(frozen: Frozen, program: bytes) -> int:
    """Puts all threads under a seccomp filter (struct sock_filter[]); returns its listener, a descriptor of ours,
    close-on-exec, with synchronous wake-ups. no_new_privs is set only if the process lacks CAP_SYS_ADMIN (the images of
    an arrival give it that one, see engine.criu.images.strip). Errors: OSError."""
    flags = FILTER_NEW_LISTENER | FILTER_WAIT_KILLABLE_RECV
    if len(frozen.threads) > 1:
        flags |= FILTER_TSYNC | FILTER_TSYNC_ESRCH
    with seccomp_suspended(frozen):
        if not _has_capability(frozen.pid, CAP_SYS_ADMIN):
            frozen.call(SYS.prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        with frozen.scratch(16 + len(program)) as address:
            frozen.write(address, struct.pack("<HxxxxxxQ", len(program) // 8, address + 16) + program)
            theirs = frozen.call(SYS.seccomp, SECCOMP_SET_MODE_FILTER, flags, address)
        try:
            listener = take_descriptor(frozen.pid, theirs)
        finally:
            frozen.call(SYS.close, theirs)
    try:
        fcntl.ioctl(listener, NOTIFY_SET_FLAGS, NOTIFY_SYNC_WAKE_UP)
    except OSError:
        pass  # before Linux 6.6: slower, otherwise the same
    return listener


def install_own(frozen: Frozen, wanted: Mapping[int, Chain]) -> None:
    """Puts the program's own filters (tid as it sees it -> the oldest first) over ours: they judge first, and count before it where both
    answer. The process has CAP_SYS_ADMIN in its sandbox, or no_new_privs. Errors: FarhomeError, OSError."""
    if not any(wanted.values()):
        return
    tids = inner_tids(frozen.pid, list(frozen.threads))
    chains = {thread: wanted.get(tids[tid], ()) for tid, thread in frozen.threads.items()}
    for thread in chains:
        thread.set_options(thread.options | PTRACE_O_SUSPEND_SECCOMP)  # until it runs
    flags = FILTER_TSYNC | FILTER_TSYNC_ESRCH if len(chains) > 1 and len(set(chains.values())) == 1 else 0
    longest = max(len(program) for chain in chains.values() for program in chain)
    with scratch_page(frozen, size=-(-(16 + longest) // PAGE) * PAGE) as address:
        for thread in [frozen.leader] if flags else chains:
            for program in chains[thread]:
                frozen.write(address, struct.pack("<HxxxxxxQ", len(program) // INSTRUCTION, address + 16) + program)
                result = thread.call(SYS.seccomp, SECCOMP_SET_MODE_FILTER, flags, address)
                if result == -errno.ENOMEM:
                    raise FarhomeError(TOO_LONG)
                check(result, f"a seccomp filter for {thread.tid}")


def install_watch(frozen: Frozen) -> None:
    """Puts all threads under the filter that stops what changes masks of signals, over all others. Needs no_new_privs, which counts for
    nothing here. Errors: FarhomeError, OSError."""
    program, threads = call_filter.watching(), list(frozen.threads.values())

    def calls(_: int, address: int) -> list[tuple[int, ...]]:
        return [(SYS.prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (SYS.seccomp, SECCOMP_SET_MODE_FILTER, 0, at)]

    with seccomp_suspended(frozen), scratch_page(frozen) as at:
        frozen.write(at, struct.pack("<HxxxxxxQ", len(program) // INSTRUCTION, at + 16) + program)
        have_called(frozen, threads, calls, 2, alike=True)


def notifications_work() -> bool:
    """Return whether this kernel has seccomp notifications that only a fatal signal withdraws (Linux 5.19): flags that it knows make it
    look for the program (EFAULT), one that it does not know is refused first (EINVAL)."""
    flags = FILTER_NEW_LISTENER | FILTER_WAIT_KILLABLE_RECV
    return bool(_libc.syscall(SYS.seccomp, SECCOMP_SET_MODE_FILTER, flags, None) < 0 and ctypes.get_errno() == errno.EFAULT)


def _has_capability(pid: int, number: int) -> bool:
    with Path(f"/proc/{pid}/status").open(encoding="utf-8", errors="replace") as status:
        for line in status:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> number & 1)
    return False


NO_CAPABILITIES = struct.pack("<Ii", CAPABILITY_VERSION_3, 0) + bytes(24)
"""What no_capabilities() wants to find."""


def no_capabilities(address: int) -> list[tuple[int, ...]]:
    """Return the calls by which a thread loses all capabilities. address: of NO_CAPABILITIES."""
    return [(SYS.prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), (SYS.capset, address, address + 8)]


def drop_capabilities(frozen: Frozen) -> None:
    """Every thread loses all capabilities that it has on this node. Errors: OSError."""
    threads = list(frozen.threads.values())
    with seccomp_suspended(frozen):
        have_called(frozen, threads, lambda _, address: no_capabilities(address), 2, [NO_CAPABILITIES] * len(threads), alike=True)


def become(frozen: Frozen, identity: Identity) -> None:
    """Every thread of a filled vessel gets the user and groups of the process, and loses all capabilities that it has on this node.
    Errors: OSError."""
    with seccomp_suspended(frozen), frozen.scratch(_GROUPS_ROOM) as scratch:
        if 4 * len(identity.groups) > _GROUPS_ROOM:
            raise BadContext(f"{len(identity.groups)} groups are too many")
        frozen.write(scratch, struct.pack(f"<{len(identity.groups)}I", *identity.groups))
        calls = [(SYS.setgroups, len(identity.groups), scratch), (SYS.setresgid, *identity.gids), (SYS.setresuid, *identity.uids)]
        threads = list(frozen.threads.values())
        given = [NO_CAPABILITIES] * len(threads)
        have_called(frozen, threads, lambda _, address: [*calls, *no_capabilities(address)], 5, given, alike=True)
        frozen.call(SYS.prctl, PR_SET_DUMPABLE, 1, 0, 0, 0)
