"""Moves a program that uses one kernel object at each of its system calls. The program must find everything as it would have at home, and
so must an observer of the process.

The programs are tests/programs/objects_*.c; objects.h describes what they do between their system calls.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from engine.leaving.processor import own_processor
from tests.moves.cluster import HOME, Cluster
from tests.moves.outcome import PATH, first_difference, kill_session
from tests.moves.storm import BUNDLES
from tests.moves.workloads import USER
from tests.programs.build import BUILD, program
from tests.programs.build import HERE as PROGRAMS

SOURCES = sorted(path.stem for path in PROGRAMS.glob("objects_*.c"))
SCENARIOS: dict[str, str] = {
    name: source
    for source in SOURCES
    for name in re.findall(r"^(?:SCENARIO|REGISTERS)\((\w+)", (PROGRAMS / f"{source}.c").read_text(), re.MULTILINE)
}
REFUSALS = {
    "file_mapped_to_write": "mapped shared and writable",
    "limit_of_descriptors": "at a limit of its own",
    "memory_shared_with_a_child": "shares anonymous memory",
}
"""Scenarios that may be kept where they are, and the reason."""
REFUSALS_WITH_PRIVATE = {"files_of_one_name": "private directories"}
"""Scenarios that may also be kept there in private directories: only CRIU could move them, and it does not carry those along."""

NEEDED = {"protection_keys": "ospke", "avx_registers": "avx", "avx512_registers": "avx512f", "mask_registers": "avx512bw"}
"""Scenarios that do nothing on a processor without this flag of /proc/cpuinfo."""

OF_A_KIND = {
    "broken_pipe", "full_pipe", "fifo", "select", "poll", "epoll_edge", "epoll_nested_once",  # descriptors
    "signalfd", "eventfd", "duplicates",
    "sendfile", "copy_file_range", "append", "readv_writev", "pread_pwrite", "ofd_lock", "flock", "nameless_file", "directory",  # files
    "extended_attributes", "size_and_holes", "times_and_owner", "limit_of_file_size",
    "sequenced_packets", "socketpair", "many_datagrams", "unix_listener", "tcp_connects_later", "credentials",  # sockets
    "system_v_messages",
    "file_mapped_as_programs_are", "file_mapped_in_pieces", "file_mapped_beyond_its_end", "file_mapped_to_read",  # memory
    "data_segment", "mappings_that_fail", "no_huge_pages", "locked_memory", "guards_and_names",
    "child_that_stops", "child_that_steps", "children_nobody_waits_for", "exec", "time_used", "suspended",  # processes
    "signal_mask", "pending_signal", "queued_signals", "no_alternate_stack", "moved_in_a_handler", "interrupted_sleep", "interval_timer",
    "general_registers", "floating_point_state", "sse_registers", "signals_of_a_thread", "thread", "processor",  # and threads
}  # fmt: skip
"""Scenarios about an object, or a way to use it, of a kind that another one has as well: the pipe, the level-triggered epoll, the timer as
a descriptor, splice, offsets, the POSIX lock and the lease, names of an open file, the working directory, limits; datagrams, TCP, passed
descriptors, message queues; private mappings, anonymous memory, advice; children, the alternate stack, the POSIX timer, the futex, AVX
registers. Or that has a file of tests: test_signalfds.py, test_marks.py, test_exec.py, test_cpu_time.py, test_directed.py, test_signals.py,
test_masks.py, test_stopped.py, test_threads.py, test_processors.py."""

ROUTE = ("n2", "n3", "home")
PATIENCE = 40.0
"""Seconds that a program may take from one step to the next."""
Plan = Mapping[int, Sequence[str]]
State = dict[str, object]


class Steps:
    """The other ends of the fifos of a program (see objects.h)."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        for name in ("ask", "go"):
            os.mkfifo(directory / name)
            (directory / name).chmod(0o666)
        self._ask = os.open(directory / "ask", os.O_RDONLY | os.O_NONBLOCK)
        self._go = os.open(directory / "go", os.O_RDWR)

    def next(self, process: subprocess.Popen[bytes]) -> int | None:
        """Returns the pid of the process that stands at a step, or None when the program has ended. Errors: TimeoutError."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            ended = process.poll() is not None
            readable, _, _ = select.select([self._ask], [], [], 0 if ended else 0.05)
            number = os.read(self._ask, 64) if readable else b""
            if number:
                return int(number)
            if ended:
                return None
            if readable:
                time.sleep(0.002)  # no process has it open for writing: the program ends or executes another
        raise TimeoutError(f"no step within {PATIENCE} s")

    def go(self) -> None:
        os.write(self._go, b"\n")

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._ask)
        os.close(self._go)


def seen(process: Path) -> State:
    """Returns what /proc shows of a process and must be the same wherever it is. Where no tracer is attached (at home), also what can
    differ under a tracer: signals, threads and memory. Pids, addresses and inode numbers are left out."""
    status = fields(process / "status")
    stat = (process / "stat").read_text().rpartition(")")[2].split()
    found: State = {name: status[name] for name in ("Name", "Umask", "Uid", "Gid", "Groups", "CapEff", "CapPrm", "NoNewPrivs", "Threads")}
    found["priority, nice"] = (stat[15], stat[16])
    found["policy"] = stat[38]
    found["in a group, a session of its own"] = (stat[2] == process.name, stat[3] == process.name)
    found["directory"] = os.readlink(process / "cwd")
    for name in ("limits", "comm", "timerslack_ns", "oom_score_adj", "personality", "coredump_filter"):
        found[name] = (process / name).read_text()
    found["cmdline"], found["environ"] = (process / "cmdline").read_bytes(), sorted((process / "environ").read_bytes().split(b"\0"))
    found["timers"] = re.sub(r"/(pid|tid)\.\d+|/[0-9a-f]{8,}", "", (process / "timers").read_text())
    found |= {f"descriptor {number.name}": descriptor(process, number.name) for number in (process / "fd").iterdir()}
    if status["TracerPid"] == "0":
        found |= {f"at home: {name}": status[name] for name in ("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt", "VmLck", "Seccomp")}
        for number, task in enumerate(sorted((process / "task").iterdir(), key=lambda path: int(path.name))):
            one = fields(task / "status")
            found[f"at home: thread {number}"] = [one[name] for name in ("Name", "SigPnd", "SigBlk")]
        found |= {f"at home: mapped {kind}": size for kind, size in mappings(process).items()}
    return found


def fields(path: Path) -> dict[str, str]:
    return {name: value.strip() for name, _, value in (line.partition(":") for line in path.read_text().splitlines())}


def descriptor(process: Path, number: str) -> str:
    """Describes a descriptor: its file, position, flags and locks."""
    link = re.sub(rf"\[\d+\]|(?<=/dev/pts/)\d+|(?<=/#)\d+|\b{process.name}\b", "", os.readlink(process / "fd" / number))
    kept = []
    for line in (process / "fdinfo" / number).read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("pos", "flags", "eventfd-count", "clockid", "ticks", "sigmask", "eventfd-semaphore"):
            kept.append(f"{name} {value.strip()}")
        elif name == "lock":
            words = value.split()
            kept.append(" ".join(["lock", *words[1:4], *words[-2:]]))
        elif name.startswith(("tfd", "inotify")):
            kept.append(re.sub(r" (ino|sdev|pos|f_handle|fhandle-bytes|fhandle-type):\s*\S+", "", line))
    return "; ".join([link, *kept])


def mappings(process: Path) -> dict[str, int]:
    """Returns how many bytes are mapped of each kind: protection, flags, file and offset. Where they lie is the kernel's choice, also how
    deep the stack is."""
    found: dict[str, int] = {}
    for line in (process / "smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) (\S+) \S+ \d+ *(.*)", line):
            low, high, protection, offset, name = match.groups()
        elif line.startswith("VmFlags:") and name != "[stack]":
            flags = " ".join(flag for flag in line.split()[1:] if flag != "sd")  # soft-dirty: written since the last reset
            kind = " ".join([protection, *([name, offset] if name.startswith("/") else [name]), flags])
            found[kind] = found.get(kind, 0) + int(high, 16) - int(low, 16)
    return found


@dataclass(frozen=True)
class Move:
    """A request for a move at a step, and its answer."""

    step: int
    target: str
    moved: bool
    said: str = ""


@dataclass
class Run:
    """Results of a run of a scenario: how it ended, what it printed, and its observed state at each step."""

    scenario: str
    status: int = -1
    said: bytes = b""
    states: list[State] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def migrate(cluster: Cluster, step: int, pid: int, target: str) -> Move:
    answer = cluster.lab.node(HOME).ask_mosd("migrate", timeout=90, pid=pid, target=target, **{"async": False})
    if answer.get("moved"):
        return Move(step, target, True)
    return Move(step, target, False, str(answer.get("error") or answer.get("reason") or "it is there already"))


def run(cluster: Cluster, scenario: str, user: str, plan: Plan | None = None, native: Run | None = None, private: bool = False) -> Run:
    """Runs the scenario on the home node: natively without a plan, else under mosrun, moved at the steps (counted from 0) that
    the plan names, and compared with the native run. private: its directory is one of its own (mosrun -X)."""
    source = SCENARIOS[scenario]
    directory = cluster.home.root / "tmp" / f"objects-{os.getpid()}"
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "here").mkdir(parents=True)
    (directory / "here").chmod(0o1777)
    shutil.copyfile(built(source), directory / source)
    (directory / source).chmod(0o755)
    inside = f"/tmp/{directory.name}"
    variables = [f"PATH={PATH}", f"OBJECTS_CONTROL={inside}/control", f"PWD={inside}/here"]
    mosrun = ["-X", f"{inside}/here"] if private else []
    argv = ["env", "-i", *variables, *([] if plan is None else ["mosrun", "-L", *mosrun, "--"]), f"{inside}/{source}", scenario]
    result = Run(scenario)
    try:
        with Steps(directory / "control") as steps, open(directory / "said", "wb") as said:
            process = cluster.home.popen(argv, user, cwd=f"{inside}/here", stdin=subprocess.DEVNULL, stdout=said, stderr=said)
            try:
                follow(cluster, steps, process, result, plan or {}, native, refusals(scenario, private))
                result.status = process.wait(PATIENCE)
            finally:
                kill_session(process.pid)
                process.wait(10)
        result.said = (directory / "said").read_bytes()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if native is not None:
        compare(native, result)
    return result


def built(source: str) -> Path:
    target = BUILD / source
    if target.exists() and target.stat().st_mtime < (PROGRAMS / "objects.h").stat().st_mtime:
        target.unlink()
    return program(source)


def refusals(scenario: str, private: bool) -> str:
    """Returns a pattern of the reasons that may keep the scenario where it is."""
    tables = [REFUSALS, REFUSALS_WITH_PRIVATE] if private else [REFUSALS]
    return "|".join(["there already", "at home already", *(table[scenario] for table in tables if scenario in table)])


def follow(
    cluster: Cluster, steps: Steps, process: subprocess.Popen[bytes], result: Run, plan: Plan, native: Run | None, refused: str
) -> None:
    """Goes with the program from step to step until it ends. refused: what may be said where it does not move."""
    while (pid := steps.next(process)) is not None:
        number = len(result.states)
        for target in plan.get(number, ()):
            move = migrate(cluster, number, pid, target)
            result.moves.append(move)
            if not move.moved and not re.search(refused, move.said):
                result.wrong.append(f"step {number}: not moved to {target}: {move.said}")
        expected = native.states[number] if native is not None and number < len(native.states) else None
        state = settled(cluster.home.root / "proc" / str(pid), expected)
        result.states.append(state)
        if expected is not None:
            result.wrong += [f"step {number}: {difference}" for difference in unlike(expected, state)]
        steps.go()


def settled(process: Path, expected: State | None) -> State:
    """Returns the state of the process. What is not as expected is given a second: a thread that has ended goes a little later. If nothing
    is expected yet, all its threads must be waiting: one that runs may have all signals blocked for a moment."""
    end = time.monotonic() + 1
    while True:
        try:
            state = seen(process)
            good = not unlike(expected, state) if expected is not None else waits(process) and state == seen(process)
            if good or time.monotonic() > end:
                return state
        except (FileNotFoundError, ProcessLookupError):  # a thread or a descriptor went away during the check
            if time.monotonic() > end:
                raise
        time.sleep(0.005)


def waits(process: Path) -> bool:
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "S" for task in (process / "task").iterdir())


def unlike(native: State, moved: State) -> list[str]:
    """A line for each thing that is not as natively. What is seen at home only is compared if it was."""
    return [
        f"{name} is natively {native.get(name)!r}, moved {moved.get(name)!r}"
        for name in native.keys() | moved.keys()
        if native.get(name) != moved.get(name) and not (name.startswith("at home: ") and "at home: SigBlk" not in moved)
    ]


def compare(native: Run, moved: Run) -> None:
    if native.status != moved.status:
        moved.wrong.append(f"exit status {native.status} natively, {moved.status} moved")
    if native.said != moved.said:
        moved.wrong.append(first_difference("what it said", native.said, moved.said))
    if len(native.states) != len(moved.states):
        moved.wrong.append(f"{len(native.states)} steps natively, {len(moved.states)} moved")


def check(cluster: Cluster, native: Run, moved: Run) -> None:
    """Fails if the run was not as natively, and keeps what is needed to find out why."""
    if not moved.wrong:
        return
    directory = BUNDLES / f"objects-{moved.scenario}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / "native").write_bytes(native.said)
    (directory / "moved").write_bytes(moved.said)
    (directory / "moves").write_text("".join(f"{move}\n" for move in moved.moves))
    cluster.logs(directory)
    pytest.fail("\n".join([*moved.wrong, *map(str, moved.moves), f"kept in {directory}"]), pytrace=False)


def user_of(scenario: str) -> str:
    return USER if sorted(SCENARIOS).index(scenario) % 2 else ""


def parameters(*sources: str) -> list[str]:
    """The scenarios of these programs, for parametrize."""
    return [name for name, source in sorted(SCENARIOS.items()) if source in sources]


def one_of_each_kind(*sources: str) -> list[Any]:
    """The same; those of a kind that another has as well are among the long tests."""
    return [pytest.param(name, marks=pytest.mark.soak if name in OF_A_KIND else ()) for name in parameters(*sources)]


def skip_where_it_is_empty(scenario: str) -> None:
    """Count a scenario as skipped, with the reason, where it could show nothing."""
    flag = NEEDED.get(scenario)
    if flag is not None and flag not in own_processor().flags:
        pytest.skip(f"this processor has no {flag}")


def move_at_every_step(cluster: Cluster, scenario: str, private: bool = False) -> None:
    """Out, on to another node, home, and so on. private: in a directory of its own."""
    skip_where_it_is_empty(scenario)
    user = user_of(scenario)
    native = run(cluster, scenario, user)
    assert native.status == 0 and native.said.endswith(b"the end\n"), native.said
    plan = {step: [ROUTE[step % len(ROUTE)]] for step in range(len(native.states))}
    moved = run(cluster, scenario, user, plan, native, private)
    if not any(move.moved for move in moved.moves):
        moved.wrong.append("it was never moved")
    check(cluster, native, moved)


def move_once_at_each_step(cluster: Cluster, scenario: str) -> None:
    """For each step, runs it once with a move out exactly there, and once, out from the beginning, with a move home exactly there."""
    skip_where_it_is_empty(scenario)
    natives = [run(cluster, scenario, ""), run(cluster, scenario, USER)]
    for step in range(max(len(native.states) for native in natives)):
        for target, plan in (("out", {step: ["n2"]}), ("home", {0: ["n2"], step: ["home"] if step else ["n2", "home"]})):
            user = ("", USER)[(step + (target == "home")) % 2]
            check(cluster, natives[user == USER], run(cluster, scenario, user, plan, natives[user == USER]))
