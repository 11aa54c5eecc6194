"""The lab as benches use it: fresh nodes with their daemons, commands whose failure ends the bench in one sentence."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.common.result import BenchFailed

if TYPE_CHECKING:
    from lab import Lab, Node

#: Where a node sees the clone, whatever directory it lies in.
INSIDE = "/opt/farhome"
ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def bench_lab(count: int, **options: Any) -> Iterator[Lab]:
    """Give a lab of its own with a daemon in each node; a second one needs a name. Errors: BenchFailed if it does not come up."""
    from lab import Lab  # a bench that needs no nodes needs no lab

    if os.geteuid() != 0:
        raise BenchFailed("virtual nodes need root")
    with Lab.up(count, **{"name": f"bench{os.getpid()}", **options}) as lab:
        yield lab


def rounds(usual: int) -> int:
    """How many rounds a bench makes: what FARHOME_BENCH_ROUNDS says, else as many as usual."""
    chosen = os.environ.get("FARHOME_BENCH_ROUNDS", "")
    return int(chosen) if chosen.isdigit() and int(chosen) > 0 else usual


def checked(node: Node, command: Sequence[str], timeout: float = 60) -> str:
    """Return what a command wrote in a node. Errors: BenchFailed if it failed or took more than `timeout` seconds."""
    try:
        done = node.run(list(command), timeout=timeout, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except subprocess.TimeoutExpired as error:
        raise BenchFailed(f"{' '.join(command)} took more than {timeout:.0f} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word of why"])[-1]
        raise BenchFailed(f"{' '.join(command)} ended with {done.returncode}: {last}")
    return str(done.stdout)


def wait_until(condition: Callable[[], bool], what: str, timeout: float = 30) -> None:
    """Wait for a condition, looked at a hundred times a second. Errors: BenchFailed that says what did not come."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise BenchFailed(f"{what} did not come within {timeout:.0f} s")
        time.sleep(0.01)


def build(name: str) -> str:
    """Compile bench/NAME.c, where NAME has a folder; returns where the nodes see the program. Errors: BenchFailed."""
    target = ROOT / ".build" / f"bench-{name.replace('/', '-')}"
    target.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f"{target.name}.", delete=False) as new:
        command = ["gcc", "-O2", "-Wall", "-Wextra", "-pthread", "-o", new.name, str(ROOT / "bench" / f"{name}.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        os.unlink(new.name)
        raise BenchFailed(f"gcc does not compile bench/{name}.c: {done.stderr.strip().splitlines()[0]}")
    os.chmod(new.name, 0o755)
    os.replace(new.name, target)
    return f"{INSIDE}/.build/{target.name}"


def where(lab: Lab, job: str) -> tuple[int, str]:
    """Return the first process of a job, which the others have come from, and the place it is at. Errors: BenchFailed."""
    rows = json.loads(checked(lab.node("n1"), ["mosps", "--json", "-J", job]))
    if not rows:
        raise BenchFailed(f"mosps shows no process of job {job}")
    first = min(rows, key=lambda row: int(row["pid"]))
    return int(first["pid"]), str(first["where"])


def migrate(lab: Lab, job: str, target: str) -> None:
    """Move the first process of a job. Errors: BenchFailed."""
    pid, _ = where(lab, job)
    checked(lab.node("n1"), ["migrate", str(pid), target])
    _, now = where(lab, job)
    if now != target:
        raise BenchFailed(f"the program was to be {target} and is {now}")
