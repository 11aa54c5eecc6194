"""Processor time adds up over the nodes: what a program is told of it away is what it has used at home, here and on the way."""

from __future__ import annotations

import subprocess
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
"""Milliseconds that each of two threads computes between two looks."""


@pytest.fixture(scope="module", params=[("notify", "auto"), ("ptrace", "criu")], ids=["notify", "ptrace"])
def either(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster with each of the two interceptors, and of the two engines."""
    interception, engine = request.param
    cluster = Cluster(configuration=f'interception = "{interception}"\nengine = "{engine}"\n')
    yield cluster
    cluster.down()


def looks(program: Running) -> list[dict[str, int]]:
    """What it has been told, oldest first; microseconds, faults as they are."""
    whole = [line.split() for line in program.lines()]
    return [dict(zip(NAMES, map(int, values), strict=True)) for values in whole if len(values) == len(NAMES)]


def stays(program: Running, rounds: int) -> None:
    """Waits for so many more looks."""
    before = len(looks(program))
    until("it computes", lambda: len(looks(program)) >= before + rounds, seconds=30)


def test_processor_time_adds_up_over_out_and_hop(either: Cluster) -> None:
    """The program itself fails when anything goes back."""
    with Running(either, "cputime", f"{ROUND}") as program:
        stays(program, 8)
        at_home = looks(program)[-1]
        with Watch() as watch:
            for target in ("n2", "n3", "n2"):
                program.moved(target)
                watch.add(program.host_pids())
                stays(program, 8)
            last = looks(program)[-1]
        print(at_home, last, watch.seen)
        truth = sum(watch.seen.values())
        said = ended(program)
    assert "looked" in said and "status 0" in said
    assert disagreements(last) == []
    assert last["process"] > 2 * at_home["process"]
    # What /proc tells of a guest's process holds also what CRIU did in it to make it.
    assert truth - 0.3 < last["process"] / 1e6 < truth + 0.1
    assert last["thread"] + last["other"] <= last["process"] * 1.1 + 20_000


def ended(program: Running) -> str:
    """What it said, and its shell, up to the end that it is told to come to."""
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
    """Looks at `seen` (pid on the machine that carries the lab -> seconds used) all the time, as far as to each one's end."""

    def __init__(self) -> None:
        self.seen: dict[int, float] = {}
        self._ends = Event()
        self._thread = Thread(target=self._look, daemon=True)

    def add(self, pids: list[int]) -> None:
        """Looks at these too."""
        self.seen |= {pid: 0.0 for pid in pids if pid not in self.seen}

    def _look(self) -> None:
        while not self._ends.wait(0.005):
            for pid, before in list(self.seen.items()):
                self.seen[pid] = max(before, used(pid))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ends.set()
        self._thread.join(5)


def disagreements(look: dict[str, int]) -> list[str]:
    """What does not fit together: the clocks are exact, `times` counts ticks."""
    wrong = []
    for name in ("own pid", "times"):
        if abs(look[name] - look["process"]) > 60_000:
            wrong.append(f"{name} says {look[name]}, the clock of the process {look['process']}")
    if abs(look["user"] + look["system"] - look["process"]) > 60_000:
        wrong.append(f"getrusage says {look['user']} and {look['system']}, the clock of the process {look['process']}")
    if abs(look["thread usage"] - look["thread"]) > 60_000:
        wrong.append(f"getrusage says {look['thread usage']} of the thread, its clock {look['thread']}")
    return wrong


def test_at_home_again_the_kernel_tells_of_home_alone(either: Cluster) -> None:
    """Nobody can add to the counters of a native process: what was used away is missing there."""
    with Running(either, "cputime", f"{ROUND} home") as program:
        stays(program, 3)
        program.moved("n2")
        stays(program, 12)
        before = len(looks(program))
        away = looks(program)[-1]
        program.moved(HOME)
        stays(program, 3)
        assert min(look["process"] for look in looks(program)[before:]) < away["process"]
        assert "status 0" in ended(program)


def test_what_children_use_away_is_told_to_their_parent(cluster: Cluster, tmp_path: Path) -> None:
    """Once, however often they move: by all that tells of children while the parent is away."""
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
