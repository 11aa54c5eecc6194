"""Processor time adds up over the nodes: a program away reads the sum of what it has used at home, on the node and during the move."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from types import TracebackType

import pytest

from tests.faults.running import HOME, Running
from tests.moves.cluster import Cluster, until
from tests.programs.build import program

pytestmark = pytest.mark.timeout(120)

NAMES = ("process", "thread", "user", "system", "times", "thread usage", "other", "own pid", "faults")
ROUND = 60
"""Milliseconds that each of two threads computes between two samples."""


@pytest.fixture(scope="module")
def others() -> Iterator[Cluster]:
    """A cluster with the interceptor and the engine that are not the usual ones."""
    cluster = Cluster(configuration='interception = "ptrace"\nengine = "criu"\n')
    yield cluster
    cluster.down()


@pytest.fixture(params=["notify", pytest.param("ptrace", marks=pytest.mark.soak)])
def either(request: pytest.FixtureRequest) -> Cluster:
    """A cluster with each of the two interceptors, and of the two engines."""
    made: Cluster = request.getfixturevalue("cluster" if request.param == "notify" else "others")
    return made


def samples(program: Running) -> list[dict[str, int]]:
    """Returns the samples that the program has printed, oldest first, in microseconds; faults as counts."""
    whole = [line.split() for line in program.lines()]
    return [dict(zip(NAMES, map(int, values), strict=True)) for values in whole if len(values) == len(NAMES)]


def stays(program: Running, rounds: int) -> None:
    """Waits for `rounds` more samples."""
    before = len(samples(program))
    until("it computes", lambda: len(samples(program)) >= before + rounds, seconds=30)


def test_processor_time_adds_up_over_out_and_hop(either: Cluster) -> None:
    """The program itself fails when anything goes back."""
    with Running(either, "cputime", f"{ROUND}") as program:
        stays(program, 4)
        at_home = samples(program)[-1]
        with Watch() as watch:
            for target in ("n2", "n3", "n2"):
                program.moved(target)
                watch.add(program.host_pids())
                stays(program, 4)
            last = samples(program)[-1]
        print(at_home, last, watch.seen)
        truth = sum(watch.seen.values())
        said = ended(program)
    assert "sampled" in said and "status 0" in said
    assert disagreements(last) == []
    assert last["process"] > 2 * at_home["process"]
    # The counters of a guest's process in /proc also hold the time that CRIU used in it during the restore.
    unseen = len(watch.seen) * watch.longest
    assert truth - 0.3 < last["process"] / 1e6 < truth + 0.1 + unseen
    assert last["thread"] + last["other"] <= last["process"] * 1.1 + 20_000


def ended(program: Running) -> str:
    """Asks the program to end; returns its output and its shell's."""
    (program.directory / "end").touch()
    return program.end()


def used(pid: int) -> float:
    """Seconds of processor time by /proc, 0 if it has gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(stat[11]) + int(stat[12])) / 100


class Watch:
    """Polls the processor time of processes in `seen` (pid on the lab's host machine -> seconds used) until each has ended."""

    def __init__(self) -> None:
        self.seen: dict[int, float] = {}
        self.longest = 0.0
        """Longest time between two polls in seconds: a process may have used that much unseen before its end."""
        self._ends = Event()
        self._thread = Thread(target=self._poll, daemon=True)

    def add(self, pids: list[int]) -> None:
        """Adds processes to poll."""
        self.seen |= {pid: 0.0 for pid in pids if pid not in self.seen}

    def _poll(self) -> None:
        before_this = time.monotonic()
        while not self._ends.wait(0.005):
            now = time.monotonic()
            self.longest, before_this = max(self.longest, now - before_this), now
            for pid, before in list(self.seen.items()):
                self.seen[pid] = max(before, used(pid))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ends.set()
        self._thread.join(5)


def disagreements(sample: dict[str, int]) -> list[str]:
    """Lists the clocks that contradict each other: the clocks are exact, `times` counts ticks."""
    wrong = []
    for name in ("own pid", "times"):
        if abs(sample[name] - sample["process"]) > 60_000:
            wrong.append(f"{name} says {sample[name]}, the clock of the process {sample['process']}")
    if abs(sample["user"] + sample["system"] - sample["process"]) > 60_000:
        wrong.append(f"getrusage says {sample['user']} and {sample['system']}, the clock of the process {sample['process']}")
    if abs(sample["thread usage"] - sample["thread"]) > 60_000:
        wrong.append(f"getrusage says {sample['thread usage']} of the thread, its clock {sample['thread']}")
    return wrong


def test_back_at_home_the_kernel_counts_only_time_used_at_home(either: Cluster) -> None:
    """The counters of a native process cannot be raised: the time used away is missing there."""
    with Running(either, "cputime", f"{ROUND} home") as program:
        stays(program, 3)
        program.moved("n2")
        stays(program, 12)
        before = len(samples(program))
        away = samples(program)[-1]
        program.moved(HOME)
        stays(program, 3)
        assert min(sample["process"] for sample in samples(program)[before:]) < away["process"]
        assert "status 0" in ended(program)


def test_time_that_children_use_away_is_reported_to_their_parent(cluster: Cluster, tmp_path: Path) -> None:
    """Counts the time once, however often the children move, in every call that reports children's time to a parent that is away."""
    for name in ("go", "moved"):
        (tmp_path / name).touch()
    expected = subprocess.run([program("children")], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60).stdout
    with Running(cluster, "children", "") as parent:
        until("it waits", parent.lines)
        parent.moved("n2")
        (parent.directory / "go").touch()
        child = int(until("a child waits", lambda: parent.lines()[1:], seconds=60)[0].split()[1])
        for source, target in (("n2", "n3"), ("n3", "n2")):
            move = cluster.migrate(child, source, target)
            assert move.done, str(move)
        (parent.directory / "moved").touch()
        assert parent.end() == f"{expected}status 0\n"
