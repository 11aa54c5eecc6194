"""`python -m remote`: started by mosd for one guest that is expected; lives until that guest has gone, and
the children that it has had here."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.files.store import LIMIT
from remote.options import Options
from remote.sandbox import identity
from remote.tree import Tree
from wire import channel, logs
from wire.resources import allow_many_descriptors, let_memory_be_merged


@functools.cache
def parser() -> argparse.ArgumentParser:
    """Of its command line; made before it is forked, it costs no memory of its own."""
    made = argparse.ArgumentParser(prog="remote", description="guest side of one process")
    made.add_argument("--home", required=True, help="name of the guest's home node")
    made.add_argument("--pid", type=int, required=True, help="its pid at home")
    made.add_argument("--socket", type=Path, required=True)
    made.add_argument("--secret-fd", type=int, required=True, help="descriptor from which the 32-byte secret is read")
    made.add_argument("--address", required=True, help="address to listen on")
    made.add_argument("--node", required=True, help="name of this node")
    made.add_argument("--link-timeout", type=float, default=300.0, help="seconds without the home until it counts as dead")
    made.add_argument("--interception", default="auto", choices=("auto", "notify", "ptrace"))
    made.add_argument("--cgroup", default="", help="cgroup of the guest, relative to the node's")
    made.add_argument("--images", type=Path, default=Path("/run/farhome/images"))
    made.add_argument("--cache", type=Path, default=Path("/var/lib/farhome/cache"))
    made.add_argument("--pki", type=Path, help="certificates of this node: guests may read files of their homes directly")
    made.add_argument("--direct-after", type=int, default=16, help="reads of a file that go home before")
    made.add_argument("--own-files", type=Path, help="where the files of this node are as other nodes see them")
    made.add_argument("--ids", type=identity.bounds, default=identity.DEFAULT, help="FIRST-LAST, of guests on this node; none: as at home")
    made.add_argument("--root-counts", action="store_true", help="root of the home is root in these")
    made.add_argument("--announced", type=int, default=0, help="bytes of memory that the guest was said to have")
    made.add_argument("--lent-disk", type=int, default=LIMIT, help="bytes of the disk that all files of homes may take")
    made.add_argument("--plain", action="store_true", help="its connections need not be encrypted, if the other side agrees")
    made.add_argument("--engines", default="criu,pour", help="by which processes may come")
    return made


def prepare() -> None:
    """What a program of this room does first, in its main thread."""
    logs.begin("remote")
    allow_many_descriptors()
    let_memory_be_merged()


def tree(words: Sequence[str]) -> Tree:
    """By the words of its command line. Errors: SystemExit, OSError."""
    arguments = parser().parse_args(words)
    if arguments.plain:
        channel.need_not_be_secret()
    with os.fdopen(arguments.secret_fd, "rb") as source:
        secret = source.read(32)
    options = Options(
        arguments.home, arguments.pid, arguments.socket, secret, arguments.address, arguments.node, arguments.link_timeout,
        arguments.interception, arguments.cgroup, arguments.images, arguments.cache, arguments.pki, arguments.plain,
        arguments.direct_after, arguments.own_files, arguments.ids, arguments.root_counts, arguments.announced,
        arguments.lent_disk, frozenset(arguments.engines.split(",")),
    )  # fmt: skip
    return Tree(options)


def main() -> int:
    """Exit 0 when the guest has gone in order, 1 if none came."""
    prepare()
    return tree(sys.argv[1:]).run()


if __name__ == "__main__":
    sys.exit(main())
