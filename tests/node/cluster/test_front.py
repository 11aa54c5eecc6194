"""The front: it reads what comes from the network, has no rights, and may end at any moment."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import random
import secrets
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from balancer.gossip.datagram import ENTRY, PROBE, SIGNATURE, SIGNED, Call, Card, Datagram, Probe, Update, Urgent, Word
from balancer.gossip.plain import plain, taken
from node.cluster.front import rights, supervisor, values
from node.cluster.front.connections import PeerRefused
from node.cluster.front.front import REQUESTS, Front, bound
from node.cluster.front.peer_server import Caller
from node.cluster.front.values import NotPlain, decode, encode
from node.cluster.keys.forms import Stated, point_of
from node.cluster.keys.pki import KeyStore, joining_context, new_key
from node.cluster.keys.tokens import Token
from node.cluster.renewal import answer_renew
from tests.node.cluster.test_gossip_socket import run
from tests.node.cluster.test_peers import dial, hello, is_closed, member
from tests.node.nodes import PORT, ROOT, Cluster, Node, wait_for
from wire import frames


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes, nothing balanced."""
    base = tmp_path_factory.mktemp("both")
    base.chmod(0o755)
    base.parent.chmod(0o755)
    cluster = Cluster(base, 2)
    yield cluster
    cluster.down()


# -- rights --------------------------------------------------------------------------------------------------------------


def front_of(node: Node) -> int:
    """The pid of the front of a node; 0: there is none."""
    assert node.daemon is not None
    for child in Path(f"/proc/{node.daemon.pid}/task/{node.daemon.pid}/children").read_text().split():
        if b"node.cluster.front.program" in Path(f"/proc/{child}/cmdline").read_bytes() and rights.remaining(int(child)) is None:
            return int(child)
    return 0


def sockets_of(pid: int) -> set[str]:
    """Inodes of the sockets that a process has."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target.removeprefix("socket:[").removesuffix("]"))
    return found


def far_end(connection: socket.socket) -> str:
    """The inode of the other end of a connection of this machine; "0" until the connection has been accepted."""
    (host, port), (there, their_port) = connection.getsockname(), connection.getpeername()
    local, remote = (f"{int.from_bytes(socket.inet_aton(a), 'little'):08X}:{p:04X}" for a, p in ((there, their_port), (host, port)))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[1:3] == [local, remote]:
            return words[9]
    raise AssertionError("no such connection")


def test_the_front_has_no_rights_and_not_the_key_of_the_authority(both: Cluster) -> None:
    assert rights.remaining(os.getpid()) == "an id that somebody has"
    pid = wait_for(lambda: front_of(both[1]))
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert {int(status[kind], 16) for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert (status["NoNewPrivs"], status["Seccomp"], status["Groups"].strip()) == ("1", "2", "")
    assert {int(number) >= rights.IDS for number in status["Uid"].split() + status["Gid"].split()} == {True}
    assert Path(f"/proc/{pid}/environ").stat().st_uid == 0  # the kernel's sign of a process that other processes cannot inspect
    root = Path(f"/proc/{pid}/root")
    assert {entry.name for entry in root.rglob("*")} == {"authority.pem", "node.key", "node.pem", "removed"}
    assert (both[1].base / "state" / "pki" / "authority.key").exists()
    kinds = {os.readlink(entry).partition(":")[0] for entry in Path(f"/proc/{pid}/fd").iterdir()}
    assert kinds <= {"socket", "anon_inode", "/dev/null"}, kinds


def has_none_but_listeners(daemon: subprocess.Popen[bytes]) -> bool:
    """Whether the daemon has no connection of TCP."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return not sockets_of(daemon.pid) & {words[9] for words in lines if words[3] != "0A"}


TRIES = """
import ctypes, mmap, os, socket, sys
from node.cluster.front import rights
held = [socket.socketpair() for _ in range(2)]
rights.give_up(os.getppid())
def mapped():
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)
def call(number, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")
acts = {
    "a socket": lambda: socket.socket(), "a program": lambda: os.execv("/bin/true", ["true"]), "a child": lambda: os.fork(),
    "a file of the machine": lambda: open("/etc/passwd"), "its processes": lambda: open("/proc/1/status"), "code": mapped,
    "a signal": lambda: os.kill(os.getppid(), 0), "an id": lambda: os.setuid(0),
    "memory of others": lambda: call(310, os.getppid(), 0, 0, 0, 0, 0),
    "tracing": lambda: call(101, 16, os.getppid(), 0, 0), "a mount": lambda: call(165, b"none", b"/", b"tmpfs", 0, 0),
    "a root": lambda: os.chroot("/"), "a connection": lambda: held[0][0].connect("/x"), "32 bits": lambda: call(0x40000000 | 39),
    "a descriptor of others": lambda: call(438, 3, 0, 0), "io_uring": lambda: call(425, 1, bytes(120)), "a size": lambda: bytes(3 << 30),
}
for what, act in acts.items():
    try:
        act()
        print(what)
    except (OSError, MemoryError):
        pass
held[0][0].send(b"x")
print("what it has works:", held[0][1].recv(1), os.listdir("/"))
"""


def test_a_process_that_has_dropped_its_rights_gets_no_new_ones() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", TRIES], env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, capture_output=True, timeout=30,
        check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("what it has works: b'x' []\n", "")


def test_the_daemon_never_has_a_callers_socket(both: Cluster) -> None:
    assert both[1].daemon is not None
    front = wait_for(lambda: front_of(both[1]))
    with socket.create_connection((both[1].address, PORT), timeout=10) as begun:
        begun.send(b"\x16")
        there = wait_for(lambda: (inode := far_end(begun)) != "0" and inode)
        assert there in sockets_of(front)
        assert there not in sockets_of(both[1].daemon.pid)
    with dial(both[1], member(both[2])) as greeted:
        frames.send(greeted, hello())
        assert "result" in frames.receive(greeted)
        assert far_end(greeted) in sockets_of(front) - sockets_of(both[1].daemon.pid)
    # The daemon does not keep the socket of a connection that it has made itself either, once it has handed it over.
    for node in (both[1], both[2]):
        wait_for(partial(has_none_but_listeners, node.daemon))


async def nothing(*_: object) -> None:
    """Answers every request with nothing."""


# -- its end -------------------------------------------------------------------------------------------------------------


def reports_of_front(node: Node) -> list[str]:
    return [line for line in node.log.read_text().splitlines() if "the front, which" in line]


def test_a_front_that_is_killed_comes_back_and_no_process_is_lost(both: Cluster) -> None:
    away = both.spawn(both[1], "sleep", "600")
    both[1].ok("migrate", str(away), "n2")
    assert both[1].process(away)["where"] == "n2"
    for node in (both[1], both[2]):
        before = wait_for(lambda node=node: front_of(node))
        os.kill(before, signal.SIGKILL)
        wait_for(lambda node=node, before=before: front_of(node) not in (0, before))
        (line,) = reports_of_front(node)
        assert "is gone: it has ended; it is started again in 0.2 s" in line
        assert "Traceback" not in node.log.read_text()
    assert both[1].process(away)["where"] == "n2"
    assert both[2].guests() == [f"n1-{away}"]
    wait_for(lambda: both[1].nodes() == both[2].nodes() == {"n1", "n2"})
    both[1].ok("migrate", str(away), "home")
    assert both[1].process(away)["where"] == "home"
    both[1].ok("migrate", str(away), "n2")
    with dial(both[1], member(both[2])) as connection:
        frames.send(connection, hello())
        assert "result" in frames.receive(connection)
    with dial(both[1], joining_context()) as connection:
        frames.send(connection, hello())
        assert is_closed(connection)


def test_a_front_ends_with_its_daemon_and_leaves_the_address_to_the_next_one(both: Cluster) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        before = wait_for(lambda: front_of(both[2]))
        both[2].kill(number)
        wait_for(lambda before=before: not Path(f"/proc/{before}").exists())
        with both[2].log.open("a") as log:
            log.write("start of test daemon\n")
        both[2].start()
    wait_for(lambda: both[2].nodes() == {"n1", "n2"})


def test_a_front_that_does_not_answer_is_ended_and_the_pause_grows(tmp_path: Path, first: KeyStore) -> None:
    async def work() -> None:
        front = Front(first, lambda: 2, nothing, nothing)
        front.start()
        try:
            await front.wait_until_ready()
            before = front.pid
            for _ in range(3 * supervisor.LOOKS):
                front.check_alive()
                await front.settle()
            assert front.pid == before
            os.kill(before, signal.SIGSTOP)
            for _ in range(supervisor.LOOKS + 1):
                front.check_alive()
            assert front.pid == 0 and not Path(f"/proc/{before}").exists()
            pauses = [front._pause]
            for _ in range(2):
                await front.wait_until_ready()
                os.kill(front.pid, signal.SIGKILL)
                while front.is_ready:
                    await asyncio.sleep(0.01)
                pauses.append(front._pause)
            assert pauses == [2 * supervisor.PAUSE, 4 * supervisor.PAUSE, 8 * supervisor.PAUSE]
        finally:
            front.close()

    run(work())


# -- what it sends -------------------------------------------------------------------------------------------------------

PLAIN: list[Any] = [
    None, True, False, 0, -1, 1 << 63, (1 << 64) - 1, -(1 << 63), 0.5, "", "ä€", b"", b"\xff" * 70000, [], {}, [[], {}],
    {"a": [1, {"b": b"c"}], 5: None}, ["x"] * 5000,
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: repr(value)[:20])
def test_plain_values_come_as_they_were(value: Any) -> None:
    assert decode(encode(value)) == value
    assert type(decode(encode(value))) is type(value)


DEEP: Any = []
for _ in range(values.DEEPEST + 1):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "value", [1 << 64, -(1 << 63) - 1, object(), {1.5: 1}, {None: 1}, "\ud800", DEEP, [None] * values.MOST_VALUES, b"x" * values.LONGEST],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_values_that_are_not_plain_are_not_encoded(value: Any) -> None:
    with pytest.raises(NotPlain):
        encode(value)


def test_any_bytes_decode_to_values_or_an_error_at_bounded_cost() -> None:
    rng = random.Random(7)
    good = [encode(value) for value in PLAIN]
    for number in range(20000):
        data = bytearray(rng.choice(good)[:200] if number % 3 else rng.randbytes(rng.randrange(40)))
        for _ in range(rng.randrange(4)):
            if data:
                data[rng.randrange(len(data))] = rng.choice(b"NTFiudsblm\0\xff")
        try:
            decode(bytes(data))
        except NotPlain:
            pass
    for claim in (b"b", b"s", b"l", b"m"):
        for count in (1, 1 << 16, 0xFFFFFFFF):
            with pytest.raises(NotPlain):
                decode(claim + struct.pack("!I", count))
    with pytest.raises(NotPlain):
        decode(b"l\0\0\0\1" * 100000)
    with pytest.raises(NotPlain):
        decode(b"l" + struct.pack("!I", values.MOST_VALUES) + b"N" * values.MOST_VALUES)


POINT = b"\x04" + bytes(64)
CARD = Card("n2", "10.0.0.2", 7226, 1, 4.0, 1.0, 1 << 34, 1, 8, bytes(SIGNATURE))
GOOD = plain(Datagram(
    CARD, bytes(ENTRY), [Urgent(2, 0.5, CARD.id, bytes(20))], [CARD.id], [Probe(Call.PING, 7, CARD.id)],
    [Update(w, CARD.id, 1, CARD.id, CARD if w is Word.ALIVE else None, 0.5, CARD.signature if w in SIGNED else b"") for w in Word],
))  # fmt: skip


def changed(at: list[int], to: Any) -> list[Any]:
    """Returns the valid datagram with one value changed."""
    made: list[Any] = copy.deepcopy(GOOD)
    place = made
    for number in at[:-1]:
        place = place[number]
    place[at[-1]] = to
    return made


NONSENSE_OF_DATAGRAMS: list[tuple[str, Any]] = [
    ("../n2", GOOD), *(("n2", changed(at, to)) for at, to in (
        ([0], None), ([0, 0], "n\n"), ([0, 0], "n" * 65), ([0, 0], ""), ([0, 1], b"x"), ([0, 2], 0), ([0, 2], 1 << 16), ([0, 3], -1),
        ([0, 3], 1 << 32), ([0, 4], 0.0), ([0, 4], float("nan")), ([0, 5], float("inf")), ([0, 5], 1), ([0, 6], 1 << 63), ([0, 6], True),
        ([0, 7], 1 << 16), ([0, 8], 1 << 32), ([0, 9], b"x"), ([1], bytes(ENTRY + 1)), ([1], bytes(ENTRY * 60)), ([2], b"x"), ([3], b"x"),
        ([4], b"x"), ([4], b"\x09" + bytes(PROBE - 1)), ([5], [GOOD[5][0]] * 100), ([5, 0], []), ([5, 0], None), ([5, 0, 0], 9),
        ([5, 0, 1], b"x"), ([5, 0, 2], 2), ([5, 0, 4], 1 << 16), ([5, 0, 5], b""), ([5, 0, 5], b"\1" * 64),
        ([5, 0, 6], None), ([5, 1, 6], GOOD[0]),
        ([5, 1, 5], bytes(64)), ([5, 0, 6, 0], "n3"), ([6], b""), ([6], [1]),
    )),
]  # fmt: skip
NONSENSE: list[Any] = [
    None, [], {}, ["boom"], ["_lost"], ["ready", 1], ["there", 1], ["log", 10, "mosd"], ["log", "10", "mosd", "x"], [["ready"]],
    ["request", 1, "", "1.2.3.4:5", "hello", {}], ["request", 1, "../x", "1.2.3.4:5", "hello", {}],
    ["request", 1, "n2", "1" * 200, "hello", {}], ["request", 1, "n2", "1", b"x", "hello", {}],
    ["request", 1, "n2", "1", "hello", []], ["request", True, "n2", "1", "hello", {}],
    ["met", "n2", b"x", POINT, 1.0, 2.0, "1"], ["met", "n2", b"x", b"", 1.0, 2.0, "1"], ["met", "n2", b"x", POINT, 2.0, 1.0, "1"],
    ["met", "n2", b"x", POINT, float("nan"), 2.0, "1"], ["datagram", "n2", b"x"], ["datagram", "n2", []], ["opened", "n2", [[]]],
    *(["datagram", name, value] for name, value in NONSENSE_OF_DATAGRAMS),
    ["spent", -1], ["spent", 1 << 40], ["dropped", {"a": "b"}], ["dropped", {str(n): n for n in range(100)}],
    ["connected", 1, "n2", float("inf")], ["message", 1, []], ["closed", "1", "x"],
]  # fmt: skip


def test_nonsense_from_the_front_is_rejected(first: KeyStore, caplog: pytest.LogCaptureFixture) -> None:
    """Each message ends the front: Pipe ends a sender whose message raises ValueError."""

    async def work() -> None:
        front = Front(first, lambda: 2, nothing, nothing)
        with pytest.raises(ValueError, match="before it was ready"):
            front._take(encode(["there"]), [])
        front._ready.set()
        for message in NONSENSE:
            with pytest.raises(ValueError):
                front._take(encode(message), [])
            assert not front._requests
        front.pid = os.getpid()
        with pytest.raises(ValueError, match="it has an id that somebody has"):
            front._take(encode(["ready"]), [])
        front._on_log(20, "mosd.peers", "a\nb\x1b[31m\0")
        assert caplog.messages == ["a | b?[31m?"]

    caplog.set_level(logging.INFO)
    run(work())


def test_a_datagram_is_the_same_on_the_other_side() -> None:
    assert plain(taken(decode(encode(GOOD)))) == GOOD
    assert plain(taken(decode(encode(plain(Datagram(CARD)))))) == plain(Datagram(CARD))


def test_an_address_that_is_in_use_for_a_moment_holds_nothing_else_up(first: KeyStore) -> None:
    async def work() -> None:
        front, network = Front(first, lambda: 2, nothing, nothing), f"127.{secrets.randbelow(250) + 2}.{secrets.randbelow(250) + 2}.1"
        for kind, listen in (
            (socket.SOCK_STREAM, lambda: front.listen(network, PORT)),
            (socket.SOCK_DGRAM, lambda: front.listen_to_datagrams(network, PORT, 1)),
        ):  # fmt: skip
            with bound(kind, network, PORT) as other:
                if kind == socket.SOCK_STREAM:
                    other.listen()
                task = asyncio.create_task(listen())
                for _ in range(3):
                    await asyncio.sleep(0.01)  # others have their turns
                assert not task.done()
            await task
        front.close()

    run(work())


# -- what it takes apart, so that mosd need not --------------------------------------------------------------------------


def test_requests_and_datagrams_are_taken_apart_by_the_front_alone(both: Cluster, tmp_path: Path) -> None:
    """The daemons of these tests have no parser of either (tests/node/mosd_for_tests.py): a test that needs one there fails."""
    keys = KeyStore(both[2].base / "state" / "pki")
    n3 = Node(tmp_path, "n3", both.network, 3)
    token = Token.parse(both[1].ok("mosctl", "cluster", "token", "n3").strip())
    key, other = new_key(), ec.generate_private_key(ec.SECP384R1())
    good = keys.request(key, "n3")
    with dial(both[1], member(both[2])) as connection:
        frames.send(connection, hello())
        assert "result" in frames.receive(connection)
        frames.send(connection, {"id": 2, "method": "renew", "params": {"request": keys.request(keys.private_key(), "n2")}})
        stated = frames.receive(connection)["result"]
        assert b"BEGIN CERTIFICATE" in keys.made_again(Stated.from_wire("n2", stated))
    wrong = (b"", b"x" * 100, good[:-40], keys.request(key, "n4"), keys.request(other, "n3"), b"\xff" * 9000, good.replace(b"M", b"N"))
    for request in wrong:
        with dial(both[1], joining_context()) as connection:
            frames.send(connection, {"id": 1, "method": "join", "params": {"secret": token.secret, "request": request, "name": "n3"}})
            assert frames.receive(connection)["error"]["kind"] == "join"
    n3.ok("mosctl", "cluster", "join", str(token))  # which no such request has used up
    wait_for(lambda: both[1].nodes() == both[2].nodes() == {"n1", "n2"})
    for node in both.nodes:
        assert "met a fault" not in node.log.read_text() and "Traceback" not in node.log.read_text()


def test_a_certificate_that_the_front_makes_up_is_not_renewed(tmp_path: Path, first: KeyStore) -> None:
    keys = KeyStore(tmp_path / "second")
    key = new_key()
    keys.install(key, first.sign(key.public_key(), "n2"), first.authority_certificate.read_bytes())
    shown = Stated.of(keys.certificate())
    answer = answer_renew(first, Caller("n2", "x"), {"certificate": shown.to_wire()})
    assert answer["point"] == shown.point
    mine = point_of(new_key().public_key())
    for name, changed_statement in (
        ("n2", replace(shown, point=mine)), ("n3", shown), ("n2", replace(shown, since=shown.since + 1)),
        ("n2", replace(shown, until=shown.until + 86400)), ("n2", replace(shown, signature=bytes(64))), ("n2", replace(shown, serial=1)),
    ):  # fmt: skip
        with pytest.raises(PeerRefused, match="not of this cluster"):
            answer_renew(first, Caller(name, "x"), {"certificate": changed_statement.to_wire()})
    for nonsense in (None, {}, shown.to_wire() | {"point": b""}, shown.to_wire() | {"point": bytes(65)}, shown.to_wire() | {"since": 1.5}):
        with pytest.raises((PeerRefused, ValueError)):
            answer_renew(first, Caller("n2", "x"), {"certificate": nonsense})


def test_more_requests_than_there_can_be_are_nonsense(first: KeyStore) -> None:
    async def wait(*_: object) -> None:
        await asyncio.Event().wait()

    async def work() -> None:
        front = Front(first, lambda: 2, wait, wait)
        front._ready.set()
        for number in range(REQUESTS):
            front._take(encode(["request", number, "n2", "1.2.3.4:5", "ping", {}]), [])
        with pytest.raises(ValueError, match="a request that cannot be"):
            front._take(encode(["request", REQUESTS, "n2", "1.2.3.4:5", "ping", {}]), [])
        tasks = list(front._requests.values())
        front._take(encode(["cancel", 5]), [])
        await asyncio.sleep(0.01)
        assert [task.cancelled() for task in tasks].count(True) == 1
        front._take(encode(["request", REQUESTS, "n2", "1.2.3.4:5", "ping", {}]), [])
        front.close()
        await asyncio.wait(tasks, timeout=10)
        assert all(task.cancelled() for task in tasks)

    run(work())


def test_a_front_that_keeps_a_right_gets_no_key(first: KeyStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(rights, "IDS", 1000)

    async def work() -> None:
        front = Front(first, lambda: 2, nothing, nothing)
        front.start()
        try:
            async with asyncio.timeout(20):
                while not caplog.records:
                    await asyncio.sleep(0.01)
            assert not front.is_ready
            assert "it has an id that somebody has" in caplog.text
        finally:
            front.close()

    run(work())
