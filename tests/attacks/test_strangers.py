"""Strangers on the network: they open connections and say nothing, or nonsense; members get in all the same, and the log stays short."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.node import Node, NodeProcess
from tests.mfs.nodes import Pair, until
from wire import frames

PYTHON = "/usr/bin/python3"
TRIES = 40
ESTABLISHED, SYN_RECEIVED = "01", "03"
"""States of a connection in /proc/net/tcp."""

HOLD = """
import resource, select, socket, sys
host, port, count, word = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), bytes.fromhex(sys.argv[4])
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
open_ = {}
watch = select.poll()
watch.register(0, select.POLLIN)
reported = False
opened = 0
def connect():
    global opened
    s = socket.socket()
    s.settimeout(5)
    try:
        s.connect((host, port))
        s.send(word) if word else None
    except OSError:
        s.close()
        return
    s.setblocking(False)
    open_[s.fileno()] = s
    watch.register(s, select.POLLIN)
    opened += 1
while True:
    for _ in range(min(100, count - len(open_))):
        connect()
    if opened >= count and not reported:
        print("holds", flush=True)
        reported = True
    for fd, _ in watch.poll(20):
        if fd == 0:
            sys.exit(0)
        watch.unregister(fd)
        open_.pop(fd).close()
"""

PROBE = """
import os, socket, ssl, sys
host, port, tries, word, answer = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), bytes.fromhex(sys.argv[4]), int(sys.argv[5])
pki = "/var/lib/farhome/pki/"
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname = False
context.load_cert_chain(pki + "node.pem", pki + "node.key")
context.load_verify_locations(pki + "authority.pem")
got = 0
for number in range(tries):
    try:
        with context.wrap_socket(socket.create_connection((host, port), 30)) as s:
            s.settimeout(30)
            s.sendall(word.replace(b"SESSION!", os.urandom(8)))
            seen = b""
            while len(seen) < answer:
                part = s.recv(4096)
                if not part:
                    break
                seen += part
            got += len(seen) >= answer
    except OSError as error:
        print(error, file=sys.stderr)
print(got)
"""

JUNK = """
import os, random, socket, sys
random.seed(5)
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for number in range(count):
    try:
        with socket.create_connection((host, port), 5) as s:
            s.settimeout(0.02)
            hello = b"\\x16\\x03\\x01\\xff\\xff" + os.urandom(90)
            s.sendall(random.choice([os.urandom(300), b"GET / HTTP/1.0\\r\\n\\r\\n", hello, bytes(40)]))
            s.recv(100)
    except OSError:
        pass
"""

MFS_HELLO = struct.pack("<5I", 0x314D4846, 4, 2, 0, 0) + b"attacks!" + b"SESSION!"


@pytest.fixture(scope="module")
def lab() -> Iterator[Pair]:
    pair = Pair(3)
    yield pair
    pair.lab.down()


def address(node: Node) -> str:
    return node.address


def probe(lab: Pair, number: int, port: int) -> int:
    """Returns how often of TRIES a member gets in at n1."""
    hello = frames.encode({"id": 1, "method": "hello", "params": {"version": 1, "name": f"n{number}"}})
    word, size = (hello, 4) if port == 7226 else (MFS_HELLO, len(MFS_HELLO))
    said = lab.python(number, PROBE, address(lab[1]), str(port), str(TRIES), word.hex(), str(size), timeout=500)
    return int(said)


def hold(lab: Pair, number: int, port: int, count: int, word: bytes) -> NodeProcess:
    """Keeps that many connections from that node to n1 open, and reopens each that is closed."""
    attacker = lab.start(number, HOLD, address(lab[1]), str(port), str(count), word.hex())
    assert attacker.stdout is not None
    assert attacker.stdout.readline() == "holds\n"
    return attacker


def end(attacker: NodeProcess) -> None:
    assert attacker.stdin is not None
    attacker.stdin.close()
    assert attacker.wait(30) == 0


@pytest.mark.parametrize(
    ("port", "count", "source", "word"),
    [
        (7226, 64, 3, b""), (7226, 1000, 2, b""), (7227, 64, 3, b"\x16\x03\x01"), (7227, 1000, 2, b""),
        *(pytest.param(*one, marks=pytest.mark.soak) for one in (
            (7226, 64, 3, b"\x16\x03\x01"), (7227, 64, 3, b""), (7226, 1000, 3, b""), (7227, 1000, 3, b""),
        )),
    ],
)  # fmt: skip
def test_connections_that_say_nothing_keep_no_member_out(lab: Pair, port: int, count: int, source: int, word: bytes) -> None:
    """With callers from another node, from the member's own address, and callers that begin a handshake and stop there."""
    attacker = hold(lab, source, port, count, word)
    try:
        assert probe(lab, 2, port) == TRIES
    finally:
        end(attacker)


def connections(lab: Pair, here: int, there: int) -> dict[tuple[str, str], str]:
    """The states of the connections that node `here` has with `there`, by both ports (`here`'s first): /proc/net/tcp."""
    address = f"{int.from_bytes(socket.inet_aton(lab[there].address), 'little'):08X}"
    found = {}
    for line in Path(f"/proc/{lab[here].state.pid}/net/tcp").read_text().splitlines()[1:]:
        _, ours, theirs, state, *_ = line.split()
        if theirs.startswith(address):
            found[ours.partition(":")[2], theirs.partition(":")[2]] = state
    return found


@pytest.mark.parametrize("port", [7226, 7227])
def test_a_connection_that_says_nothing_is_not_accepted_at_once(lab: Pair, port: int) -> None:
    """The kernel keeps it: so it does not delay callers that have sent something. The caller sees it as made, the server does not."""

    def are_kept() -> bool:
        made = [ports for ports, state in connections(lab, 3, 1).items() if state == ESTABLISHED]
        seen = connections(lab, 1, 3)
        return sum(seen.get((theirs, ours)) == SYN_RECEIVED for ours, theirs in made) >= 64

    attacker = hold(lab, 3, port, 64, b"")
    try:
        until(are_kept, "64 connections that the kernel keeps", 60)  # when each has waited for its time, others take their places
    finally:
        end(attacker)


def test_a_flood_costs_neither_descriptors_nor_threads(lab: Pair) -> None:
    inside = lab.pids(lab[1])["server"]
    server = lab[1].root / f"proc/{inside}"

    def count(what: str) -> int:
        return len(list((server / what).iterdir()))

    descriptors, threads = count("fd"), count("task")
    attackers = [hold(lab, 3, 7227, 500, word) for word in (b"", b"\x16")]
    try:
        assert count("fd") - descriptors < 256 + 2 * 32 + 32  # places of one address; two for each handshake; what others do meanwhile
        assert count("task") - threads < 32 + 32
    finally:
        for attacker in attackers:
            end(attacker)


@pytest.mark.parametrize("port", [7226, 7227])
def test_the_log_grows_by_minutes_not_by_strangers(lab: Pair, port: int) -> None:
    log = lab[1].root / "run/farhome/mosd.log"
    before = log.read_text().count("\n")
    lab.python(3, JUNK, address(lab[1]), str(port), "600", timeout=300)
    lines = log.read_text().splitlines()[before:]
    assert len([line for line in lines if "refused" in line or "stranger" in line or "turned away" in line]) <= 12, lines[:20]
