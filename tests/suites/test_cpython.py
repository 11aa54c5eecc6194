"""CPython's own tests, natively and in a storm of moves: the same tests pass.

They are the distribution's (on Debian: libpython3.x-testsuite); without them this is skipped. Each module runs as one process tree
under `mosrun`, all of which moves.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.moves.cluster import Cluster
from tests.moves.outcome import PATH, kill_session
from tests.moves.storm import Mover, new_seed

MODULES = (
    "os", "posix", "signal", "threadsignals", "eintr", "subprocess", "socket", "select", "selectors", "poll", "epoll", "asyncio", "fcntl",
    "pty", "openpty", "wait3", "wait4", "fork1", "mmap", "resource", "io", "fileio", "tempfile", "pathlib", "shutil", "threading",
    "thread", "queue", "multiprocessing_fork", "concurrent_futures", "faulthandler", "time",
)  # fmt: skip
LEFT_OUT = {"socket": ["*VSOCK*"]}
"""Patterns of tests that do not end natively on every machine."""
MOVES = 5
"""Number of moves wanted for one module: a shorter module is run again, REPEATS times at most."""
REPEATS = 30
SHORT = ((0.5, 40), (2.0, 5))
"""A module that takes less than so many seconds natively is tested so often in one run: what has ended cannot be moved."""
SECONDS = 400
"""Seconds for one module to run natively; five times that under moves."""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(SECONDS * 7)]


@dataclass(frozen=True)
class Ran:
    """Names of tests by how they ended. `log`: all that was said."""

    passed: frozenset[str]
    failed: frozenset[str]
    log: str
    seconds: float


def run(cluster: Cluster, module: str, launcher: str, seconds: float, times: int = 1) -> Ran:
    """Runs one module, `times` in a row, in a fresh directory of the home node. Errors: TimeoutError."""
    directory = cluster.home.root / "tmp" / f"suite-{module}"
    subprocess.run(["rm", "-rf", directory], check=True, timeout=300)
    directory.mkdir()
    ignored = " ".join(f"-i '{pattern}'" for pattern in LEFT_OUT.get(module, []))
    tests = f"--junit-xml result.xml --timeout {seconds} {ignored}" + f" test_{module}" * times
    script = f"cd /tmp/suite-{module} && {launcher} python3 -m test {tests}"
    begun = time.monotonic()
    argv = ["env", "-i", f"PATH={PATH}", "HOME=/tmp", "LC_ALL=C.UTF-8", "setsid", "--wait", "bash", "-c", script]
    with (directory / "log").open("wb") as log:
        process = cluster.home.popen(argv, "", stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            process.wait(seconds + 30)
        except subprocess.TimeoutExpired:
            kill_session(process.pid)
            process.wait(10)
            raise TimeoutError(f"test_{module} did not end within {seconds} s: {(directory / 'log').read_text()[-4000:]}") from None
    return read(directory, time.monotonic() - begun)


def read(directory: Path, seconds: float) -> Ran:
    passed, failed = set(), set()
    log = (directory / "log").read_text(errors="replace")
    assert (directory / "result.xml").exists(), log[-4000:]
    for case in ElementTree.parse(directory / "result.xml").iter("testcase"):
        name = str(case.get("name"))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(name)
        elif case.find("skipped") is None and case.get("status") == "run":
            passed.add(name)
    return Ran(frozenset(passed - failed), frozenset(failed), log, seconds)


@pytest.mark.parametrize("module", MODULES)
def test_the_same_tests_pass(cluster: Cluster, module: str) -> None:
    if cluster.home.run("python3", "-c", "import test.test_os, test.libregrtest").returncode:
        pytest.skip("CPython's tests are not installed")
    native = run(cluster, module, "", SECONDS)
    times = next((times for limit, times in SHORT if native.seconds < limit), 1)
    seed = new_seed()
    job = f"suite-{module.replace('_', '-')}-{seed}"
    mover = Mover(cluster, job, seed, (0.1, 0.6))
    runs: list[Ran] = []
    end = time.monotonic() + SECONDS * 5
    mover.start()
    try:
        while not runs or (len(mover.done()) < MOVES and len(runs) < REPEATS and time.monotonic() < end - SECONDS):
            runs.append(run(cluster, module, f"mosrun -L -J {job} --", end - time.monotonic(), times))
    finally:
        moves = mover.stop()
    passed = frozenset.intersection(*(ran.passed for ran in runs))
    print(f"test_{module}, seed {seed}: {len(native.passed)} pass natively, {len(passed)} moved;", end=" ")
    print(f"{len(mover.done())} moves in {len(runs)} runs of {times}")
    missing = native.passed - passed
    logs = "\n".join(ran.log[-6000:] for ran in runs if native.passed - ran.passed)
    assert not missing, f"{sorted(missing)}\n{logs}"
    assert mover.done(), "\n".join(map(str, moves))
