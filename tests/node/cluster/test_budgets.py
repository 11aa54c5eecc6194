"""Limits on what strangers, peers and local users may take of mosd: places, lines, lists."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import stat
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from node.cluster.front import limited_log, pending
from node.cluster.front.limited_log import LimitedLog
from node.cluster.front.peer_server import CONNECTIONS_OF_PEER, REQUESTS
from node.cluster.front.pending import PendingConnections
from node.cluster.keys import certificates, signed, tokens
from node.cluster.keys.certificates import Certificates, Doubtful, is_signed
from node.cluster.keys.pki import KeyStore, PkiError, new_key
from node.cluster.keys.tokens import new_token
from node.owner.ledger import LENT, Ledger
from node.requests import control
from node.requests.control import Client, ControlServer
from tests.node.cluster.test_gossip_socket import member, run
from tests.node.cluster.test_peers import dial, hello, is_closed
from tests.node.cluster.test_peers import member as context_of
from tests.node.nodes import Cluster, wait_for
from wire import frames

# -- strangers -----------------------------------------------------------------------------------------------------------


class Hall:
    """Pending connections whose clock is in the hands of the test."""

    def __init__(self, seed: int = 1) -> None:
        self.now = 0.0
        self.pending = PendingConnections(lambda: self.now, random.Random(seed))
        self.dropped: list[pending.Place] = []

    def enter(self, address: str, known: bool = False, speaks: bool = False) -> pending.Place | None:
        self.now += 0.001
        place = self.pending.enter(address, known)
        if place is not None:
            place.silent = not speaks
            place.drop = lambda: self.dropped.append(place)
        return place


@pytest.mark.parametrize("address", ["10.0.0.9", "2001:db8::1"])
def test_the_oldest_silent_connection_of_a_full_address_gives_way(address: str) -> None:
    hall = Hall()
    first = hall.enter(address)
    for number in range(1000):
        assert hall.enter(address if "." in address else f"2001:db8::{number + 2:x}") is not None
    assert len(hall.pending) == pending.OF_SOURCE
    assert hall.dropped[0] is first
    assert hall.enter("10.0.0.8") is not None


def test_a_handshake_gives_way_only_when_it_lasts() -> None:
    hall = Hall()
    for _ in range(pending.OF_SOURCE):
        assert hall.enter("10.0.0.9", speaks=True) is not None
    assert hall.enter("10.0.0.9") is None
    hall.now += pending.SLOW
    assert hall.enter("10.0.0.9") is not None
    assert len(hall.dropped) == 1


@pytest.mark.parametrize("speaks", [False, True])
def test_many_addresses_take_no_place_of_a_member(speaks: bool) -> None:
    hall = Hall()
    places = [hall.enter(f"10.{number >> 8}.{number & 255}.1", speaks=speaks) for number in range(3000)]
    assert len(hall.pending) <= pending.STRANGERS
    assert places.count(None) > 1000 if speaks else places.count(None) == 0
    for number in range(pending.MEMBERS):
        hall.enter(f"192.168.{number}.1", known=True)
    assert len([place for place in hall.pending._places if place.known]) > pending.MEMBERS / 2
    assert len(hall.pending) <= pending.STRANGERS + pending.MEMBERS


def test_turning_away_begins_early_and_at_random() -> None:
    hall = Hall()
    turned = [hall.enter(f"10.0.{number}.1", speaks=True) is None for number in range(pending.STRANGERS)]
    half = int(pending.STRANGERS * pending.EARLY)
    assert not any(turned[:half])
    assert 10 < sum(turned[half:]) < half


def test_the_log_has_one_line_a_minute_for_each_kind_and_source(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    limited = LimitedLog(logging.getLogger("test.limited"), lambda: now[0])
    for _ in range(1000):
        limited.warn("tls", "10.0.0.1", "refused")
    assert [record.getMessage() for record in caplog.records] == ["refused"]
    now[0] += limited_log.PERIOD
    limited.warn("tls", "10.0.0.1", "refused")
    assert caplog.records[-1].getMessage() == "refused (999 more since the last such line)"
    for number in range(5000):
        limited.warn("tls", f"10.1.{number >> 8}.{number & 255}", "refused")
    assert len(caplog.records) <= limited_log.MOST + 3
    assert len(limited._reported) <= limited_log.MOST + 1


# -- peers ---------------------------------------------------------------------------------------------------------------


def test_a_peer_has_so_many_connections_and_requests(pair: Cluster) -> None:
    opened = []
    try:
        for _ in range(CONNECTIONS_OF_PEER + 1):
            connection = dial(pair[1], context_of(pair[2]))
            opened.append(connection)
            frames.send(connection, hello())
            assert "result" in frames.receive(connection)
        assert is_closed(opened[0])
        for number in range(4 * REQUESTS):
            frames.send(opened[-1], {"id": number, "method": "ping", "params": {}})
        assert {frames.receive(opened[-1])["id"] for _ in range(4 * REQUESTS)} == set(range(4 * REQUESTS))
    finally:
        for connection in opened:
            connection.close()
    wait_for(lambda: pair[1].nodes() == {"n1", "n2"})


def test_certificates_that_are_kept_are_bounded(tmp_path: Path, first: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "MOST", 3)
    known = Certificates(first)
    ders = [member(tmp_path, first, f"n{number}").certificate().public_bytes(Encoding.DER) for number in range(2, 8)]
    for der in ders:
        known.meet(der)
    assert [known.get(f"n{number}") is not None for number in range(2, 8)] == [False] * 3 + [True] * 3
    assert known.name_of(ders[0]) is None


def test_a_signature_is_of_one_key_and_one_text(tmp_path: Path, first: KeyStore) -> None:
    keys = member(tmp_path, first, "n2")
    own, other = Certificates(keys), Certificates(first)
    assert own.sign(b"text") == b""
    own.reload()
    signature = own.sign(b"text")
    assert len(signature) == 64
    assert other.check("n2", b"text", signature) is None
    other.meet(keys.certificate().public_bytes(Encoding.DER))
    assert other.check("n2", b"text", signature) is True
    for text, made in ((b"texT", signature), (b"text", signature[:-1]), (b"text", bytes(64)), (b"text", b"\xff" * 64), (b"text", b"")):
        assert other.check("n2", text, made) is False
    assert not is_signed(new_key().public_key(), b"text", signature)
    first.remove("n2")
    with pytest.raises(Doubtful, match="removed"):
        Certificates(first).meet(keys.certificate().public_bytes(Encoding.DER))


# -- the authority -------------------------------------------------------------------------------------------------------


def test_names_and_tokens_are_bounded(first: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed, "MOST", 2)
    monkeypatch.setattr(tokens, "MOST", 3)
    new_token(first, "n9", "10.0.0.1", 7226, -1)  # over, so it does not count
    for _ in range(3):
        new_token(first, "n9", "10.0.0.1", 7226, 5)
    with pytest.raises(PkiError, match="3 tokens wait"):
        new_token(first, "n9", "10.0.0.1", 7226, 5)
    first.sign(new_key().public_key(), "n2")
    with pytest.raises(ValueError, match="2 nodes"):
        first.sign(new_key().public_key(), "n3")
    first.sign(new_key().public_key(), "n2")  # one that has a name keeps it


# -- users of this machine -----------------------------------------------------------------------------------------------


FOUR = """
import socket, struct, sys
made = []
for _ in range(4):
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(10)
    one.connect(sys.argv[1])
    made.append(one)
print("connected", flush=True)
sys.stdin.readline()
answered = 0
for one in made:
    try:
        one.sendall(struct.pack("!I", 8) + b"\\x81\\xa2op\\xa3who")
        answered += len(one.recv(100)) > 4
    except OSError:
        pass
print(answered)
"""


def test_a_user_with_all_own_connections_does_not_lock_out_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "CONNECTIONS", 12)
    monkeypatch.setattr(control, "CONNECTIONS_OF_USER", 4)

    async def answer(client: Client, operation: str, request: dict[str, object]) -> dict[str, object]:
        return {"uid": client.uid}

    def connect(uid: int, path: Path) -> subprocess.Popen[str]:
        made = subprocess.Popen(
            ["/usr/bin/python3", "-c", FOUR, str(path)], user=uid, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
        )
        assert made.stdout is not None
        assert made.stdout.readline() == "connected\n"
        return made

    def left(of: subprocess.Popen[str]) -> int:
        """Returns how many of its connections are answered."""
        return int(of.communicate("\n", timeout=30)[0])

    def fill(path: Path) -> None:
        held = [connect(uid, path) for uid in (1001, 1002, 1003)]
        late = [connect(uid, path) for uid in (1004, 0)]
        # Places are shared: a user with more than others loses one, until the newcomer has as many.
        assert [left(one) for one in reversed(late)] == [2, 3]
        assert sum(left(one) for one in held) == 7

    async def work() -> None:
        with tempfile.TemporaryDirectory(dir="/tmp") as directory:
            Path(directory).chmod(0o755)
            server = ControlServer(Path(directory) / "sock", answer)
            await server.start()
            try:
                await asyncio.get_running_loop().run_in_executor(None, fill, Path(directory) / "sock")
            finally:
                await server.close()

    run(work())


def test_the_ledger_is_roots_to_read_also_one_that_was_everybodys(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.touch(0o644)
    path.chmod(0o644)
    ledger = Ledger(path)
    ledger.book(LENT, [])
    for made in tmp_path.iterdir():
        assert stat.S_IMODE(made.stat().st_mode) == 0o600, made
    ledger.close()


def test_records_are_read_back_and_nonsense_is_none(first: KeyStore) -> None:
    record = first.signed.get("n1")
    assert record is not None and record.until > time.time()
    assert first.signed.all() == [record]
    for text in (b"", b"[]", json.dumps({"name": "n1"}).encode()):
        (first.directory / "signed" / "n1").write_bytes(text)
        assert first.signed.get("n1") is None
    assert first.signed.get("../node.key") is None
