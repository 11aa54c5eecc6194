"""Data connections: no outsider reads them, changes them unnoticed or gets in without the secret, and none holds up the others."""

from __future__ import annotations

import ctypes
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from kernel_helpers.stream.stream import Encrypted, open_encrypted
from remote import reception
from remote.reception import Reception
from tests.wire.relay import Relay
from wire import channel
from wire.channel import Channel
from wire.frames import WireError

pytestmark = pytest.mark.timeout(60)
SECRET = b"s" * 32
CONTENT = b"a known content of memory " * 4000


@contextmanager
def pair(ours: bool = False, theirs: bool = False, role: str = "move") -> Iterator[tuple[Encrypted, Encrypted, Relay]]:
    """Caller, listener, and the relay between them. ours, theirs: whether they say that it need not be secret."""
    with channel.listen("127.0.0.1") as listener, ThreadPoolExecutor(1) as pool:
        relay = Relay(listener.getsockname())
        accepted = pool.submit(lambda: open_encrypted(listener.accept()[0], SECRET, None, 10, theirs))
        caller = open_encrypted(socket.create_connection(relay.address), SECRET, role, 10, ours)
        listened = accepted.result(10)
        for end in (caller, listened):
            end.settimeout(10)
        try:
            yield caller, listened, relay
        finally:
            caller.close()
            listened.close()
            relay.close()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def received(end: Encrypted, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (more := end.recv(min(size - len(data), 1 << 20))):
        data += more
    return bytes(data)


@pytest.mark.parametrize(("ours", "theirs"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_connection_is_plain_only_where_both_say_so(ours: bool, theirs: bool) -> None:
    with pair(ours, theirs) as (caller, listened, relay):
        assert listened.role == "move"
        sending = threading.Thread(target=caller.sendall, args=(CONTENT,))
        sending.start()
        assert received(listened, len(CONTENT)) == CONTENT
        listened.sendall(CONTENT[:5000])
        assert received(caller, 5000) == CONTENT[:5000]
        sending.join()
        for seen in relay.seen:
            assert (b"a known content" in seen) == (ours and theirs)
        assert caller.is_secret == listened.is_secret == (not (ours and theirs))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("at", [0, 3, 30, 5000, 20000])
def test_a_changed_byte_ends_the_connection(plain: bool, at: int) -> None:
    """Changes in a header, in content, in a MAC, in a later record: earlier data is whole, and nothing comes after."""
    with pair(plain, plain) as (caller, listened, relay):
        caller.sendall(b"before")
        assert received(listened, 6) == b"before"
        relay.flips[0] = at
        sending = threading.Thread(target=lambda: caller.sendall(CONTENT[:60000]))
        sending.start()
        got = b""
        with pytest.raises(OSError):
            while more := listened.recv(100000):
                got += more
            raise ConnectionError("it ended")
        assert relay.flipped.is_set()
        assert len(got) < 60000 and CONTENT.startswith(got)
        listened.close()
        sending.join()


def test_the_secret_is_needed_on_both_sides() -> None:
    with channel.listen("127.0.0.1") as listener, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(lambda: channel.greet(listener.accept()[0], SECRET))
        with pytest.raises(WireError, match="secret"):
            channel.connect(listener.getsockname(), "move", b"t" * 32)
        with pytest.raises((WireError, OSError)):
            accepted.result(10)


def test_an_unknown_role_is_refused() -> None:
    with channel.listen("127.0.0.1") as listener, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(lambda: channel.greet(listener.accept()[0], SECRET))
        open_encrypted(socket.create_connection(listener.getsockname()), SECRET, "root", 5).close()
        with pytest.raises(WireError, match="unknown"):
            accepted.result(10)


def test_a_replayed_recording_gets_no_answer() -> None:
    with pair() as (caller, _, relay):
        caller.sendall(CONTENT[:100])
        until(lambda: len(relay.seen[0]) > 400)
        recorded = bytes(relay.seen[0])
    with channel.listen("127.0.0.1") as listener, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(lambda: channel.greet(listener.accept()[0], SECRET))
        with socket.create_connection(listener.getsockname()) as again:
            again.sendall(recorded)
            with pytest.raises((WireError, OSError)):
                accepted.result(10)


@pytest.mark.parametrize("plain", [False, True])
def test_a_peer_that_does_not_read_does_not_prevent_reading(plain: bool) -> None:
    """One thread is stuck in writing; another reads all the while."""
    with pair(plain, plain) as (caller, listened, _):
        much = os.urandom(32 << 20)
        writing = threading.Thread(target=caller.sendall, args=(much,))
        writing.start()
        time.sleep(0.2)
        for number in range(200):
            listened.sendall(b"%08d" % number)
            assert received(caller, 8) == b"%08d" % number
        assert writing.is_alive()
        assert received(listened, len(much)) == much
        writing.join(10)


@pytest.mark.parametrize("plain", [False, True])
def test_pieces_of_any_size_come_whole_and_in_order(plain: bool) -> None:
    chance = random.Random(7)
    with pair(plain, plain) as (caller, listened, _):
        sizes = [chance.choice((1, 5, 100, 4096, 16383, 16384, 16385, 70000, 300000)) for _ in range(60)]
        whole = os.urandom(sum(sizes))

        def send() -> None:
            at = 0
            for size in sizes:
                caller.sendall(whole[at : at + size])
                at += size

        sending = threading.Thread(target=send)
        sending.start()
        got = bytearray()
        while len(got) < len(whole):
            got += listened.recv(chance.choice((1, 7, 1000, 20000, 200000)))
        assert got == whole
        sending.join()


def test_keys_are_renewed_under_way() -> None:
    """Either side renews its key, while the other one writes."""
    with pair() as (caller, listened, _):
        for number in range(50):
            for one in (caller, listened):
                if number % 5 == 0:
                    one.wear_key()
                one.sendall(CONTENT[: 100 + number * 1000])
            for end in (listened, caller):
                assert received(end, 100 + number * 1000) == CONTENT[: 100 + number * 1000]


@pytest.mark.parametrize("plain", [False, True])
def test_an_error_of_before_is_not_taken_for_one_of_the_connection(plain: bool) -> None:
    """OpenSSL keeps errors of all kinds for each thread, and reports them later."""
    crypto = ctypes.CDLL("libcrypto.so.3")
    with pair(plain, plain) as (caller, listened, relay):
        before = len(relay.seen[0])
        relay.hold(0, 1000)
        caller.sendall(CONTENT[:5000])
        until(lambda: len(relay.seen[0]) > before + 5000)
        crypto.ERR_new()
        crypto.ERR_set_error(20, 1, None)
        listened.settimeout(0.1)
        with pytest.raises(TimeoutError):  # part of a record is there
            listened.recv(5000)
        assert not crypto.ERR_peek_error()
        relay.let_go(0)
        listened.settimeout(10)
        assert received(listened, 5000) == CONTENT[:5000]


def test_messages_that_came_together_are_seen_one_by_one() -> None:
    """The second lies in a buffer of ours, where its descriptor says nothing."""
    with pair() as (caller, listened, _):
        sender, taker = Channel(caller), Channel(listened)
        for name in ("one", "two", "three"):
            sender.send(name)
        until(taker.has_word)
        time.sleep(0.1)
        for name in ("one", "two", "three"):
            assert taker.has_word()
            assert taker.next()["op"] == name
        assert not taker.has_word()


def test_a_file_and_a_timeout_and_a_closed_end() -> None:
    with pair() as (caller, listened, _):
        listened.settimeout(0.1)
        with pytest.raises(TimeoutError):
            listened.recv(1)
        with open("/bin/ls", "rb") as file:
            size = os.fstat(file.fileno()).st_size
            sending = threading.Thread(target=caller.sendfile, args=(file, 0, size))
            sending.start()
            listened.settimeout(10)
            got = received(listened, size)
            sending.join()
        with open("/bin/ls", "rb") as file:
            assert file.read() == got
        caller.close()
        assert listened.recv(1) == b""
        assert caller.fileno() == -1
        with pytest.raises(OSError):
            caller.sendall(b"x")


def test_a_thread_in_a_call_gets_an_error_after_the_close() -> None:
    """Another thread closes it meanwhile: nothing that is used is taken away."""
    with pair() as (caller, _, _), ThreadPoolExecutor(1) as pool:
        caller.settimeout(None)
        reading = pool.submit(caller.recv, 1)
        time.sleep(0.1)
        caller.close()
        assert reading.result(10) == b""


@pytest.fixture
def door() -> Iterator[Reception]:
    made = Reception("127.0.0.1", SECRET, lambda: None)
    yield made
    made.close()


def _threads() -> int:
    return sum(thread.name == "greeting" for thread in threading.enumerate())


def test_silent_callers_do_not_lock_others_out(door: Reception) -> None:
    before = threading.active_count()
    silent = [socket.create_connection(("127.0.0.1", door.port), 5) for _ in range(3 * reception.SILENT_MOST)]
    for _ in range(3):
        with channel.connect(("127.0.0.1", door.port), "move", SECRET):
            until(lambda: (caller := door.next()) is not None and caller[1] == "move")
    assert threading.active_count() <= before + reception.GREETED_MOST
    silent[0].settimeout(10)
    assert silent[0].recv(1) == b""  # the oldest is dropped
    for one in silent:
        one.close()


def test_callers_that_stop_half_way_do_not_lock_others_out(door: Reception) -> None:
    half = []
    for _ in range(4 * reception.GREETED_MOST):
        half.append(socket.create_connection(("127.0.0.1", door.port), 5))
        half[-1].sendall(b"\x16\x03\x01\x02")
    with channel.connect(("127.0.0.1", door.port), "link", SECRET):
        until(lambda: (caller := door.next()) is not None and caller[1] == "link")
    assert _threads() <= reception.GREETED_MOST
    for one in half:
        one.close()


def test_noise_is_refused_and_costs_one_line(door: Reception, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", door.port), 5) as one:
            one.sendall(os.urandom(300))
    with channel.connect(("127.0.0.1", door.port), "page", SECRET):
        until(lambda: door.next() is not None)
    until(lambda: not _threads())
    assert sum("refused" in record.message for record in caplog.records) == 1


def test_a_rehearsal_leaves_nothing_open_and_the_next_handshake_works() -> None:
    before, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
    channel.rehearse()
    assert set(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() == threads
    with channel.listen("127.0.0.1") as listener, ThreadPoolExecutor(1) as pool:
        greeted = pool.submit(lambda: channel.greet(listener.accept()[0], bytes(channel.SECRET)))
        channel.connect(listener.getsockname(), "move", bytes(channel.SECRET)).close()
        assert greeted.result(20).role == "move"
        greeted.result().close()
