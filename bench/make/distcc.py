"""distcc's servers on nodes of a lab, and what make needs to use them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from bench.common.nodes import checked, wait_until
from bench.common.peers import find
from bench.common.result import BenchFailed

if TYPE_CHECKING:
    from lab import Node

PROGRAMS = ("distcc", "distccd")
PORT = 3632
DIRECTORY = "/tmp/bench-distcc"
EACH, HERE = 4, 2
"""Compilers at a time: on a server, and where make is."""


def _listens(node: Node) -> bool:
    """Whether a program of the node listens on the port (the kernel's table, in hexadecimal, state 0A)."""
    lines = (node.root / "proc/1/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[1].endswith(f":{PORT:04X}") and line.split()[3] == "0A" for line in lines)


def _end(node: Node) -> None:
    checked(node, ["sh", "-c", f"kill -KILL -$(cat {DIRECTORY}/server)"])
    wait_until(lambda: not _listens(node), f"the end of distcc's server on {node.name}")


@contextmanager
def servers(home: Node, others: Sequence[Node]) -> Iterator[Mapping[str, str]]:
    """Run a server on each of the others; gives the environment of make at home. Errors: BenchFailed."""
    daemon = find("distccd")
    if daemon is None:
        raise BenchFailed("distcc is not installed: tools/peers compilers does that")
    options = f"--daemon --no-detach --user nobody --enable-tcp-insecure --allow-private --allow 10.0.0.0/8 --port {PORT} --jobs {EACH}"
    # In a session of its own, by whose number all of it can be ended: it is several processes.
    script = f"echo $$ > {DIRECTORY}/server; exec {daemon} {options} --log-file /dev/null < /dev/null > /dev/null 2>&1"
    with ExitStack() as stack:
        for node in (home, *others):
            checked(node, ["mkdir", "-p", DIRECTORY])
        for node in others:
            checked(node, ["setsid", "--fork", "sh", "-c", script])
            stack.callback(_end, node)
        for node in others:
            wait_until(lambda node=node: _listens(node), f"distcc's server on {node.name}")  # type: ignore[misc]
        hosts = [f"{node.address}:{PORT}/{EACH}" for node in others]
        yield {"DISTCC_DIR": DIRECTORY, "DISTCC_FALLBACK": "0", "DISTCC_HOSTS": " ".join([*hosts, f"localhost/{HERE}"])}
