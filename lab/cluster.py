"""Making a cluster of a lab's nodes: keys by mosctl, then a daemon on each."""

from __future__ import annotations

import subprocess
import time
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
    _await_acquaintance(nodes)


def _await_acquaintance(nodes: list[Node], seconds: float = 40.0) -> None:
    """Return when every daemon knows of every node: from then on processes can be moved anywhere. Errors: LabError."""
    wanted = {node.name for node in nodes}
    deadline = time.monotonic() + seconds
    for node in nodes:
        while missing := wanted - {one["name"] for one in node.ask_mosd("nodes").get("nodes", ())}:
            if time.monotonic() > deadline:
                raise LabError(f"mosd on {node.name} does not hear of {', '.join(sorted(missing))}.")
            time.sleep(0.02)


def _mosctl(node: Node, *arguments: str) -> str:
    try:
        result = node.run(["mosctl", *arguments], timeout=40, text=True)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"'mosctl {' '.join(arguments[:2])}' on {node.name} does not end.") from error
    if result.returncode:
        reason = " ".join((result.stderr or result.stdout).split()) or f"exit status {result.returncode}"
        raise LabError(f"'mosctl {' '.join(arguments[:2])}' failed on {node.name}: {reason}")
    return str(result.stdout).strip()
