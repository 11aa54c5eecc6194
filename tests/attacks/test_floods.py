"""Floods: places for guests that never come, halves of requests, introductions of strangers. The node answers, and keeps little."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node.cluster.front.front import bound
from node.cluster.front.gossip_encryption import INTRODUCTION_REPLY, INTRODUCTION_REQUEST, DatagramCiphers
from node.cluster.keys.pki import KeyStore
from node.guests.admission import PLACES_OF_HOME
from node.requests.control import CONNECTIONS_OF_USER, REQUEST
from tests.node.cluster.test_peers import dial, hello
from tests.node.cluster.test_peers import member as context_of
from tests.node.nodes import PORT, Cluster, Node, wait_for
from wire import frames

SPARE = 40
"""Descriptors that a daemon may have for what others do meanwhile."""

HALVES = """
import socket, struct, sys
path, count, size, sent = sys.argv[1], *map(int, sys.argv[2:])
held = []
for _ in range(count):
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(1)
    try:
        one.connect(path)
        one.sendall(struct.pack("!I", size) + b"x" * sent)
        held.append(one)
    except OSError:
        pass
print("held", flush=True)
sys.stdin.readline()
"""


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def memory(pid: int) -> int:
    """Bytes that a process has of its own."""
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def daemon(node: Node) -> int:
    assert node.daemon is not None
    return node.daemon.pid


def reserve(connection: ssl.SSLSocket, pid: int) -> str:
    """Asks for a place; returns whether it was given, or why not."""
    place = {"pid": pid, "home": "n2", "uid": 1001, "user": "anna", "memory": 0}
    frames.send(connection, {"id": pid, "method": "reserve", "params": place})
    answer = frames.receive(connection)
    return "given" if "result" in answer else str(answer["error"]["message"])


@pytest.mark.soak
def test_places_without_an_arrival_are_bounded_for_each_home(pair: Cluster) -> None:
    n1, n2 = pair.nodes
    before = descriptors(daemon(n1))
    with dial(n1, context_of(n2)) as connection:
        frames.send(connection, hello())
        frames.receive(connection)
        answers = Counter(reserve(connection, 50000 + number) for number in range(PLACES_OF_HOME + 20))
        assert answers == {"given": PLACES_OF_HOME, "too many guests are on their way to it": 20}
        assert len(n1.guests()) == len(n1.programs()) == PLACES_OF_HOME
        assert descriptors(daemon(n1)) - before < 4 * PLACES_OF_HOME + SPARE
        frames.send(connection, {"id": 1, "method": "cancel", "params": {"key": "n2-50007", "ended": True}})
        frames.receive(connection)
        wait_for(lambda: len(n1.guests()) < PLACES_OF_HOME)
        assert reserve(connection, 60000) == "given"
    assert n1.nodes() == {"n1", "n2"}
    assert "Traceback" not in n1.log.read_text()


@contextmanager
def halves(node: Node, user: int, size: int, sent: int) -> Iterator[None]:
    """Holds as many connections of that user as it gets, each with the beginning of a request."""
    words = [str(node.run / "mosd.sock"), str(CONNECTIONS_OF_USER + 50), str(size), str(sent)]
    holder = subprocess.Popen(
        ["/usr/bin/python3", "-c", HALVES, *words], user=user, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield
    finally:
        holder.communicate("\n", timeout=30)


def test_halves_of_requests_hold_neither_much_memory_nor_the_places_of_others(pair: Cluster) -> None:
    n1 = pair[1]
    before, had = descriptors(daemon(n1)), memory(daemon(n1))
    with halves(n1, 1001, REQUEST, REQUEST - 1), halves(n1, 1002, 1 << 20, (1 << 20) - 1), halves(n1, 1003, 3, 0):
        assert {node["name"] for node in n1.ask("nodes")["nodes"]} == {"n1", "n2"}
        assert descriptors(daemon(n1)) - before <= 2 * 3 * CONNECTIONS_OF_USER + SPARE  # each has its process's pidfd beside it
        # A buffer of asyncio may be twice what is in it.
        assert memory(daemon(n1)) - had < 3 * CONNECTIONS_OF_USER * REQUEST + (16 << 20)
    wait_for(lambda: descriptors(daemon(n1)) - before <= SPARE)
    assert "Traceback" not in n1.log.read_text()


class Introductions:
    """A stranger at an address of its own that introduces itself endlessly, by a certificate of another cluster, and asks for n1's."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        stranger = KeyStore(cluster.base / "stranger")
        stranger.init("other", "n7")
        ciphers = DatagramCiphers(stranger, 1)
        self._words = [
            ciphers.introduction(INTRODUCTION_REQUEST),
            ciphers.introduction(INTRODUCTION_REPLY),
            INTRODUCTION_REPLY + os.urandom(500),
            b"\x01" + os.urandom(100),
        ]
        self._to = (node.address, PORT)
        self._socket = bound(socket.SOCK_DGRAM, f"{cluster.network}.77", PORT)
        self._socket.setblocking(False)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.sent = 0

    def _work(self) -> None:
        while not self._end.wait(0.002):
            for word in self._words * 5:
                try:
                    self._socket.sendto(word, self._to)
                except BlockingIOError:
                    continue
                self.sent += 1

    def __enter__(self) -> Introductions:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(20)
        self._socket.close()


def front(node: Node) -> int:
    """The process that reads what comes from the network."""
    tasks = Path(f"/proc/{daemon(node)}/task").iterdir()
    children = [pid for task in tasks for pid in (task / "children").read_text().split()]
    return next(int(pid) for pid in children if b"front" in Path(f"/proc/{pid}/cmdline").read_bytes())


def test_a_member_meets_a_node_to_which_strangers_introduce_themselves_without_end(pair: Cluster) -> None:
    n1, n2 = pair.nodes
    reader = front(n1)
    before, had, lines = descriptors(reader), memory(reader), n1.log.read_text().count("\n")
    with Introductions(pair, n1) as flood:
        wait_for(lambda: flood.sent > 4000)
        n2.kill()
        n2.restart()
        wait_for(lambda: n1.nodes() == n2.nodes() == {"n1", "n2"}, 40)
        assert reader == front(n1)
        assert descriptors(reader) - before <= 10
        assert memory(reader) - had < 16 << 20
        assert flood.sent > 4000
    logged = n1.log.read_text().splitlines()[lines:]
    assert len([line for line in logged if "datagrams" in line]) <= 4, logged
