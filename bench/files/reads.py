"""Files of home, read by programs that are away: as direct files, by forwarded calls, and at home.

A shell is started at home and moved; its commands are executed where it is. Home's files lie in its memory. `again`: the node may know the
file from the command before, if it knows files at all.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING

from bench.common.nodes import bench_lab, migrate, rounds, wait_until
from bench.common.result import BenchFailed, Result

if TYPE_CHECKING:
    from lab import Lab

MEGABYTES = 64
ROUNDS, SHORT_ROUNDS = 3, 2
TREE = Path("/usr/include/linux")
AT_RANDOM = f"""
import os, random
file, place = os.open("big", os.O_RDONLY), random.Random(1)
for _ in range(20000):
    os.pread(file, 4096, place.randrange({MEGABYTES} << 8) << 12)
"""
COMMANDS = {
    "cat": "cat big",
    "cat again": "cat big",
    "grep": "grep -c zzzz big",
    "python, 64 KiB": 'python3 -c \'f = open("big", "rb", 0)\nwhile f.read(65536): pass\'',
    "4 KiB at random": "python3 -c '" + AT_RANDOM + "'",
    "tar of a tree": "tar cf - tree",
    "grep -r": "grep -r zzzz tree",
}
SCRIPT = r"""
TIMEFORMAT=%R
cd /tmp/bench-reads
until [ -e go ]; do sleep 0.05; done
time_of() { echo "$1=$( { time eval "$2" | cat > /dev/null; } 2>&1 )"; }
"""


@contextmanager
def _lab(direct: bool) -> Iterator[Lab]:
    name = f"bench{os.getpid()}-{'direct' if direct else 'forwards'}"
    with bench_lab(2, name=name, configuration=f"\n[mfs]\ndirect = {str(direct).lower()}\n") as lab:
        place = lab.node("n1").root / "tmp" / "bench-reads"
        place.mkdir(mode=0o755)
        shutil.copytree(TREE, place / "tree")
        (place / "big").write_bytes(random.Random(1).randbytes(1 << 20).replace(b"z", b"y") * MEGABYTES)
        yield lab


def _sample(lab: Lab, is_away: bool) -> dict[str, float]:
    """Seconds of each command. Errors: BenchFailed."""
    place = lab.node("n1").root / "tmp" / "bench-reads"
    (place / "go").unlink(missing_ok=True)
    script = SCRIPT + "".join(f"time_of '{name}' {_quoted(command)}\n" for name, command in COMMANDS.items())
    with lab.node("n1").popen(
        ["mosrun", "-L", "-J", "bench-reads", "--", "bash", "-c", script], stdin=DEVNULL, stdout=PIPE, text=True
    ) as process:
        try:
            if is_away:
                migrate(lab, "bench-reads", "n2")
            (place / "go").touch()
            wait_until(lambda: process.poll() is not None, "the end of the commands", 300)
            assert process.stdout is not None
            said = dict(line.split("=") for line in process.stdout.read().splitlines() if "=" in line)
        finally:
            process.kill()
    if said.keys() != COMMANDS.keys():
        raise BenchFailed("a command did not end as it should")
    return {name: float(seconds) for name, seconds in said.items()}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def run() -> list[Result]:
    """Measure in two fresh labs of two equal nodes. Errors: BenchFailed."""
    with _lab(True) as direct, _lab(False) as forwarding:
        samples = [(_sample(direct, True), _sample(forwarding, True), _sample(forwarding, False)) for _ in range(rounds(ROUNDS))]
    found = []
    for name in COMMANDS:
        ours, forwarded, home = ([sample[way][name] for sample in samples] for way in range(3))
        found.append(Result.of(name, ours, forwarded, unit="s", baseline_name="forwarded calls"))
        found.append(Result.of(f"{name}, to home", ours, home, unit="s", baseline_name="at home"))
    return found


def short() -> list[Result]:
    """Measure in one lab, as farhome is shipped, against home alone. Errors: BenchFailed."""
    with _lab(False) as lab:
        samples = [(_sample(lab, True), _sample(lab, False)) for _ in range(SHORT_ROUNDS)]
    ways = [{name: [sample[way][name] for sample in samples] for name in COMMANDS} for way in range(2)]
    return [Result.of(f"{name}, to home", ways[0][name], ways[1][name], unit="s", baseline_name="at home") for name in COMMANDS]
