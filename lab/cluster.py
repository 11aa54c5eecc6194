"""Making a cluster of a lab's nodes: the keys of all in one go, then a daemon on each.

Nodes of a real cluster get theirs by ``mosctl cluster init``, ``token`` and ``join``, one Python start after the other; what
those leave on the disk is the same.
"""

from __future__ import annotations

import functools
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from lab.node import ROOT, Node
from lab.state import LabError

if TYPE_CHECKING:
    from node.cluster.keys.pki import KeyStore

CLUSTER = "farhome"
STARTS = 8
"""Daemons that are started at a time."""
MEASURING = 0.1
"""Seconds."""


def is_available() -> bool:
    """Return whether there is a node daemon to be started."""
    return (ROOT / "cli" / "mosd.py").exists()


def measured_speed(configuration: str) -> str:
    """Return a line for every node.toml: the nodes are one machine, so they are of one speed, measured once. What `lab up --speed`
    says is the number of cores by then, since it bounds the share of a processor. Nothing if the configuration has a speed."""
    return "" if "speed" in tomllib.loads(configuration) else f"speed = {_speed():.3f}\n"


@functools.cache
def _speed() -> float:
    from node.common.sampling import calibrate_speed

    return calibrate_speed(MEASURING)


def start(nodes: list[Node]) -> None:
    """Make the cluster's keys with the first node as its authority, start mosd everywhere. Errors: LabError."""
    make_keys(nodes)
    with ThreadPoolExecutor(max_workers=STARTS) as pool:
        for started in [pool.submit(node.start_mosd) for node in nodes]:
            started.result()
    _await_acquaintance(nodes)


def make_keys(nodes: list[Node]) -> None:
    """Key and certificate for every node. Errors: LabError."""
    from node.cluster.keys.pki import KeyStore, PkiError  # the other verbs of lab start faster without it

    try:
        fill({node.name: KeyStore(node.root / "var/lib/farhome/pki") for node in nodes})
    except (PkiError, OSError) as error:
        raise LabError(f"the keys of the cluster cannot be made: {error}.") from error


def fill(stores: dict[str, KeyStore], days: float | None = None) -> None:
    """Put key and certificate of each named node into its store; the first is the authority. `days`: that certificates last.
    Errors: PkiError, OSError."""
    from node.cluster.keys.pki import new_key

    first, *others = stores
    authority = stores[first]
    authority.init(CLUSTER, first, days)
    certificate = authority.authority_certificate.read_bytes()
    for name in others:
        key = new_key()
        stores[name].install(key, authority.sign(key.public_key(), name), certificate)


def _await_acquaintance(nodes: list[Node], seconds: float = 40.0) -> None:
    """Return when every daemon knows of every node: from then on processes can be moved anywhere. Errors: LabError."""
    wanted = {node.name for node in nodes}
    deadline = time.monotonic() + seconds
    for node in nodes:
        while missing := wanted - {one["name"] for one in node.ask_mosd("nodes").get("nodes", ())}:
            if time.monotonic() > deadline:
                raise LabError(f"mosd on {node.name} does not hear of {', '.join(sorted(missing))}.")
            time.sleep(0.01)
