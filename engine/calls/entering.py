"""A thread that goes on at home begins the call that it was put back to before a signal comes to it that it handles.

Where it was, the move kept it from a call that it was making; nothing came to it there. At home it would have been in that call when the
signal came, and the signal would have ended it: put first, its handler would run and the call then wait for what has come already. So the
thread runs into the call with all signals blocked and gets its own mask there; what comes of it the kernel decides.
"""

from __future__ import annotations

import time
from contextlib import suppress

from kernel_helpers.inspection import tasks
from kernel_helpers.process import syscalls, tracing
from kernel_helpers.process.injection import native
from kernel_helpers.process.seizing import Frozen
from kernel_helpers.process.syscalls import U64
from kernel_helpers.process.thread import Thread
from kernel_helpers.process.tracing import Cause

PATIENCE = 60.0
"""Seconds for a thread to come to its call, as for an injected one: that long nobody may give it a processor. The process is at home by
then, and must not be given up for it."""
_SIGNALS = ["SigPnd:", "ShdPnd:", "SigCgt:"]


def begin_calls(frozen: Frozen) -> None:
    """Lets go those threads of a process, about to be let go for good, that are to take a signal in the call that they make next. Errors:
    OSError."""
    standing = [thread for thread in frozen.threads.values() if syscalls.before_call(thread.registers) is not None]
    if not standing:
        return
    reported = tasks.texts(frozen.pid, "status", _SIGNALS)
    for thread in standing:
        words = reported.get(thread.tid, b"").split()[1::2]
        own, shared, caught = (int(word, 16) for word in words) if len(words) == len(_SIGNALS) else (0, 0, 0)
        if (own | shared) & caught & ~thread.signal_mask and not thread.in_hand and not thread.group_stop and _is_at_call(thread):
            with suppress(ProcessLookupError):
                _begin_call(thread)
                del frozen.threads[thread.tid]


def _is_at_call(thread: Thread) -> bool:
    return native.read_memory(thread.pid, thread.registers.rip, len(syscalls.SYSCALL)) == syscalls.SYSCALL


def _begin_call(thread: Thread) -> None:
    tid = thread.tid
    thread.restore()
    tracing.set_options(tid, tracing.PTRACE_O_TRACESYSGOOD)
    tracing.set_signal_mask(tid, U64)
    tracing.run_to_call(tid)
    signal = _await_call(tid)
    tracing.set_signal_mask(tid, thread.signal_mask)
    native.check(native.functions().inject_detach(tid, signal), f"PTRACE_DETACH of {tid}")


def _await_call(tid: int) -> int:
    """Returns when the thread stands at the begin of its call, or in another stop that it cannot go on from (the signal of it). Errors:
    ProcessLookupError: it has ended. TimeoutError."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for stop in tracing.poll([tid]):
            if stop.cause in (Cause.EXITED, Cause.KILLED):
                raise ProcessLookupError(3, f"thread {tid} ended")
            if stop.cause is Cause.CALL:
                return 0
            if stop.cause is Cause.SIGNAL:  # SIGSTOP, which nothing blocks
                return stop.number
            tracing.run_to_call(tid)
        time.sleep(0.00005)  # no descriptor reports a ptrace stop
    raise TimeoutError(f"thread {tid} does not come to its call")
