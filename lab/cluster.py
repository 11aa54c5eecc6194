"""Making a cluster of a lab's nodes: keys by mosctl, then a daemon on each."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor

from lab.node import ROOT, Node
from lab.state import LabError


def is_available() -> bool:
    """Whether there is a node daemon to be started."""
    return (ROOT / "cli" / "mosd.py").exists() and (ROOT / "cli" / "mosctl.py").exists()


def start(nodes: list[Node]) -> None:
    """Make the cluster's keys on the first node, let the others join, start mosd everywhere. Errors: LabError."""
    first, *others = nodes
    _mosctl(first, "cluster", "init")
    first.start_mosd()
    if not others:
        return

    def join(node: Node) -> None:
        _mosctl(node, "cluster", "join", _mosctl(first, "cluster", "token"))
        node.start_mosd()

    with ThreadPoolExecutor(max_workers=4) as pool:
        for joined in [pool.submit(join, node) for node in others]:
            joined.result()


def _mosctl(node: Node, *arguments: str) -> str:
    try:
        result = node.run(["mosctl", *arguments], timeout=20, text=True)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"'mosctl {' '.join(arguments[:2])}' on {node.name} does not end.") from error
    if result.returncode:
        reason = " ".join((result.stderr or result.stdout).split()) or f"exit status {result.returncode}"
        raise LabError(f"'mosctl {' '.join(arguments[:2])}' failed on {node.name}: {reason}")
    return str(result.stdout).strip()
