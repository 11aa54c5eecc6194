"""Peers that may speak to a node daemon, the treatment of all others, and the way of a node into a cluster."""

from __future__ import annotations

import datetime
import itertools
import os
import secrets
import signal
import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest

from node.cluster.keys.pki import CLOCK_SKEW, KeyStore, joining_context
from node.cluster.keys.tokens import Token, new_token
from tests.node.nodes import PORT, Cluster, Node, wait_for
from wire import frames

SOURCES = itertools.count(1)


def refusals(node: Node) -> list[str]:
    return [line for line in node.log.read_text().splitlines() if "refused peer" in line]


def resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def connected(node: Node) -> socket.socket:
    """Connects from an address of its own: for each address, a refusal of a kind is logged once a minute."""
    number = next(SOURCES)
    return socket.create_connection((node.address, PORT), timeout=20, source_address=(f"127.254.{number >> 8}.{number & 255}", 0))


def dial(node: Node, context: ssl.SSLContext) -> ssl.SSLSocket:
    return context.wrap_socket(connected(node))


def member(node: Node) -> ssl.SSLContext:
    return KeyStore(node.base / "state" / "pki").client_context()


def is_closed(connection: socket.socket) -> bool:
    """Whether the daemon closes the connection, within its timeout."""
    try:
        while connection.recv(4096):
            pass
    except (ssl.SSLError, ConnectionError):
        pass
    return True


@pytest.fixture
def stranger(tmp_path: Path) -> ssl.SSLContext:
    """Certificates of another cluster."""
    keys = KeyStore(tmp_path / "stranger")
    keys.init("other", "n2")
    context = keys.client_context()
    context.verify_mode = ssl.CERT_NONE
    return context


class Refused:
    """Does something to a node and asserts that it was refused with one line, at no cost, and harmed nothing."""

    def __init__(self, cluster: Cluster, words: str) -> None:
        self.cluster, self.node, self.words = cluster, cluster[1], words

    def __enter__(self) -> Node:
        assert self.node.daemon is not None
        self.before, self.memory = refusals(self.node), resident(self.node.daemon.pid)
        return self.node

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            return
        wait_for(lambda: len(refusals(self.node)) > len(self.before), message=f"refused: {self.words}")
        self.node.ok("mosctl", "status")
        (line,) = refusals(self.node)[len(self.before) :]
        assert self.words in line
        assert "Traceback" not in self.node.log.read_text()
        assert self.node.daemon is not None
        assert resident(self.node.daemon.pid) - self.memory < 8 << 20


@pytest.fixture
def pair(kept_pair: Cluster) -> Cluster:
    return kept_pair


def hello(version: object = 1, name: str = "n2") -> dict[str, Any]:
    return {"id": 1, "method": "hello", "params": {"version": version, "name": name, "address": "127.0.0.1", "port": 1}}


def test_without_a_certificate_nothing_but_join(pair: Cluster) -> None:
    with Refused(pair, "no certificate") as node, dial(node, joining_context()) as connection:
        frames.send(connection, hello())
        assert is_closed(connection)


def test_a_certificate_of_another_cluster(pair: Cluster, stranger: ssl.SSLContext) -> None:
    with Refused(pair, "not of this cluster") as node, dial(node, stranger) as connection:
        assert is_closed(connection)


def test_garbage_instead_of_tls(pair: Cluster) -> None:
    with Refused(pair, "no TLS") as node, connected(node) as connection:
        connection.sendall(os.urandom(4096))
        assert is_closed(connection)


def test_a_silent_connection_is_closed(pair: Cluster) -> None:
    with Refused(pair, "in time") as node, connected(node) as connection:
        assert is_closed(connection)


def test_garbage_within_tls(new_pair: Cluster) -> None:
    with Refused(new_pair, "not a message") as node, dial(node, member(new_pair[2])) as connection:
        connection.sendall(struct.pack(">I", 64) + b"\xc1" * 64)
        assert is_closed(connection)


@pytest.mark.parametrize("version", [2, *(pytest.param(one, marks=pytest.mark.soak) for one in ("1", 0, None, [1] * 100))])
def test_another_version(new_pair: Cluster, version: object) -> None:
    with Refused(new_pair, "version") as node, dial(node, member(new_pair[2])) as connection:
        frames.send(connection, hello(version))
        assert "version" in frames.receive(connection)["error"]["message"]
        assert is_closed(connection)


def test_another_name_than_in_the_certificate(new_pair: Cluster) -> None:
    with Refused(new_pair, "its certificate says 'n2'") as node, dial(node, member(new_pair[2])) as connection:
        frames.send(connection, hello(name="n7"))
        assert is_closed(connection)


@pytest.mark.parametrize("greeted", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_frame_of_two_gigabytes(new_pair: Cluster, greeted: bool) -> None:
    with Refused(new_pair, "2147483648 bytes") as node, dial(node, member(new_pair[2])) as connection:
        if greeted:
            frames.send(connection, hello())
            frames.receive(connection)
        connection.sendall(struct.pack(">I", 1 << 31))
        try:
            for _ in range(64):
                connection.sendall(b"x" * 65536)
        except OSError:
            pass
        assert is_closed(connection)


def test_a_member_that_asks_nonsense_is_answered(pair: Cluster) -> None:
    with dial(pair[1], member(pair[2])) as connection:
        frames.send(connection, hello())
        frames.receive(connection)
        for number, (method, parameters) in enumerate(
            [("gossip", {"payload": b"\xc1"}), ("gossip", {}), ("reserve", {}), ("reserve", {"home": "n1"}), ("explode", {}),
             ("cancel", {"key": 5}), ("expel", {"pid": "1"})]
        ):  # fmt: skip
            frames.send(connection, {"id": number, "method": method, "params": parameters})
            answer = frames.receive(connection)
            assert answer["id"] == number
            assert "error" in answer or not answer["result"] or method == "cancel"
    assert "Traceback" not in pair[1].log.read_text()
    assert pair[1].guests() == []


def test_a_member_cannot_speak_for_another(pair: Cluster) -> None:
    with dial(pair[1], member(pair[2])) as connection:
        frames.send(connection, hello())
        frames.receive(connection)
        place = {"pid": 5, "home": "n3", "uid": 0, "user": "root", "memory": 0}
        frames.send(connection, {"id": 2, "method": "reserve", "params": place})
        assert "its own processes only" in frames.receive(connection)["error"]["message"]


def test_a_token_is_good_once(tmp_path: Path, new_pair: Cluster) -> None:
    token = new_pair[1].ok("mosctl", "cluster", "token", "n3").strip()
    third = Node(tmp_path, "n3", new_pair.network, 3)
    assert third.ok("mosctl", "cluster", "join", token) == "n3 is in cluster farhome\n"
    (tmp_path / "other").mkdir()
    fourth = Node(tmp_path / "other", "n3", new_pair.network, 4)
    (new_pair[1].base / "state" / "pki" / "signed" / "n3").unlink()
    done = fourth.command("mosctl", "cluster", "join", token)
    assert done.returncode == 78
    assert "was used before" in done.stderr and done.stderr.count("\n") == 1
    assert not (fourth.base / "state" / "pki" / "node.key").exists()


def test_a_token_of_another_cluster_never_sends_its_secret(tmp_path: Path, new_pair: Cluster) -> None:
    token = Token.parse(new_pair[1].ok("mosctl", "cluster", "token", "n3"))
    forged = Token(token.host, token.port, "0" * 64, token.secret)
    node = Node(tmp_path, "n3", new_pair.network, 3)
    done = node.command("mosctl", "cluster", "join", str(forged))
    assert (done.returncode, done.stderr) == (78, "mosctl: the cluster that answered is not the one of the token\n")
    node.ok("mosctl", "cluster", "join", str(token))


def test_a_token_grows_old_and_names_are_not_given_twice(tmp_path: Path, pair: Cluster) -> None:
    keys = KeyStore(pair[1].base / "state" / "pki")
    old = new_token(keys, "n3", pair[1].address, PORT, -1)
    node = Node(tmp_path, "n3", pair.network, 3)
    assert "too old" in node.command("mosctl", "cluster", "join", str(old)).stderr
    for name in ("n1", "n2"):
        done = pair[1].command("mosctl", "cluster", "token", name)
        assert (done.returncode, done.stderr.count("\n")) == (78, 1)
        assert f"has the name {name} already" in done.stderr


@pytest.mark.parametrize("wanted", ["n1", "n4", *(pytest.param(name, marks=pytest.mark.soak) for name in ("n2", "n33", "N3"))])
def test_a_token_admits_only_the_node_that_it_names(tmp_path: Path, pair: Cluster, wanted: str) -> None:
    token = pair[1].ok("mosctl", "cluster", "token", "n3").strip()
    (tmp_path / "other").mkdir()
    thief = Node(tmp_path / "other", wanted, pair.network, 5)
    done = thief.command("mosctl", "cluster", "join", token)
    assert (done.returncode, done.stderr.count("\n")) == (78, 1)
    assert "not valid for a node" in done.stderr and "already" not in done.stderr  # nor does it learn which names there are
    assert not (thief.base / "state" / "pki" / "node.key").exists()
    assert pair[1].nodes() == {"n1", "n2"}


@pytest.mark.parametrize("name", ["home", "../x", "a b", ""])
def test_a_token_is_for_a_node_that_can_be(pair: Cluster, name: str) -> None:
    done = pair[1].command("mosctl", "cluster", "token", name)
    assert (done.returncode, done.stderr.count("\n")) == (64, 1)


def test_joining_an_absent_node_or_with_nonsense_fails(tmp_path: Path, pair: Cluster) -> None:
    node = Node(tmp_path, "n3", pair.network, 3)
    absent = str(Token(pair.network + ".99", PORT, "0" * 64, "0" * 32))
    for token, code in (("nonsense", 64), ("a.b@c", 64), (absent, 78)):
        done = node.command("mosctl", "cluster", "join", token)
        assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr


def test_a_node_that_joins_a_running_daemon_is_known_by_all(tmp_path: Path, new_pair: Cluster) -> None:
    node = Node(tmp_path, "n3", new_pair.network, 3)
    new_pair.nodes.append(node)
    node.peers = []  # the token's address is enough
    node.configure()
    node.start()
    node.ok("mosctl", "cluster", "join", new_pair[1].ok("mosctl", "cluster", "token", "n3").strip())
    wait_for(lambda: all(one.nodes() == {"n1", "n2", "n3"} for one in new_pair.nodes))


def test_only_the_node_that_made_the_cluster_makes_tokens(pair: Cluster) -> None:
    done = pair[2].command("mosctl", "cluster", "token", "n3")
    assert (done.returncode, done.stderr.count("\n")) == (78, 1)
    assert pair[1].command("mosctl", "cluster", "init").returncode == 78


def test_a_cluster_is_made_by_commands(tmp_path: Path) -> None:
    network = f"127.{secrets.randbelow(250) + 2}.{secrets.randbelow(250) + 2}"
    first, second = (Node(tmp_path, f"n{number}", network, number, "[balance]\nenabled = false") for number in (1, 2))
    try:
        assert first.ok("mosctl", "cluster", "init", "--days", "5") == "cluster farhome; its authority and first node is n1\n"
        first.start()
        second.ok("mosctl", "cluster", "join", first.ok("mosctl", "cluster", "token", "n2").strip())
        second.start()
        wait_for(lambda: first.nodes() == second.nodes() == {"n1", "n2"})
        certificate = KeyStore(second.base / "state" / "pki").certificate()
        assert certificate.not_valid_after_utc - certificate.not_valid_before_utc - CLOCK_SKEW == datetime.timedelta(days=5)
    finally:
        for node in (first, second):
            node.kill(signal.SIGTERM)
