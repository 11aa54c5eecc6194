"""Any program's calls as it sees them: natively by a tracer, away by `mosrun --trace`, both in the words of remote/trace.py.

As a program, run at home: `python -m tests.referee.shown FILE -- COMMAND...` writes the lines of a native run into FILE."""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import signal
import sys
from collections.abc import Iterable

from ptrace.binding.func import ptrace

from kernel_helpers import tracing
from remote.trace import Trace

_TRACEME = 0
_FOLLOW = 1 | 2 | 4 | 8 | 16        # PTRACE_O_TRACESYSGOOD, and births and execs
_WALL = 0x40000000
_CALL_STOP = signal.SIGTRAP | 0x80

NOT_THE_SAME = re.compile(
    r"0x[0-9a-f]{6,}"               # addresses
    r"|<\d+\.\d{6} [^>]*>"          # how long it took, and where
    r"|\b1[0-9]{9}(\.\d+)?\b"       # times of now
    r"|\b\d{7,}\b"                  # ids of processes, which are high here
)


def record(path: str, command: list[str]) -> int:
    """Runs a command natively, its calls go to a file. Returns its exit status."""
    first = os.fork()
    if first == 0:
        ptrace(_TRACEME, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.execvp(command[0], command)
    os.waitpid(first, 0)
    tracing.set_options(first, _FOLLOW)
    ptrace(tracing.PTRACE_SYSCALL, first, 0, 0)
    with open(path, "wb") as file:

        def write(lines: bytes, at_once: bool) -> None:
            file.write(lines)

        trace = Trace("this node", lambda tid: tid, write)
        return _follow(first, trace)


def _follow(first: int, trace: Trace) -> int:
    status, known = 0, {first}
    while True:
        try:
            tid, wait = os.waitpid(-1, _WALL)
        except ChildProcessError:
            trace.flush()
            return status
        if not os.WIFSTOPPED(wait):
            trace.forget(tid)
            status = os.waitstatus_to_exitcode(wait) if tid == first else status
            continue
        number, event = os.WSTOPSIG(wait), wait >> 16
        if number == _CALL_STOP:
            trace.look(tid)
        if number == _CALL_STOP or event or (number == signal.SIGSTOP and tid not in known):
            number = 0
        known.add(tid)
        try:
            ptrace(tracing.PTRACE_SYSCALL, tid, 0, number)
        except Exception as error:  # it has been killed
            if ctypes.get_errno() not in (0, 3):
                raise error


def processes(lines: Iterable[str], program: str) -> list[list[str]]:
    """Of each process, in the order in which they come, its calls from the execve of `program` on, without what is never the same."""
    found: dict[str, list[str]] = {}
    begun = False
    for line in lines:
        pid, _, text = line.partition(" ")
        if text.startswith("execve(") and program in text:
            found, begun = {}, True
        if not begun or "? (interrupted)" in text or text.startswith("restart_syscall"):
            continue
        found.setdefault(pid, []).append(NOT_THE_SAME.sub("*", text).strip())
    return list(found.values())


def differences(native: list[list[str]], away: list[list[str]]) -> list[str]:
    """What one has and the other has not, process by process."""
    found: list[str] = []
    for number, (here, there) in enumerate(itertools.zip_longest(native, away, fillvalue=[])):
        for at, (one, other) in enumerate(itertools.zip_longest(here, there, fillvalue="nothing more")):
            if one != other:
                found.append(f"process {number}, call {at}:\n    natively {one}\n    away     {other}")
                break
    return found


if __name__ == "__main__":
    raise SystemExit(record(sys.argv[1], sys.argv[sys.argv.index("--") + 1 :]))
