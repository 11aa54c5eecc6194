"""Membership of the cluster: nodes are removed everywhere and for good, renew themselves, and may be signed for by several authorities."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import secrets
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from balancer.gossip.datagram import SIGNATURE, Card, Datagram
from balancer.gossip.plain import plain
from node.cluster.keys.forms import Stated, point_of
from node.cluster.keys.pki import CLOCK_SKEW, KeyStore, new_key
from node.cluster.keys.removals import MOST, Removals
from node.cluster.renewal import is_due
from node.common.config import load
from node.common.paths import Paths
from node.daemon import Daemon
from tests.node.cluster.test_peers import dial, hello, is_closed, member
from tests.node.nodes import NO_FILES, PORT, Cluster, Node, wait_for
from wire import frames

PATIENCE = 10.0 * 6
"""Seconds within which a removal is everywhere: 10, times six for a machine that is busy with other tests."""


def knows(node: Node, other: str) -> bool:
    return other in node.nodes() or other in json.loads(node.ok("mosctl", "status", "--json"))["peers"]


def store(node: Node) -> KeyStore:
    return KeyStore(node.base / "state" / "pki")


def is_refused(node: Node, context: ssl.SSLContext, name: str) -> bool:
    """Returns whether the node refuses a peer with those keys."""
    with dial(node, context) as connection:
        frames.send(connection, hello(name=name))
        try:
            answer = frames.receive(connection)
        except (OSError, frames.WireError):
            return True
        if "error" in answer:
            return is_closed(connection)
    return False


@pytest.fixture
def pair(kept_pair: Cluster) -> Cluster:
    return kept_pair


def test_a_removed_node_is_out_everywhere_and_for_good(three: Cluster, tmp_path: Path) -> None:
    n1, n2, n3 = three.nodes
    stays = member(n3)
    begun = time.monotonic()
    assert n1.ok("mosctl", "cluster", "remove", "n3") == "n3 is removed from the cluster; 1 other nodes know\n"
    wait_for(lambda: not knows(n1, "n3") and not knows(n2, "n3"), PATIENCE)
    assert time.monotonic() - begun < PATIENCE
    assert is_refused(n1, stays, "n3") and is_refused(n2, stays, "n3")
    assert "n3" not in n2.nodes()
    n1.restart()
    n2.restart()
    n3.restart()
    wait_for(lambda: n1.nodes() == n2.nodes() == {"n1", "n2"})
    assert is_refused(n1, stays, "n3") and is_refused(n2, stays, "n3")
    wait_for(lambda: "this node was removed from the cluster" in n3.log.read_text())
    assert n3.nodes() == {"n3"}
    # A removed node that the authority admits again is a member again, with another key; the old key stays worthless.
    n3.ok("mosctl", "cluster", "join", n1.ok("mosctl", "cluster", "token", "n3").strip())
    wait_for(lambda: all(node.nodes() == {"n1", "n2", "n3"} for node in three.nodes), 30)
    assert is_refused(n1, stays, "n3") and is_refused(n2, stays, "n3")


async def test_what_a_removed_node_had_said_before_does_not_bring_it_back(tmp_path: Path) -> None:
    """The front hears of a removal after mosd does, and has sent a datagram, an answer and a greeting of the node until then."""
    (tmp_path / "node.toml").write_text('name = "n1"\naddress = "127.0.0.1"\nspeed = 1.0\n' + NO_FILES)
    paths = Paths(run=tmp_path / "run", state=tmp_path / "state", config=tmp_path / "node.toml")
    paths.make_run_directories()
    KeyStore(paths.pki).init("test", "n1")
    parts = Daemon(paths, load(paths.config)).parts
    front, key = parts.front, new_key()
    statement = plain(Datagram(Card("n3", "127.0.0.3", 7226, 1, 4.0, 1.0, 1 << 34, 1, 8, bytes(SIGNATURE))))

    def shows_a_certificate() -> None:
        shown = parts.keys.certify(key.public_key(), "n3")
        since, until = shown.not_valid_before_utc.timestamp(), shown.not_valid_after_utc.timestamp()
        front._on_met("n3", shown.public_bytes(Encoding.DER), point_of(key.public_key()), since, until, f"{shown.serial_number:x}")

    await parts.cluster.gossiping.open(front, 1, f"127.{secrets.randbelow(250) + 2}.{secrets.randbelow(250) + 2}.1", PORT)
    shows_a_certificate()
    front._on_datagram("n3", statement)
    assert set(parts.cluster.gossip.known.peers()) == {"n3"}
    parts.keys.remove("n3")
    parts.clustering.removed({"n3"})
    front._on_datagram("n3", statement)
    front._on_opened("n3", statement)
    front._on_request(1, "n3", "127.0.0.3:5", "hello", {"address": "127.0.0.3", "port": 7226})
    await asyncio.gather(*front._requests.values())
    assert parts.cluster.gossip.known.peers() == {}
    shows_a_certificate()  # it was let in again
    front._on_datagram("n3", statement)
    assert set(parts.cluster.gossip.known.peers()) == {"n3"}
    parts.cluster.gossiping.close()
    front.close()


def test_connections_that_there_are_end(three: Cluster) -> None:
    with dial(three[2], member(three[3])) as connection:
        frames.send(connection, hello(name="n3"))
        assert "result" in frames.receive(connection)
        three[1].ok("mosctl", "cluster", "remove", "n3")
        connection.settimeout(PATIENCE)
        assert is_closed(connection)


def test_a_node_that_was_off_hears_it_before_it_believes_the_removed_one(three: Cluster) -> None:
    n1, n2, n3 = three.nodes
    keys = member(n3)
    n2.kill()
    assert "n2 cannot be reached" in n1.ok("mosctl", "cluster", "remove", "n3")
    (n2.run / "peers.json").write_text(json.dumps({"n3": [n3.address, 7226], "n1": [n1.address, 7226]}))
    n2.restart()
    assert is_refused(n2, keys, "n3")
    assert not knows(n2, "n3")
    assert "n3" not in (n2.run / "peers.json").read_text()


def test_only_root_at_an_authority_removes_and_an_absent_node_cannot_be_removed(pair: Cluster) -> None:
    for node, words, code in (
        (pair[2], ["remove", "n1"], 75), (pair[1], ["remove", "n9"], 75), (pair[1], ["remove", "n1"], 75), (pair[1], ["remove", "a b"], 64),
        (pair[1], ["resign"], 75), (pair[2], ["add-authority", "n1"], 75), (pair[1], ["add-authority", "n9"], 75),
    ):  # fmt: skip
        done = node.command("mosctl", "cluster", *words)
        assert (done.returncode, done.stderr.count("\n")) == (code, 1), (words, done.stderr)
    assert pair[1].nodes() == {"n1", "n2"}


def test_removals_from_a_peer_count_only_with_the_authoritys_signature(pair: Cluster) -> None:
    second = int(time.time())
    with dial(pair[1], member(pair[2])) as connection:
        frames.send(connection, hello())
        frames.receive(connection)
        for lines in ([["n2", second, b"\0" * 70]], [["n1", second, b""]], [[1, 2, 3]], "x", [["n1"]], [["n1", second, b"x"]] * (MOST + 1)):
            frames.send(connection, {"id": 2, "method": "removals", "params": {"lines": lines}})
            answer = frames.receive(connection)
            assert answer.get("result", []) == []
    assert not (pair[1].base / "state" / "pki" / "removed").exists()
    assert pair[1].nodes() == {"n1", "n2"}


def test_the_list_of_removed_nodes_is_bounded_and_never_goes_back(first: KeyStore, tmp_path: Path) -> None:
    authority, key = first.authority(), first.authority_private_key()
    for number in range(MOST):
        Removals(tmp_path / "unused")
        first.removals._lines[f"x{number}"] = f"x{number}", 1, b""
    with pytest.raises(ValueError, match="anew"):
        first.removals.add(authority, key, "n2", 5)
    first.removals._lines.clear()
    for second in (100, 50):
        first.removals.add(authority, key, "n2", second)
    assert first.removals.names() == {"n2": 101}
    other = Removals(tmp_path / "removed")
    assert other.merge(authority, first.removals.lines()) == {"n2"}
    assert other.merge(authority, first.removals.lines()) == set()
    assert other.digest() == first.removals.digest() != bytes(4)
    again = Removals(tmp_path / "removed")
    assert again.load(authority) == {"n2"}
    (tmp_path / "removed").write_text("n3 5 00ff\nn2 900 " + "00" * 70 + "\nnonsense\n\xff\n")
    assert again.load(authority) == set()
    assert again.names() == {"n2": 101}


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes whose certificates last some seconds."""
    tmp_path.chmod(0o755)
    cluster = Cluster(tmp_path, 2, days=SHORT / 86400)
    yield cluster
    cluster.down()


SHORT = 24.0


def test_certificates_are_renewed_before_they_end(short: Cluster) -> None:
    old = store(short[2]).certificate()
    key = (short[2].base / "state" / "pki" / "node.key").read_bytes()
    wait_for(lambda: all(store(node).certificate().not_valid_after_utc > old.not_valid_after_utc for node in short.nodes), SHORT + 10)
    over = old.not_valid_after_utc.timestamp() + 1
    wait_for(lambda: time.time() > over, SHORT + 10)
    assert (short[2].base / "state" / "pki" / "node.key").read_bytes() == key
    with dial(short[1], member(short[2])) as connection:
        frames.send(connection, hello())
        assert "result" in frames.receive(connection)
    assert short[1].nodes() == short[2].nodes() == {"n1", "n2"}


def test_a_certificate_is_renewed_for_its_own_key_and_name_alone(pair: Cluster) -> None:
    keys = store(pair[2])
    with dial(pair[1], member(pair[2])) as connection:
        frames.send(connection, hello())
        frames.receive(connection)
        for request in (keys.request(new_key(), "n2"), keys.request(keys.private_key(), "n1"), b"x", None, keys.request(new_key(), "n9")):
            frames.send(connection, {"id": 2, "method": "renew", "params": {"request": request}})
            assert "error" in frames.receive(connection)
        frames.send(connection, {"id": 3, "method": "renew", "params": {"request": keys.request(keys.private_key(), "n2")}})
        stated = Stated.from_wire("n2", frames.receive(connection)["result"])
    renewed = x509.load_pem_x509_certificate(keys.made_again(stated))
    assert renewed.public_key() == keys.private_key().public_key()
    assert Stated.of(renewed) == stated
    for changed in (replace(stated, since=stated.since - 1), replace(stated, serial=stated.serial ^ 1), replace(stated, name="n1"),
                    replace(stated, point=point_of(new_key().public_key()))):  # fmt: skip
        with pytest.raises(ValueError, match="not of this cluster"):
            keys.made_again(changed)
    life = renewed.not_valid_after_utc - renewed.not_valid_before_utc - CLOCK_SKEW
    assert life == datetime.timedelta(days=30)


def test_when_a_certificate_is_due(first: KeyStore) -> None:
    certificate = first.certificate()
    end = certificate.not_valid_after_utc
    for days, due in ((30, False), (11, False), (9, True), (0, True), (-1, True)):
        assert is_due(certificate, end - datetime.timedelta(days=days)) is due
    # One of ten years, as they were made once, is replaced at once, and counts until then.
    first.life.write_text("3650\n")
    old = x509.load_pem_x509_certificate(first.sign(new_key().public_key(), "n2"))
    assert is_due(old, datetime.datetime.now(datetime.UTC))
    assert old.not_valid_after_utc > datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=3600)


def test_more_than_one_node_signs_and_the_key_is_handed_over(three: Cluster, tmp_path: Path) -> None:
    n1, n2, _ = three.nodes
    assert "cannot sign" in n2.command("mosctl", "cluster", "remove", "n3").stderr
    assert n1.ok("mosctl", "cluster", "add-authority", "n2") == "n2 can sign for the cluster, too\n"
    assert "has the name n3 already" in n2.command("mosctl", "cluster", "token", "n3").stderr
    done = n1.command("mosctl", "cluster", "remove", "n2")
    assert (done.returncode, "resign" in done.stderr) == (75, True)
    n4 = Node(tmp_path, "n4", three.network, 4)
    n4.ok("mosctl", "cluster", "join", n2.ok("mosctl", "cluster", "token", "n4").strip())
    assert n1.ok("mosctl", "cluster", "resign") == "n2 can sign for the cluster, this node no longer\n"
    assert not store(n1).is_authority()
    assert "n3 is removed" in n2.ok("mosctl", "cluster", "remove", "n3")
    wait_for(lambda: not knows(n1, "n3"), PATIENCE)
    assert "n1 is removed" in n2.ok("mosctl", "cluster", "remove", "n1")


def test_a_key_that_is_not_the_authoritys_is_not_taken(pair: Cluster) -> None:
    other = KeyStore(pair.base / "other")
    other.init("other", "n2")
    with dial(pair[1], member(pair[2])) as connection:
        frames.send(connection, hello())
        frames.receive(connection)
        for key in (other.authority_number(), other.authority_key.read_bytes(), b"", bytes(32), b"\xff" * 32, b"x" * 100, None):
            frames.send(connection, {"id": 2, "method": "authority", "params": {"key": key}})
            assert "error" in frames.receive(connection)
        frames.send(connection, {"id": 2, "method": "signed", "params": {"signed": b"[]", "signature": b"x"}})
        assert "error" in frames.receive(connection)
    assert os.path.exists(pair[1].base / "state" / "pki" / "authority.key")
