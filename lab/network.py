"""Network of a lab: a bridge in a network namespace of its own (the switch), one veth pair per node.

The switch is nobody's: it touches neither the host's links nor its packet filter, and goes when its one process goes.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import time
from collections.abc import Sequence, Set
from pathlib import Path

BRIDGE = "br0"
INTERFACE = "eth0"
NOBODY = "02:fa:00:00:00:fe"
"""A link address that no node has: the switch delivers what is sent there to nobody."""

DELAY = "delay"
"""The device of the switch that holds packets for a while (kernel_helpers/namespaces/delay.c)."""
MOST_DELAY = 1.0
"""Seconds."""
DELAYED_MOST = 10_000
"""Packets that wait to be held."""

_RATE = re.compile(r"(\d+(?:\.\d+)?)(k|m|g)bit", re.IGNORECASE)
_SECONDS = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(us|ms|s)")


class NetworkError(Exception):
    """ip or tc failed; the message is its own."""


def subnet(lab: str) -> str:
    """Return the first three numbers of the lab's addresses, from its name. Two labs may share one: they never meet."""
    digest = hashlib.sha256(lab.encode()).digest()
    return f"10.{64 + digest[0] % 64}.{digest[1]}"


def link_address(address: str) -> str:
    """The link-layer address that belongs to an IPv4 address."""
    return "02:fa:" + ":".join(f"{int(number):02x}" for number in address.split("."))


def parse_rate(text: str) -> int:
    """Bits per second of ``100mbit``. Errors: ValueError."""
    match = _RATE.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is no bandwidth: write it as 512kbit, 100mbit or 1gbit")
    factor = {"k": 1e3, "m": 1e6, "g": 1e9}[match[2].lower()]
    return round(float(match[1]) * factor)


def parse_seconds(text: str) -> float:
    """Return seconds of ``0.2ms``. Errors: ValueError."""
    match = _SECONDS.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is no such time: write it as 200us, 0.2ms or 0.1s")
    return float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[match[2]]


def check_delay(delay: float, jitter: float) -> None:
    """Whether links can have that delay, and jitter (seconds). Errors: ValueError, one sentence."""
    if not 0 <= delay <= MOST_DELAY:
        raise ValueError(f"a link delays packets by 0 to {MOST_DELAY:g} s, not by {delay:g}")
    if not 0 <= jitter <= delay:
        raise ValueError(f"jitter is a part of the delay, so it cannot be {jitter:g} s of {delay:g}")


def _batch(tool: str, namespaces: Sequence[tuple[int, Sequence[str]]]) -> None:
    """Run ``tool`` on lines of commands, in the network namespaces of processes, all at once."""
    running = [
        (
            subprocess.Popen(
                ["nsenter", "-t", str(pid), "-n", tool, "-batch", "-"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ),
            "\n".join(lines) + "\n",
        )
        for pid, lines in namespaces
    ]
    failures = []
    for process, text in running:
        _, message = process.communicate(text, timeout=20)
        if process.returncode:
            failures.append(f"{tool}: {message.strip()}")
    if failures:
        raise NetworkError("; ".join(failures))


def connect(switch: int, nodes: dict[str, tuple[int, str]], bandwidth: int | None) -> None:
    """Join nodes (name -> process 1, address) by the switch; ``bandwidth`` in bits per second, per node and direction.

    Errors: NetworkError.
    """
    lines = [f"link add {BRIDGE} type bridge", f"link set {BRIDGE} up"]
    for name, (pid, address) in nodes.items():
        lines += [
            f"link add {name} type veth peer name {INTERFACE} address {link_address(address)} netns {pid}",
            f"link set {name} master {BRIDGE}",
            f"link set {name} up",
        ]
    _batch("ip", [(switch, lines)])
    _batch(
        "ip",
        [
            (pid, ["link set lo up", f"address add {address}/24 dev {INTERFACE}", f"link set {INTERFACE} up"])
            for pid, address in nodes.values()
        ],
    )
    if bandwidth:
        burst = max(16_000, bandwidth // 8 // 200)
        limit = f"root tbf rate {bandwidth}bit burst {burst} latency 50ms"
        _batch(
            "tc",
            [(pid, [f"qdisc add dev {INTERFACE} {limit}"]) for pid, _ in nodes.values()]
            + [(switch, [f"qdisc add dev {name} {limit}" for name in nodes])],
        )


def delay(switch: int, nodes: dict[str, str], timeout: float = 10.0) -> None:
    """Lead what nodes (name -> address) send through the switch's device that holds packets, which its process makes.

    The device gives them back to the bridge, which learns nobody's address from it. Errors: NetworkError.
    """
    deadline = time.monotonic() + timeout
    while subprocess.run(
        ["nsenter", "-t", str(switch), "-n", "ip", "link", "show", DELAY], capture_output=True, check=False, timeout=10
    ).returncode:
        if time.monotonic() > deadline:
            raise NetworkError("the program that delays packets does not start")
        time.sleep(0.01)
    flags = "learning off flood off mcast_flood off bcast_flood off"
    lines = [f"link set {DELAY} txqueuelen {DELAYED_MOST} master {BRIDGE} up", f"link set {DELAY} type bridge_slave {flags}"]
    _batch("ip", [(switch, lines)])
    entries = [f"fdb replace {link_address(address)} dev {name} master static" for name, address in nodes.items()]
    _batch("bridge", [(switch, entries)])
    lines = []
    for name in nodes:
        lines.append(f"qdisc add dev {name} ingress")
        lines.append(f"filter add dev {name} parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev {DELAY}")
    _batch("tc", [(switch, lines)])


def receive_on(node: int, processors: Set[int]) -> None:
    """Have a node (its process 1) do on its own processors what there is to do for packets that come to it: else their sender's would.

    Errors: NetworkError.
    """
    queue = Path(f"/proc/{node}/root/sys/class/net/{INTERFACE}/queues/rx-0/rps_cpus")
    try:
        queue.write_text(f"{sum(1 << number for number in processors):x}")
    except OSError as error:
        raise NetworkError(f"{queue.name}: {error.strerror}") from error


def unplug(switch: int, name: str) -> None:
    """Take a node's cable out: what it sends from now on, its last words too, reaches nobody. Errors: NetworkError."""
    _batch("ip", [(switch, [f"link set {name} down"])])


def drop_between(first: tuple[int, str], second: tuple[int, str]) -> None:
    """Silently lose all packets between two nodes (process 1, address), both ways; TCP connections just stall.

    Each gets a fixed neighbour entry that sends the other's packets to nobody. Errors: NetworkError.
    """
    _batch(
        "ip",
        [
            (pid, [f"neighbour replace {address} lladdr {NOBODY} dev {INTERFACE} nud permanent"])
            for pid, address in ((first[0], second[1]), (second[0], first[1]))
        ],
    )


def join_again(first: tuple[int, str], second: tuple[int, str]) -> None:
    """Undo ``drop_between``. Errors: NetworkError."""
    _batch(
        "ip",
        [
            (pid, [f"neighbour replace {address} lladdr {link_address(address)} dev {INTERFACE} nud reachable"])
            for pid, address in ((first[0], second[1]), (second[0], first[1]))
        ],
    )
