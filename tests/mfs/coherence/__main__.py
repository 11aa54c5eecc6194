"""`python -m tests.mfs.coherence`: the coherence test as a tool; exit status 1 if anything stale was seen.

--on plain: three programs on one directory of this machine. --on sshfs: two nodes on a third's files by sshfs with its defaults, which
keeps for seconds what others change: it must be found stale, or the test would prove nothing. --on mfs: two nodes on /mfs/n1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence

from lab import Lab
from tests.mfs.coherence.controller import Coherence, Place
from tests.mfs.exports import until_mounted

HOME = "/tmp/coherence"


@contextlib.contextmanager
def plain() -> Iterator[Sequence[Place]]:
    with tempfile.TemporaryDirectory() as directory:
        yield [Place(name, directory) for name in ("home", "n2", "n3")]


@contextlib.contextmanager
def sshfs() -> Iterator[Sequence[Place]]:
    from bench.files.sshfs import Server, installed

    installed()
    with Lab.up(3, name=f"coherence{os.getpid()}", mosd=False) as lab, Server(lab.node("n1")) as server:
        lab.node("n1").run(["mkdir", HOME], check=True)
        places = [Place("home", HOME, lab.node("n1"))]
        for name in ("n2", "n3"):
            server.mount(lab.node(name), HOME, HOME)
            places.append(Place(name, HOME, lab.node(name)))
        yield places


@contextlib.contextmanager
def mfs() -> Iterator[Sequence[Place]]:
    with Lab.up(3, name=f"coherence{os.getpid()}") as lab:
        lab.node("n1").run(["mkdir", HOME], check=True)
        for name in ("n2", "n3"):
            until_mounted(lab.node(name), lab.node("n1"), HOME)
        yield [Place("home", HOME, lab.node("n1")), *(Place(name, f"/mfs/n1{HOME}", lab.node(name)) for name in ("n2", "n3"))]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mfs.coherence", description=__doc__.partition("\n")[0])
    parser.add_argument("--on", choices=("mfs", "sshfs", "plain"), default="mfs")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--most", type=int, default=20, help="end after so many stale checks (%(default)s)")
    parser.add_argument("--maps", action="store_true", help="check mapped files as well")
    arguments = parser.parse_args()
    nodes = {"mfs": mfs, "sshfs": sshfs, "plain": plain}[arguments.on]
    with nodes() as places, Coherence(places, arguments.seed, arguments.maps) as coherence:
        report = coherence.run(arguments.rounds, arguments.most)
    for line in (*report.stale, *report.in_time, *report.failures):
        print(line)
    for kind, count in report.kinds().items():
        print(f"{count:6} {kind}")
    print(report.sentence())
    return 1 if report.stale or report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
