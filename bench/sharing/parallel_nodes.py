"""GNU parallel over the nodes of a lab, as its users have it over machines: one job at a time on each, started from outside.

`--ssh` names what it uses instead of ssh: a script that enters the node, and its control groups. parallel itself runs outside of the
nodes and their quotas.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from bench.common.result import BenchFailed
from bench.sharing.batch import ENDS, await_ends

if TYPE_CHECKING:
    from lab import Lab


def _script(lab: Lab) -> str:
    lines = ["#!/bin/sh", 'host=$1; shift; [ "$1" != -- ] || shift', 'case "$host" in']
    for node in lab.nodes():
        entering = shlex.join(node.command(["/bin/sh", "-c"]))
        lines.append(f'{node.name}) exec {entering} "$*" ;;')
    return "\n".join([*lines, "esac", 'echo "there is no node $host" >&2; exit 255', ""])


class Parallel:
    """Runs batches in the nodes of a lab."""

    name = "GNU parallel"

    def __init__(self, lab: Lab, enter: Path) -> None:
        self._lab = lab
        self._enter = enter

    def going(self) -> AbstractContextManager[None]:
        """It costs nothing while it has nothing to do."""
        return nullcontext()

    def run(self, program: str, work: Sequence[int], bound: float) -> list[float]:
        """Seconds from the start to the end of each job. Errors: BenchFailed."""
        nodes = self._lab.nodes()
        logins = ",".join(f"1/{node.name}" for node in nodes)
        command = [
            "parallel", "--will-cite", "--jobs", "1", "--ssh", str(self._enter), "--sshlogin", logins,
            f"{program} {{}} {{#}} {ENDS}", ":::", *map(str, work),
        ]  # fmt: skip
        begun = time.time()
        # Without it, parallel takes $SHELL, or what has started it, for the shell of its commands.
        environment = {**os.environ, "PARALLEL_SHELL": "/bin/sh"}
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd="/", env=environment) as process:
            try:
                return await_ends(nodes, len(work), begun, bound, self.name)
            finally:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """It ends by itself after its last job; else its second SIGTERM has it end its jobs."""
    for _ in range(3):
        try:
            process.wait(5)
            return
        except subprocess.TimeoutExpired:
            process.terminate()
    process.kill()


@contextmanager
def parallel(lab: Lab) -> Iterator[Parallel]:
    """Errors: BenchFailed if it is not installed."""
    if shutil.which("parallel") is None:
        raise BenchFailed("GNU parallel is not installed: tools/peers does that")
    with tempfile.TemporaryDirectory(prefix="farhome-bench-") as directory:
        enter = Path(directory) / "enter"
        enter.write_text(_script(lab))
        enter.chmod(0o755)
        yield Parallel(lab, enter)
