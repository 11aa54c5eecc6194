"""Any program's calls as it sees them: natively by a tracer, away by `mosrun --trace`, both in the words of remote/tracee/trace.py.

As a program, run at home: `python -m tests.referee.shown FILE -- COMMAND...` writes the lines of a native run into FILE."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterable

from ptrace.binding.func import ptrace

from kernel_helpers.process import tracing
from remote.tracee.trace import Trace
from tests.moves.cluster import Cluster
from tests.moves.outcome import PATH
from tests.moves.workloads import USER

_TRACEME = 0
_FOLLOW = 1 | 2 | 4 | 8 | 16  # PTRACE_O_TRACESYSGOOD, and births and execs
_WALL = 0x40000000
_CALL_STOP = signal.SIGTRAP | 0x80

NOT_THE_SAME = re.compile(
    r"0x[0-9a-f]{6,}"  # addresses
    r"|<\d+\.\d{6} [^>]*>"  # how long it took, and where
    r"|<takes it home from \w+>"
    r"|\b1[0-9]{9}(\.\d+)?\b"  # times of now
    r"|-?\b\d{7,}\b"  # ids of processes, which are high here
    r"|(?<=pipe2\(<)\([^)]*\)"  # what is in that memory before the call
    r"|(?<=/tmp/)(?:cc|tmp\.|tmp)\w{6,8}"  # names of temporary files
)
LEFT_OUT = re.compile(
    r"restart_syscall|.*= \? \(interrupted\)|execve.* = 0 "  # the kernel's own, and the end of what never comes back
    r"|getrandom"  # asked for until a number is in a range
    r"|rt_sigreturn"  # a child that ends before its shell waits for it, or after: SIGCHLD is handled when it comes
)


BEGIN, NOTHING = "begins-now", "nothing more"
FIRST_PID = 1_000_000
Place = tuple[int, ...]
"""The place of a process in its family: (2, 1) is the first child of the second child of the first process."""
Calls = dict[Place, list[str]]
GOES_HOME = "= ? *"
"""The end of a line of a process that goes home for a call, where it is no longer traced."""


def record(path: str, command: list[str]) -> int:
    """Runs a command natively, its calls go to a file. Returns its exit status."""
    first = os.fork()
    if first == 0:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
            signal.signal(number, signal.SIG_DFL)
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
            trace.note_stop(tid)
        if number == _CALL_STOP or event or (number == signal.SIGSTOP and tid not in known):
            number = 0
        known.add(tid)
        try:
            ptrace(tracing.PTRACE_SYSCALL, tid, 0, number)
        except Exception as error:  # it has been killed
            if ctypes.get_errno() not in (0, 3):
                raise error


class Showing:
    """Runs commands of the shell natively and away, in a fresh directory each time, and compares what their processes ask for."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.directory = cluster.home.root / "tmp" / f"shown-{os.getpid()}"
        done = cluster.home.run("sh", "-c", f"echo {FIRST_PID} > /proc/sys/kernel/ns_last_pid")
        assert done.returncode == 0, done.stderr

    def run(self, command: str, way: str) -> tuple[Calls, str]:
        """Each process's calls, and the output of all. way: native, or the node where it begins."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()
        shutil.chown(self.directory, USER, USER)
        inside = f"/tmp/{self.directory.name}"
        calls = f"{inside}/calls"
        tracer = f"mosrun -L -r {way} --trace={calls} --"
        if way == "native":
            tracer = f"/opt/farhome/.venv/bin/python -m tests.referee.shown {calls} --"
        script = f'cd /opt/farhome; {tracer} sh -c \'mkdir {inside}/work; cd {inside}/work; exec sh -c "$1" {BEGIN}\' begin "$1"; exit $?'
        try:
            done = self.cluster.home.run("env", "-i", f"PATH={PATH}", "LC_ALL=C.UTF-8", f"HOME={inside}", "sh", "-c", script, "sh", command,
                                         user=USER)  # fmt: skip
            lines = (self.directory / "calls").read_text().splitlines()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)
        assert "runs at home" not in done.stderr, done.stderr
        return processes(lines), f"{done.stdout}{done.stderr}status {done.returncode}"

    def differences(self, command: str, node: str = "n2") -> list[str]:
        """Returns the differences between native and away. Differences between two native runs are not compared."""
        (native, said), (again, _), (away, other) = (self.run(command, way) for way in ("native", "native", node))
        found = [] if said == other else [f"natively it says {said!r}\n    away {other!r}"]
        assert native, "nothing is known of the native run"
        gone: list[Place] = []
        for place in sorted({*native, *away}):
            here, there = native.get(place, []), away.get(place, [])
            if any(place[: len(one)] == one for one in gone):
                continue  # a child of a process at home
            steady, at = common(here, again.get(place, [])), common(here, there)
            one, other = (lines[at] if at < len(lines) else NOTHING for lines in (here, there))
            if other.endswith(GOES_HOME):
                gone.append(place)
            elif one != other and (at < steady or at == len(here) == len(again.get(place, []))):
                found.append(f"process {place}, call {at}:\n    natively {one}\n    away     {other}")
        return found


def common(one: list[str], other: list[str]) -> int:
    """Returns how many lines both have in common at the beginning."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def processes(lines: Iterable[str]) -> Calls:
    """The calls from the execve that BEGIN is said in on, without what is never the same."""
    found: dict[str, list[str]] = {}
    place: dict[str, Place] = {}
    births: dict[str, int] = {}
    reading_maps: set[str] = set()
    begun = False
    for line in lines:
        pid, _, text = line.partition(" ")
        if "'/proc/self/maps'" in text:
            reading_maps.add(pid)
        elif text.startswith("close("):
            reading_maps.discard(pid)
        elif pid in reading_maps and text.startswith("read("):
            continue  # as many as it has mappings
        begun = begun or (text.startswith("execve(") and f"'{BEGIN}', NULL)" in text)
        if not begun or LEFT_OUT.match(text):
            continue
        found.setdefault(pid, []).append(NOT_THE_SAME.sub("*", text).replace(" (*)", "").strip())
        birth = re.fullmatch(r"(?:clone3?|v?fork)\(.*\) = (\d+)\b.*", text)
        if birth:
            births[pid] = births.get(pid, 0) + 1
            place[birth[1]] = (*place.get(pid, ()), births[pid])
    return {place.get(pid, ()): calls for pid, calls in found.items()}


if __name__ == "__main__":
    raise SystemExit(record(sys.argv[1], sys.argv[sys.argv.index("--") + 1 :]))
