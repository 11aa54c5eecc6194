"""stress-ng's own checks (--verify), one stressor at a time, natively and in a storm of moves: what passes natively passes.

Five classes of it, as an ordinary user: what needs root there changes the machine for others. stress-ng keeps a segment of memory that
it shares with its children, so most of what it starts stays at home and says so; what a stressor executes may move. Without
stress-ng this is skipped.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass

import pytest

from tests.moves.cluster import Cluster
from tests.moves.outcome import PATH, kill_session
from tests.moves.storm import EXCUSED, Mover, new_seed
from tests.moves.workloads import USER

CLASSES = ("os", "pipe", "interrupt", "filesystem", "scheduler")
LEFT_OUT = {"oom-pipe", "bigheap"}
"""They take all memory that there is, and other users may need the machine too."""
REFUSALS = re.compile(
    "shares anonymous memory|mapped shared|System V|counts its processor time|kernel asynchronous I/O|userfaultfd"
    "|io_uring|seccomp|traced by|namespace|descriptor|secret memory"
)
SECONDS = 5
BOUND = 40
"""Seconds for one run that is to take SECONDS."""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(5 * BOUND)]


def stressors() -> list[str]:
    """Returns the stressors of this stress-ng in the classes, in order."""
    if not shutil.which("stress-ng"):
        return []
    found: set[str] = set()
    for one in CLASSES:
        said = subprocess.run(["stress-ng", "--class", f"{one}?"], capture_output=True, text=True, timeout=10, check=False).stdout
        found.update(said.partition(":")[2].split())
    return sorted(found - LEFT_OUT)


@dataclass(frozen=True)
class Ran:
    """Exit status and output of stress-ng."""

    passed: bool
    log: str


def run(cluster: Cluster, stressor: str, launcher: str) -> Ran:
    """Runs one stressor in a fresh directory of the home node. Passed: stress-ng says 0 and has not skipped it. Errors: TimeoutError."""
    directory = cluster.home.root / "tmp" / f"stress-{stressor}"
    subprocess.run(["rm", "-rf", directory], check=True, timeout=300)
    directory.mkdir()
    shutil.chown(directory, USER, USER)
    command = f"cd /tmp/stress-{stressor} && {launcher} stress-ng --verify --timeout {SECONDS} --temp-path . --{stressor} 1"
    argv = ["env", "-i", f"PATH={PATH}", "LC_ALL=C.UTF-8", "setsid", "--wait", "bash", "-c", command]
    log = directory.with_suffix(".log")
    with log.open("wb") as output:
        process = cluster.home.popen(argv, USER, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            status = process.wait(BOUND)
        except subprocess.TimeoutExpired:
            kill_session(process.pid)
            process.wait(10)
            raise TimeoutError(f"{stressor} did not end within {BOUND} s: {log.read_text(errors='replace')[-4000:]}") from None
        finally:
            subprocess.run(["rm", "-rf", directory], check=True, timeout=300)
    said = log.read_text(errors="replace")
    log.unlink()
    return Ran(status == 0 and "skipped" not in said and "unsuccessful" not in said, f"{said}\nstatus {status}")


@pytest.mark.parametrize("stressor", stressors())
def test_stressors_that_pass_natively_pass(cluster: Cluster, stressor: str) -> None:
    try:
        native = run(cluster, stressor, "")
    except TimeoutError as error:
        pytest.skip(f"it does not end natively: {error}")
    if not native.passed:
        pytest.skip(f"it does not pass natively: {native.log[-300:]}")
    seed = new_seed()
    job = f"stress-{stressor}-{seed}"
    mover = Mover(cluster, job, seed, (0.1, 0.6))
    mover.start()
    try:
        moved = run(cluster, stressor, f"mosrun -L -J {job} --")
    finally:
        moves = mover.stop()
    stayed = Counter(move.said.partition("stays at home: ")[2] or move.said for move in moves if not move.done)
    print(f"{stressor}, seed {seed}: {sum(move.done for move in moves)} moves; {dict(stayed)}")
    assert moved.passed, f"{native.log}\n{moved.log}\n{moves}"
    wrong = [str(move) for move in moves if not move.done and not EXCUSED.search(move.said) and not REFUSALS.search(move.said)]
    assert not wrong, "\n".join(wrong)
