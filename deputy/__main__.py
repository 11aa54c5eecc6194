"""`python -m deputy`: started by mosd for one process that is to leave; lives until that process is home
again or ended, and the children that it has had away."""

from __future__ import annotations

import argparse
import functools
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from deputy.options import Options
from deputy.tree import Tree
from engine.leaving.permission import Owner
from engine.pour.precopy import MODES
from kernel_helpers.link.ends.home import HomeLink
from wire import channel, logs
from wire.resources import allow_many_descriptors, let_memory_be_merged


@functools.cache
def parser() -> argparse.ArgumentParser:
    """Of its command line; made before it is forked, it costs no memory of its own."""
    made = argparse.ArgumentParser(prog="deputy", description="home side of one process that is away")
    made.add_argument("--pid", type=int, required=True)
    made.add_argument("--socket", type=Path, required=True)
    made.add_argument("--node", required=True, help="name of this node")
    made.add_argument("--link-timeout", type=float, default=300.0, help="seconds without the away node until it counts as dead")
    made.add_argument("--engine", default="auto", choices=("auto", "pour", "criu"))
    made.add_argument("--memory", default="auto", choices=MODES)
    made.add_argument("--images", type=Path, default=Path("/run/farhome/images"))
    made.add_argument("--owner", type=Owner.from_word, required=True, help="who registered the process: UID:GID:GROUPS")
    made.add_argument("--trace", default="", help="where its system calls are shown: '-' or a file")
    made.add_argument("--files-port", type=int, default=0, help="where the node's file server is; 0: no file is read directly")
    made.add_argument("--deposits", type=Path, default=Path("/run/farhome/mfs/direct"), help="where it takes what is to be read")
    made.add_argument("--no-carry", action="store_true", help="replies carry no answers to what is asked next")
    made.add_argument("--no-remember", action="store_true", help="replies say of no names what nodes may remember")
    made.add_argument("--no-run-ahead", action="store_true", help="no write is answered before it is made")
    made.add_argument("--plain", action="store_true", help="its connections need not be encrypted, if the other side agrees")
    return made


def prepare() -> None:
    """What a program of this room does first, in its main thread."""
    logs.begin("deputy")
    allow_many_descriptors()
    let_memory_be_merged()
    signal.signal(signal.SIGIO, lambda number, frame: None)  # of a lease that is held for a moment (deputy/requests/mapping.py)


def tree(words: Sequence[str]) -> Tree:
    """By the words of its command line. Errors: SystemExit."""
    arguments = parser().parse_args(words)
    HomeLink.carries, HomeLink.remembers, HomeLink.runs_ahead = (
        not arguments.no_carry, not arguments.no_remember, not arguments.no_run_ahead,
    )  # fmt: skip
    if arguments.plain:
        channel.need_not_be_secret()
    return Tree(
        Options(
            arguments.pid,
            arguments.socket,
            arguments.node,
            arguments.link_timeout,
            arguments.engine,
            arguments.images,
            arguments.owner,
            arguments.memory,
            arguments.trace,
            arguments.files_port,
            arguments.deposits,
        )
    )


def main() -> int:
    """Exit 0 when the process is home (or has ended), 1 when it could not be seized at all."""
    prepare()
    return tree(sys.argv[1:]).run()


if __name__ == "__main__":
    sys.exit(main())
