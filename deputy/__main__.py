"""`python -m deputy`: started by mosd for one process that is to leave; lives until that process is home
again or ended, and the children that it has had away."""

from __future__ import annotations

import argparse
import functools
import logging
import os
import sys
from pathlib import Path

from deputy.deputy import Options
from deputy.tree import Tree
from wire.resources import allow_many_descriptors, let_memory_be_merged


@functools.cache
def parser() -> argparse.ArgumentParser:
    """Of its command line; made before it is forked, it costs no memory of its own."""
    made = argparse.ArgumentParser(prog="deputy", description="home side of one process that is away")
    made.add_argument("--pid", type=int, required=True)
    made.add_argument("--socket", type=Path, required=True)
    made.add_argument("--node", required=True, help="name of this node")
    made.add_argument("--link-timeout", type=float, default=20.0, help="seconds without the away node until it counts as dead")
    made.add_argument("--engine", default="auto", choices=("auto", "pour", "criu"))
    made.add_argument("--images", type=Path, default=Path("/run/farhome/images"))
    made.add_argument("--trace", default="", help="where its system calls are told: '-' or a file")
    return made


def main() -> int:
    """Exit 0 when the process is home (or has ended), 1 when it could not be seized at all."""
    arguments = parser().parse_args()
    logging.basicConfig(
        stream=sys.stderr, level=os.environ.get("FARHOME_LOG", "INFO"), format="%(asctime)s deputy %(process)d %(levelname)s %(message)s"
    )
    options = Options(
        arguments.pid, arguments.socket, arguments.node, arguments.link_timeout, arguments.engine, arguments.images, arguments.trace
    )
    allow_many_descriptors()
    let_memory_be_merged()
    return Tree(options).run()


if __name__ == "__main__":
    sys.exit(main())
